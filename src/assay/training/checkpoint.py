"""Checkpoints: written aside, fsynced, renamed. A partial one cannot be mistaken for a whole one."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from assay.errors import RunError
from assay.training.rundir import disk_errors

NAME = re.compile(r"step-(\d+)")
WEIGHTS, STATE = "weights.safetensors", "state.pt"


class Checkpoints:
    """The checkpoints of one run, the newest `keep` of them."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """The steps of all whole checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for path in self.folder.iterdir() if (match := NAME.fullmatch(path.name)))

    def save(self, step: int, weights: dict[str, torch.Tensor], state: dict[str, Any]) -> Path:
        """Write `step-N/`; a crash or a full disk at any moment leaves the earlier ones as they were."""
        final = self.folder / f"step-{step}"
        aside = self.folder / f".step-{step}.tmp"
        newest = max(self.steps(), default=None)
        kept = f"Checkpoint step-{newest} is whole" if newest is not None else "There is no earlier checkpoint"
        with disk_errors(f"writing checkpoint {final}", kept):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            try:
                save_file(
                    {name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}, aside / WEIGHTS
                )
                torch.save(state, aside / STATE)
                for path in (aside / WEIGHTS, aside / STATE, aside):
                    sync(path)
                if final.exists():
                    shutil.rmtree(final)
                os.replace(aside, final)
            except (OSError, RuntimeError, SafetensorError) as error:
                known = as_os_error(error, self.folder, size_of(weights) + size_of(state))
                shutil.rmtree(aside, ignore_errors=True)
                raise known from error
            sync(self.folder)
        self.retire()
        return final

    def retire(self) -> None:
        """Delete all but the newest, and what a crash left half-written."""
        for step in self.steps()[: -self.keep]:
            shutil.rmtree(self.folder / f"step-{step}")
        for path in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(path)

    def load(self, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Weights by name and the state dictionary of checkpoint `step`."""
        folder = self.folder / f"step-{step}"
        try:
            return load_file(folder / WEIGHTS), torch.load(folder / STATE, map_location="cpu", weights_only=True)
        except Exception as error:
            others = [f"step-{other}" for other in self.steps() if other != step]
            raise RunError(
                f"checkpoint {folder} cannot be read ({type(error).__name__}: {error}); delete that folder to continue "
                f"from {others[-1] if others else 'the start'}"
            ) from error


def as_os_error(error: Exception, folder: Path, needed: int) -> Exception:
    """torch and safetensors report a full disk in words of their own; give it back its errno.

    `needed` is the size in bytes of what was to be written into `folder`.
    """
    if isinstance(error, OSError) or shutil.disk_usage(folder).free > needed:
        return error
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def size_of(value: Any) -> int:
    """Bytes of all tensors in a nested state."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list | tuple) else 0


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
