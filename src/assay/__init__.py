"""assay: post-train language models by reinforcement learning with verifiable rewards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Before torch starts its threads: where other programs share the cores, threads that spin while they wait for one
# another make a decoding step several times slower (docs/speed.md). A value that is set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from assay.api.run import RunResult, train
    from assay.api.session import Session
    from assay.config.load import load_recipe

__version__ = "0.1.0"
__all__ = ["RunResult", "Session", "__version__", "load_recipe", "train"]

_HOMES = {
    "train": "assay.api.run",
    "RunResult": "assay.api.run",
    "Session": "assay.api.session",
    "load_recipe": "assay.config.load",
}


def __getattr__(name: str) -> Any:
    """Public names load when they are used, so that `import assay` and `assay --help` are instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
