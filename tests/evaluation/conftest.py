"""Run directories as `assay train` leaves them, written with the library's own writers."""

import json

import numpy as np
import pytest
import yaml

from assay.evaluation import HeldoutLog, HeldoutResult, HeldoutRound
from assay.monitoring.store import MetricsLog

KEYS = tuple(f"prompt-{index:03d}" for index in range(100))


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, rates at each evaluation, seed, **config): verdicts drawn from per-problem rates [E, 100]."""

    def write(name, rates, seed=0, every=10, verdicts=True, samples=1, config=None, **metrics):
        directory = tmp_path / name
        directory.mkdir()
        tree = {"name": name, "output_dir": str(tmp_path), "seed": seed, **(config or {})}
        (directory / "config.yaml").write_text(yaml.safe_dump(tree))
        rng = np.random.default_rng(1000 + seed)
        log, heldout = MetricsLog(directory / "metrics.jsonl"), HeldoutLog(directory)
        for index, rate in enumerate(rates):
            step = index * every
            result = HeldoutResult(KEYS, rng.binomial(samples, rate), np.full(100, samples), samples)
            line = {"heldout/accuracy": result.accuracy}
            if result.interval is not None:
                line |= {"heldout/accuracy_low": result.interval.low, "heldout/accuracy_high": result.interval.high}
            log.append(step, line)
            if verdicts:
                heldout.append(HeldoutRound(step, {("", "accuracy"): result}, {}, False))
            for offset in range(1, every + 1):
                log.append(
                    step + offset, {"reward": float(np.mean(rate)), "num_tokens": 1e4 * (step + offset), **metrics}
                )
        log.close()
        (directory / "summary.json").write_text(json.dumps({"finished": True, "steps": every * len(rates)}))
        return directory

    return write


@pytest.fixture
def difficulty():
    """Per-problem pass rates [100] of a middling model."""
    return np.random.default_rng(4).beta(2, 2, 100)
