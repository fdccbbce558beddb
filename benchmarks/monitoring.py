"""What watching costs: the time of everything that looks at a run, as a share of its steps, on a real run.

Trains a recipe for some steps and counts the seconds in: metrics of the rollouts, flags, the trainer's values kept for
heat maps, metrics.jsonl, rollouts, console, phases. Held-out evaluation and checkpoints are no part of a step.

    python benchmarks/monitoring.py recipes/quickstart.yaml [--steps 6] [section.key=value ...] [--json]
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import assay
from assay.api import reporting
from assay.monitoring.monitor import Monitor
from assay.rewards import scorer
from assay.training import collate, update

SPENT: dict[str, float] = defaultdict(float)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[name] += time.perf_counter() - started

    return wrapper


def arm() -> None:
    """Wrap everything that only looks."""
    reporting.rollout_metrics = timed("metrics of the rollouts", reporting.rollout_metrics)  # type: ignore[assignment]
    scorer.flag_group = timed("flags", scorer.flag_group)  # type: ignore[assignment]
    for module in (update, collate):
        module.keep_token_values = timed("values kept for heat maps", module.keep_token_values)  # type: ignore[attr-defined]
    for method, name in (("step", "files and console"), ("phase", "phases"), ("advance", "phases")):
        setattr(Monitor, method, timed(name, getattr(Monitor, method)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_intermixed_args()
    arm()
    with tempfile.TemporaryDirectory() as folder:
        fixed = [f"train.steps={given.steps}", f"output_dir={folder}", "eval.prompts=0", "train.checkpoint_every=1000"]
        lines = assay.train(given.recipe, overrides=[*fixed, *given.overrides]).metrics()
    steps = [line["step_time"] for line in lines if "step_time" in line]
    total = sum(steps)
    found = {
        "steps": len(steps),
        "median_step_s": statistics.median(steps),
        "monitoring_s_per_step": {name: seconds / len(steps) for name, seconds in SPENT.items()},
        "share": sum(SPENT.values()) / total,
    }
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{len(steps)} steps, median {found['median_step_s']:.2f} s")
    for name, seconds in sorted(SPENT.items(), key=lambda item: -item[1]):
        print(f"  {name:<28}{1e3 * seconds / len(steps):8.1f} ms a step")
    print(f"monitoring: {found['share']:.2%} of the steps")


if __name__ == "__main__":
    main()
