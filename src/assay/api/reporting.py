"""What the loop is handed to report to and to evaluate with: monitoring and evaluation, joined to a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.api.heldout import heldout_sets, log_probs
from assay.api.models import save_model
from assay.api.session import Session
from assay.evaluation.progress import Heldout
from assay.evaluation.verdicts import HeldoutLog
from assay.monitoring.metrics import rollout_metrics, update_metrics
from assay.monitoring.monitor import MonitorProtocol
from assay.ranks import Ranks
from assay.rollouts.producer import Collected

OnStep = Callable[[int, Mapping[str, float]], None]


class RunReports:
    """The loop's reports: adds what rollouts say, counts training time, and passes everything to the monitor."""

    def __init__(self, monitor: MonitorProtocol, decoupled: bool, on_step: OnStep | None = None) -> None:
        self.monitor = monitor
        self.decoupled = decoupled
        self.on_step = on_step
        self.train_seconds = 0.0
        self._since = time.monotonic()

    def phase(self, name: str, total: int = 0) -> None:
        self.monitor.phase(name, total)

    def advance(self, done: int) -> None:
        self.monitor.advance(done)

    def message(self, text: str) -> None:
        self.monitor.message(text)

    def step(self, step: int, metrics: Mapping[str, float], rollouts: Collected | None = None) -> None:
        self.count()
        whole, groups = dict(metrics), []
        if rollouts is not None:
            groups = rollouts.groups
            written = rollout_metrics(rollouts.written, decoupled=self.decoupled)
            whole = {**written, **update_metrics(groups, policy_version=step - 1), **rollouts.metrics, **metrics}
        self.monitor.step(step, whole, groups)
        if self.on_step is not None:
            self.on_step(step, whole)

    def forget(self) -> None:
        """What has passed until now was no training."""
        self._since = time.monotonic()

    def count(self) -> None:
        """What has passed since the last count, or since an evaluation, was training."""
        now = time.monotonic()
        self.train_seconds += now - self._since
        self._since = now

    def heldout(self, step: int, metrics: Mapping[str, float]) -> None:
        """Held-out figures; the time they took is not training time."""
        self.monitor.heldout(step, metrics)
        self.forget()

    def rewind(self, step: int) -> None:
        self.monitor.rewind(step)
        self.forget()

    def state_dict(self) -> dict[str, Any]:
        return {"monitor": self.monitor.state_dict(), "train_seconds": self.train_seconds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.monitor.load_state_dict(state["monitor"])
        self.train_seconds = state["train_seconds"]


class Evaluation:
    """Held-out evaluation as the loop calls it: when due, measure, report, keep the best model."""

    def __init__(self, session: Session, reports: RunReports, run: Path) -> None:
        config = session.config
        self.session = session
        self.reports = reports
        self.models = run / "model"
        self.last_figure: dict[str, float] = {}
        self.verdicts = HeldoutLog(run)
        self.heldout: Heldout | None = None
        if sets := heldout_sets(session):
            self.heldout = Heldout(
                sets, session.sample, config.eval, config.rollout.max_completion_length, log_probs(session)
            )

    def __call__(self, step: int, last: bool) -> None:
        if self.heldout is None or not self.due(step, last):
            return
        self.reports.phase("evaluate", len(self.heldout.sets[0].prompts))
        result = self.heldout.evaluate(step)
        self.last_figure = dict(result.metrics)
        if self.session.ranks.is_main:
            self.verdicts.append(result)
        if result.is_best and step > 0 and self.session.ranks.is_main:
            save_model(self.session.policy, self.session.tokenizer, self.models / "best")
        self.reports.heldout(step, result.metrics)

    def due(self, step: int, last: bool) -> bool:
        """Whether the call with these arguments will measure something."""
        return self.heldout is not None and self.heldout.due(step, last)

    def rewind(self, step: int) -> None:
        """Forget verdicts of later steps."""
        self.verdicts.rewind(step)

    def state_dict(self) -> dict[str, Any]:
        return {"heldout": self.heldout.state_dict() if self.heldout else None, "last": self.last_figure}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.heldout is not None and state["heldout"] is not None:
            self.heldout.load_state_dict(state["heldout"])
        self.last_figure = dict(state["last"])


def ranks_progress(reports: RunReports, ranks: Ranks) -> Callable[[str, int, int], None]:
    """The producer's progress as phases and counts over all ranks."""

    def progress(phase: str, done: int, total: int) -> None:
        if done == 0:
            reports.phase(phase, total * ranks.world)
        else:
            reports.advance(done * ranks.world)

    return progress
