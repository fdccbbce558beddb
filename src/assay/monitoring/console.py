"""What a person sees while a run works: a live view on a terminal, a line a step elsewhere, nothing when quiet.

Everything goes to stderr; stdout belongs to the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group as RichGroup
from rich.console import RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from assay.errors import InputError

BARS = "▁▂▃▄▅▆▇█"
PHASE_COLOURS = ("blue", "cyan", "yellow", "magenta", "green", "white")
# (label, the first of these names that the run has); the order is the order on the screen.
SPARKLINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward", ("reward",)),
    ("held-out", ("heldout/accuracy", "heldout/pass_rate", "heldout/reward")),
    ("mixed groups", ("groups/frac_mixed",)),
    ("length", ("completions/mean_length",)),
    ("truncated", ("completions/clipped_ratio",)),
    ("entropy", ("entropy", "sampling/entropy")),
    ("mismatch", ("sampling/sampling_logp_difference/mean",)),
)


@dataclass
class View:
    """What there is to show; the monitor fills it, a console draws it."""

    title: str
    total_steps: int
    step: int = 0
    phase: str = "starting"
    phase_done: int = 0
    phase_total: int = 0
    started: float = field(default_factory=time.monotonic)
    first_step: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    findings: list[tuple[str, str]] = field(default_factory=list)
    rollout: tuple[str, str, str] | None = None

    def record(self, metrics: Mapping[str, float]) -> None:
        self.latest.update(metrics)
        for _, names in SPARKLINES:
            for name in names:
                if name in metrics:
                    self.history.setdefault(name, []).append(metrics[name])

    def eta_seconds(self) -> float | None:
        """From the mean time of this session's steps; None before the first."""
        done = self.step - self.first_step
        if done < 1:
            return None
        return (time.monotonic() - self.started) / done * max(0, self.total_steps - self.step)


class QuietConsole:
    """Shows nothing. `shows_findings` tells the monitor whether the doctor's word is worth asking for."""

    shows_findings = False

    def start(self, view: View) -> None: ...

    def phase(self, view: View) -> None: ...

    def step(self, view: View) -> None: ...

    def heldout(self, view: View, metrics: Mapping[str, float]) -> None: ...

    def message(self, text: str) -> None: ...

    def stop(self, view: View) -> None: ...


class PlainConsole(QuietConsole):
    """One line a step, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def step(self, view: View) -> None:
        parts = [f"step {view.step}/{view.total_steps}"]
        for label, names in SPARKLINES:
            value = next((view.latest[name] for name in names if name in view.latest), None)
            if value is not None and label != "held-out":
                parts.append(f"{label} {value:.3g}")
        if "step_time" in view.latest:
            parts.append(f"{view.latest['step_time']:.2f} s")
        eta = view.eta_seconds()
        if eta is not None:
            parts.append(f"left {clock(eta)}")
        self.message("  ".join(parts))

    def heldout(self, view: View, metrics: Mapping[str, float]) -> None:
        figures = [name for name in ("accuracy", "pass_rate", "reward") if f"heldout/{name}" in metrics]
        shown = "  ".join(heldout_figure(name, metrics) for name in figures) or "nothing was judged"
        self.message(f"held-out at step {view.step}: {shown}")

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def heldout_figure(name: str, metrics: Mapping[str, float]) -> str:
    """A held-out figure with its 95% interval and the change since the start.

    >>> metrics = {"heldout/accuracy": 0.5, "heldout/accuracy_low": 0.4, "heldout/accuracy_high": 0.6}
    >>> heldout_figure("accuracy", metrics | {"heldout/accuracy_vs_start": 0.2})
    'accuracy 0.5 [0.400, 0.600], +0.200 since the start'
    """
    value, low, high, change = (metrics.get(f"heldout/{name}{end}") for end in ("", "_low", "_high", "_vs_start"))
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    since = "" if change is None else f", {change:+.3f} since the start"
    return f"{name} {value:.3g}{interval}{since}"


class LiveConsole(QuietConsole):
    """The live view: redrawn at most four times a second by rich's own thread, so steps cost nothing."""

    shows_findings = True

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = RichConsole(file=stream or sys.stderr)
        self._live: Live | None = None
        self._view: View | None = None

    def start(self, view: View) -> None:
        self._view = view
        self._live = Live(
            console=self._console, get_renderable=lambda: render(view), refresh_per_second=4, transient=False
        )
        self._live.start()

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def stop(self, view: View) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def choose_console(kind: str, stream: TextIO | None = None) -> QuietConsole:
    """`auto` is the live view on a terminal and plain lines elsewhere."""
    stream = stream or sys.stderr
    if kind == "auto":
        kind = "live" if stream.isatty() else "plain"
    kinds = {"live": lambda: LiveConsole(stream), "plain": lambda: PlainConsole(stream), "quiet": QuietConsole}
    if kind not in kinds:
        raise InputError(f"console {kind!r} does not exist; it can be auto, {', '.join(kinds)}")
    return kinds[kind]()


def render(view: View) -> RichGroup:
    """The whole live view for one moment."""
    parts: list[RenderableType] = [_header(view), _phase_bar(view), _sparklines(view)]
    groups = _group_bar(view)
    if groups is not None:
        parts.append(groups)
    if view.findings:
        marks = {"error": "[red]✖[/]", "warning": "[yellow]▲[/]", "info": "[blue]●[/]"}
        lines = "\n".join(f"{marks.get(severity, '●')} {escape(text)}" for severity, text in view.findings[:3])
        parts.append(Text.from_markup(lines))
    if view.rollout is not None:
        prompt, text, verdict = (_shorten(part, width) for part, width in zip(view.rollout, (160, 480, 120)))
        body = Text.assemble((prompt, "dim"), "\n", text)
        parts.append(Panel(body, title="a fresh rollout", subtitle=escape(verdict), title_align="left", expand=True))
    return RichGroup(*parts)


def _header(view: View) -> Text:
    share = view.step / max(1, view.total_steps)
    filled = round(30 * min(1.0, share))
    eta = view.eta_seconds()
    rate = view.latest.get("tokens_per_second")
    text = Text.assemble((view.title, "bold"), f"  step {view.step}/{view.total_steps} ")
    text.append("━" * filled, "green").append("━" * (30 - filled), "bright_black")
    text.append(f"  {clock(time.monotonic() - view.started)} gone")
    text.append(f", {clock(eta)} left" if eta is not None else "")
    text.append(f"  {rate:,.0f} tok/s" if rate else "")
    return text


def _phase_bar(view: View) -> Text:
    text = Text(f"{view.phase:<10}")
    if view.phase_total:
        text.append(f"{view.phase_done}/{view.phase_total}  ")
    total = sum(view.phase_seconds.values())
    for index, (name, seconds) in enumerate(view.phase_seconds.items()):
        width = round(40 * seconds / total) if total else 0
        colour = PHASE_COLOURS[index % len(PHASE_COLOURS)]
        text.append("█" * width, colour).append(f" {name} {seconds / total:.0%} " if total else "", colour)
    return text


def _sparklines(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, names in SPARKLINES:
        name = next((name for name in names if view.history.get(name)), None)
        if name is not None:
            values = view.history[name]
            table.add_row(label, Text(sparkline(values), "cyan"), f"{values[-1]:.4g}", f"from {values[0]:.4g}")
    return table


def _group_bar(view: View) -> Text | None:
    names = ("groups/frac_all_wrong", "groups/frac_mixed", "groups/frac_all_correct")
    if not all(name in view.latest for name in names):
        return None
    text = Text("groups     ")
    for (label, colour), name in zip((("wrong", "yellow"), ("mixed", "cyan"), ("right", "blue")), names):
        share = view.latest[name]
        text.append("█" * round(40 * share), colour).append(f" {label} {share:.0%} ", colour)
    return text


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last values as block characters, averaged into at most `width` columns.

    >>> sparkline([0.0, 1.0, 2.0, 3.0])
    '▁▃▆█'
    """
    values = [value for value in values if value == value and abs(value) != float("inf")]
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [len(values) * index // columns for index in range(columns + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[0] * columns
    return "".join(BARS[int((value - low) / (high - low) * (len(BARS) - 1) + 0.5)] for value in means)


def clock(seconds: float) -> str:
    """
    >>> clock(59.4), clock(3725)
    ('0:59', '1:02:05')
    """
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def _shorten(text: str, width: int) -> str:
    # Control characters of a completion must not drive the terminal.
    clean = "".join(character if character.isprintable() or character == "\n" else "�" for character in text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"
