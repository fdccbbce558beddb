"""What the training loop reports to: metrics.jsonl, rollouts, trackers and the console, behind five calls."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from assay.monitoring.console import QuietConsole, View, choose_console
from assay.monitoring.options import MonitorOptions
from assay.monitoring.store import MetricsLog, RolloutStore
from assay.monitoring.trackers import Tracker, open_trackers
from assay.records import Group

# Phases that happen between steps; the rest of the wall clock is the step's own time.
OUTSIDE_STEP = ("evaluate", "save", "stage_one")


class MonitorProtocol(Protocol):
    """What the loop needs; `NullMonitor` is for the ranks that do not report."""

    def start(self) -> None: ...

    def phase(self, name: str, total: int = 0) -> None: ...

    def advance(self, done: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None: ...

    def heldout(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def message(self, text: str) -> None: ...

    def rewind(self, step: int) -> None: ...

    def finish(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NullMonitor:
    """Takes every call and does nothing."""

    def start(self) -> None: ...

    def phase(self, name: str, total: int = 0) -> None: ...

    def advance(self, done: int) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None: ...

    def heldout(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def message(self, text: str) -> None: ...

    def rewind(self, step: int) -> None: ...

    def finish(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Monitor:
    """Reports a run into its directory. Calls: [load_state_dict, rewind] start, (phase..., step, heldout)*, finish.

    `step` adds what only it can know: time/<phase>, `step_time` (the wall clock since the last step without evaluation,
    saving and A*-PO's first stage), `tokens_per_second`, memory/*, and `num_tokens` (cumulative: prompt tokens counted
    once a completion, plus policy-authored tokens, of all that was generated for a step, trained on or not).
    """

    def __init__(
        self,
        run_dir: str | Path,
        options: MonitorOptions,
        total_steps: int,
        config: Mapping[str, Any] | None = None,
        console: QuietConsole | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.options = options
        self.log = MetricsLog(self.run_dir / "metrics.jsonl")
        self.store = RolloutStore(self.run_dir / "rollouts", options.gold_field)
        self._console = console or choose_console(options.console)
        self._view = View(self.run_dir.name, total_steps)
        self._config = config or {}
        self._trackers: list[Tracker] = []
        self._seconds: dict[str, float] = {}
        self._phase: tuple[str, float] | None = None
        self._last_step = time.monotonic()
        self._num_tokens = 0.0
        self._stored = 0

    def start(self) -> None:
        """Open trackers and the console."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._trackers = open_trackers(self.run_dir, self.options, self._config)
        self._view.started = self._last_step = time.monotonic()
        self._view.first_step = self._view.step
        self._console.start(self._view)

    def phase(self, name: str, total: int = 0) -> None:
        """The run now does `name` (generate, score, train, sync, evaluate, save); `total` counts its items."""
        now = time.monotonic()
        if self._phase is not None:
            previous, since = self._phase
            self._seconds[previous] = self._seconds.get(previous, 0.0) + now - since
        self._phase = (name, now)
        self._view.phase, self._view.phase_done, self._view.phase_total = name, 0, total
        self._console.phase(self._view)

    def advance(self, done: int) -> None:
        """`done` items of the phase's total are finished."""
        self._view.phase_done = done

    def step(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """One optimisation step is over: write its line and its rollouts, then show it."""
        complete = {**metrics, **self._measure(metrics)}
        # Groups come with the first update of a round only, which need not be a multiple of rollouts_every.
        if groups and step // self.options.rollouts_every > self._stored // self.options.rollouts_every:
            # Rollouts first: a line in metrics.jsonl promises that the step's file exists.
            self.store.write(step, groups)
            self._stored = step
        self.log.append(step, complete)
        for tracker in self._trackers:
            tracker.log(step, complete)
        self._view.step = step
        self._view.record(complete)
        if groups:
            self._view.rollout = _fresh_rollout(groups, step)
        if self._console.shows_findings and self.options.doctor_every and step % self.options.doctor_every == 0:
            self._view.findings = self._findings()
        self._console.step(self._view)

    def heldout(self, step: int, metrics: Mapping[str, float]) -> None:
        """Held-out scores at `step`; names get the prefix `heldout/` where they lack it."""
        named = {name if name.startswith("heldout/") else f"heldout/{name}": value for name, value in metrics.items()}
        self.log.append(step, named)
        for tracker in self._trackers:
            tracker.log(step, named)
        self._view.record(named)
        self._console.heldout(self._view, named)

    def message(self, text: str) -> None:
        """A line for the person who watches."""
        self._console.message(text)

    def rewind(self, step: int) -> None:
        """Resuming after `step`: cut off the metrics and rollouts of every later step; -1 keeps nothing."""
        from assay.monitoring.history import read_metrics

        self.log.truncate(step)
        self.store.truncate(step)
        self._view.step = max(0, step)
        if self.log.path.exists():
            history = read_metrics(self.log.path)
            for name in history.columns:
                values = history.series(name)[1]
                if len(values):
                    self._view.latest[name] = float(values[-1])
                    self._view.history[name] = values.tolist()

    def finish(self) -> None:
        """Close everything; safe to call twice, and after an interrupt."""
        self._console.stop(self._view)
        self.log.sync()
        self.log.close()
        trackers, self._trackers = self._trackers, []
        for tracker in trackers:
            tracker.finish()

    def state_dict(self) -> dict[str, Any]:
        return {"num_tokens": self._num_tokens, "stored": self._stored}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._num_tokens, self._stored = float(state["num_tokens"]), int(state.get("stored", 0))

    def _findings(self) -> list[tuple[str, str]]:
        """What the doctor says of the metrics so far; rollouts are left to `assay doctor`, which has the time."""
        from assay.monitoring.doctor import diagnose
        from assay.monitoring.history import read_metrics
        from assay.monitoring.sources import Run, flatten, subfolders

        facts = flatten(self._config)
        checkpoints = subfolders(self.run_dir / "checkpoints")
        run = Run(self.run_dir, read_metrics(self.log.path), facts, checkpoints=checkpoints)
        found = diagnose(run).findings
        return [(item.severity, f"{item.id} {item.title}") for item in found if item.explained_by is None]

    def _measure(self, metrics: Mapping[str, float]) -> dict[str, float]:
        now = time.monotonic()
        if self._phase is not None:
            name, since = self._phase
            self._seconds[name] = self._seconds.get(name, 0.0) + now - since
            self._phase = (name, now)
        step_time = now - self._last_step - sum(self._seconds.get(name, 0.0) for name in OUTSIDE_STEP)
        self._last_step = now
        measured = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        self._view.phase_seconds, self._seconds = self._seconds, {}
        written = metrics.get("completions/total_tokens", 0.0)
        self._num_tokens += written + metrics.get("num_prompt_tokens", 0.0)
        measured |= {"step_time": step_time, "num_tokens": self._num_tokens, **memory_metrics()}
        if step_time > 0 and written:
            measured["tokens_per_second"] = written / step_time
        return {name: value for name, value in measured.items() if name not in metrics}


def memory_metrics() -> dict[str, float]:
    """Peak memory of this process in GiB, and of its accelerator where there is one."""
    metrics: dict[str, float] = {}
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        metrics["memory/peak_rss_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        metrics["memory/peak_gpu_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return metrics


def _fresh_rollout(groups: Sequence[Group], step: int) -> tuple[str, str, str]:
    group = groups[step % len(groups)]
    completion = group.completions[step % len(group.completions)]
    content = group.prompt.content
    prompt = content if isinstance(content, str) else str(content[-1].get("content", ""))
    verdicts = ", ".join(f"{name} {judgement.outcome}" for name, judgement in completion.judgements.items())
    return prompt[-400:], completion.text[:2000], f"reward {completion.reward}  {verdicts}  {completion.finish}"
