"""Fixtures for every room: tiny models made on the spot."""

from __future__ import annotations

import os

# Two cores serve everybody; a test's tensors are small. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_folder("llama")`: a folder with a random two-layer model and a byte-level chat tokenizer."""
    made: dict[Any, Path] = {}

    def make(architecture: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
        from assay.policy.tiny import save_tiny

        key = (architecture, seed, repr(sorted(changes.items())))
        if key not in made:
            made[key] = save_tiny(tmp_path_factory.mktemp(architecture), architecture, seed=seed, **changes)
        return made[key]

    return make


@pytest.fixture
def train_tiny(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """Two updates of a tiny model in a fresh run directory; keywords go on top."""
    import assay

    def start(**keys: Any) -> Any:
        settings = {
            "model": str(tiny_folder("llama")),
            "preset": "grpo",
            "output_dir": str(tmp_path / "runs"),
            "name": "r",
            "num_generations": 4,
            "max_completion_length": 8,
            "prompts_per_step": 2,
            "steps": 2,
            "learning_rate": 1e-2,
            "dtype": "float32",
            "prefix_sharing": True,
            "lora_rank": 2,
            "console": "quiet",
        }
        return assay.train(**(settings | keys))

    return start
