"""Experiment trackers through their own libraries. A tracker is a copy: metrics.jsonl is the record."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from assay.errors import InputError
from assay.monitoring.options import MonitorOptions


class Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finish(self) -> None: ...


class WandbTracker:
    """Weights & Biases; offline mode writes under the run directory, for `wandb sync` later."""

    def __init__(self, run_dir: Path, options: MonitorOptions, config: Mapping[str, Any]) -> None:
        wandb = _load("wandb")
        self._run = wandb.init(
            project=options.project,
            name=options.run_name or run_dir.name,
            id=_run_id(run_dir),
            resume="allow",
            config=dict(config),
            dir=str(run_dir),
            mode="offline" if options.tracker_offline else None,
        )
        # Own step axis: wandb's counter refuses steps that go back, which resuming from a checkpoint does.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def finish(self) -> None:
        self._run.finish()


class TrackioTracker:
    """trackio: the same calls as wandb, a local SQLite file."""

    def __init__(self, run_dir: Path, options: MonitorOptions, config: Mapping[str, Any]) -> None:
        self._trackio = _load("trackio")
        self._trackio.init(
            project=options.project, name=options.run_name or run_dir.name, config=dict(config), resume="allow"
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._trackio.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._trackio.finish()


class TensorboardTracker:
    """Event files in <run>/tensorboard."""

    def __init__(self, run_dir: Path, options: MonitorOptions, config: Mapping[str, Any]) -> None:
        _load("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run_dir / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


_KINDS: dict[str, Callable[[Path, MonitorOptions, Mapping[str, Any]], Tracker]] = {
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
    "tensorboard": TensorboardTracker,
}


def open_trackers(run_dir: Path, options: MonitorOptions, config: Mapping[str, Any]) -> list[Tracker]:
    """The trackers that the options name; InputError says how to install one that is missing."""
    return [_KINDS[name](run_dir, options, config) for name in options.trackers]


def _load(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"monitoring.trackers names {package!r}, which cannot be imported ({error}); run: pip install {package}"
        ) from error


def _run_id(run_dir: Path) -> str:
    """Kept in the run directory, so that a resumed run continues the same curve."""
    path = run_dir / "wandb-id.txt"
    if not path.exists():
        import secrets

        path.write_text(secrets.token_hex(4))
    return path.read_text().strip()
