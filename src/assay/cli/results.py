"""What `assay train` shows when it is done: before and after, the curve, where the model lies, what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from assay.monitoring.history import read_metrics
from assay.monitoring.plots import before_after_table, learning_curve, terminal_curve

if TYPE_CHECKING:
    from assay.api.run import RunResult


def show_result(result: RunResult) -> None:
    """Tables and the curve on standard output; the curve also as PNG and SVG in the run directory."""
    console = Console()
    summary, directory = result.summary, result.directory
    history = read_metrics(directory / "metrics.jsonl")
    console.print(terminal_curve(history), highlight=False, markup=False)
    pictures = [directory / "learning_curve.png", directory / "learning_curve.svg"]
    learning_curve(history, *pictures, title=f"{summary['name']} (seed {summary['seed']})")
    before = {"greedy accuracy": summary["heldout_before"], "sampled pass rate": summary.get("pass_rate_before")}
    after = {"greedy accuracy": summary["heldout_after"], "sampled pass rate": summary.get("pass_rate_after")}
    measured = {name for name in before if before[name] is not None or after[name] is not None}
    judged = history.series("heldout/accuracy")[0].tolist() if "heldout/accuracy" in history else []
    if len(judged) == 1 and judged[0] < summary["steps"]:
        console.print(f"The held-out prompts were judged at step {judged[0]:.0f} only: there is no after to compare.")
    elif measured:
        console.print(f"On {summary['heldout_prompts']} held-out prompts, before and after {summary['steps']} steps:")
        console.print(
            before_after_table(
                {name: value for name, value in before.items() if name in measured},
                {name: value for name, value in after.items() if name in measured},
            )
        )
    else:
        console.print("No prompts were held out: nothing says whether the model got better (data.heldout_size).")
    took, whole = summary["train_seconds"], summary["total_seconds"]
    # Training counts from the run's first start on, the whole from its last.
    aside = f"{clock(whole)} with loading and evaluation" if took <= whole else "over all starts of the run"
    console.print(
        f"Training took {clock(took)} ({aside}); peak memory {summary['peak_memory_gib']:.1f} GiB.", highlight=False
    )
    skipped = history.series("skipped_update")[1].tolist() if "skipped_update" in history else []
    if skipped and min(skipped) == 1:
        console.print(
            f"None of the {len(skipped)} updates had a signal: the model is what it was. What to change: "
            f"assay doctor {directory}",
            highlight=False,
        )
    if not summary["finished"]:
        console.print(f"Stopped after step {summary['steps']}. The same command goes on from there.", highlight=False)
    tried = f"assay try {directory}" + ("" if measured else ' --prompt "..."')
    console.print(f"Curve   {pictures[0]}\nModel   {result.model}\nTry it  {tried}", highlight=False)


def clock(seconds: float) -> str:
    """
    >>> clock(248.3)
    '4 min 08 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
