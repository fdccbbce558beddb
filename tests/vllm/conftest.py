"""Real engines and servers on a CPU: `tests/vllm/install.sh VENV && VENV/bin/python -m pytest tests/vllm -m vllm`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from vllm_helpers import SIZES


def pytest_collection_modifyitems(items):
    if find_spec("vllm") is not None:
        return
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed here; see tests/vllm/install.sh"))


@pytest.fixture(scope="session")
def folder_of(tiny_folder):
    """`folder_of("tied")`: a model that vLLM runs."""
    return lambda kind: tiny_folder("llama", **SIZES, tie_word_embeddings=kind == "tied")
