"""`assay fit` reads run directories, puts evaluations at their compute, and quotes a ceiling only when it is known."""

import json
import subprocess
import sys

import numpy as np
import pytest

from assay.errors import InputError
from assay.evaluation import sigmoid
from assay.evaluation.scaling import fit_runs
from assay.monitoring.store import MetricsLog


def write(folder, points, tokens_per_step=1000.0, ceiling=0.61, error=0.004, seed=0, every=10):
    """A run whose held-out accuracy follows a sigmoid with Cmid of 1e5 tokens."""
    folder.mkdir()
    (folder / "config.yaml").write_text(
        f"seed: {seed}\nobjective: {{loss_type: {'grpo' if ceiling > 0.6 else 'dapo'}}}\n"
    )
    rng, log = np.random.default_rng(seed), MetricsLog(folder / "metrics.jsonl")
    for step in range(points * every + 1):
        if step:
            log.append(step, {"reward": 0.5, "num_tokens": step * tokens_per_step, "step_time": 2.0})
        if step % every == 0:
            score = float(sigmoid(step * tokens_per_step, ceiling, 1.9, 1e5, 0.2)) + rng.normal(0, error)
            half = 1.96 * error
            log.append(
                step,
                {
                    "heldout/accuracy": score,
                    "heldout/accuracy_low": score - half,
                    "heldout/accuracy_high": score + half,
                },
            )
    log.close()
    return folder


def assay(*arguments):
    command = [sys.executable, "-m", "assay.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_finds_the_ceiling_of_a_long_run(tmp_path):
    found = fit_runs([write(tmp_path / "a", points=60)])
    (fit,) = found.fits.values()
    assert fit.identified
    assert pytest.approx(0.61, abs=0.01) == fit.A
    assert fit.Cmid == pytest.approx(1e5, rel=0.05)
    assert pytest.approx(0.2, abs=0.01) == fit.R0
    assert fit.points == 61
    assert fit.reach == pytest.approx(6, rel=0.05)


def test_floating_point_operations(tmp_path):
    run = write(tmp_path / "a", points=60)
    with pytest.raises(InputError, match="how many parameters"):
        fit_runs([run], compute="flops")
    with open(run / "config.yaml", "a") as file:
        file.write("measured: {parameters: 135000000}\n")
    (flops,) = fit_runs([run], compute="flops").fits.values()
    (tokens,) = fit_runs([run]).fits.values()
    assert flops.Cmid == pytest.approx(8 * 135e6 * tokens.Cmid, rel=1e-3)


def test_compute_columns(tmp_path):
    run = write(tmp_path / "a", points=60)
    fits = {name: next(iter(fit_runs([run], compute=name).fits.values())) for name in ("num_tokens", "seconds", "step")}
    assert fits["step"].Cmid == pytest.approx(fits["num_tokens"].Cmid / 1000, rel=1e-3)
    assert fits["seconds"].Cmid == pytest.approx(2 * fits["step"].Cmid, rel=1e-3)
    with pytest.raises(InputError, match="compute is 'dollars'"):
        fit_runs([run], compute="dollars")
    with pytest.raises(InputError, match="never measured"):
        fit_runs([run], metric="heldout/reward")


def test_seeds_are_fitted_together_and_settings_compared(tmp_path):
    runs = [
        write(tmp_path / f"{ceiling}-{seed}", 40, ceiling=ceiling, seed=seed)
        for ceiling in (0.61, 0.5)
        for seed in (0, 1)
    ]
    found = fit_runs(runs)
    assert [fit.points for fit in found.fits.values()] == [82, 82]
    (pair,) = found.comparisons
    assert (pair.by, pair.better) == ("A", "loss_type=grpo")


def test_command_line(tmp_path):
    long, short = write(tmp_path / "long", points=60), write(tmp_path / "short", points=8, seed=3)
    done = assay("fit", long, "--json", "--plot", tmp_path / "fit.svg")
    assert done.returncode == 0, done.stderr
    (fit,) = json.loads(done.stdout)["fits"].values()
    assert fit["identified"] is True
    assert (tmp_path / "fit.svg").read_text().startswith("<svg")
    early = assay("fit", short)
    assert early.returncode == 1
    assert "not identified" in early.stdout
    with pytest.raises(InputError, match="5 points"):
        fit_runs([write(tmp_path / "few", points=3)])


def test_scatter_between_seeds_widens_the_interval(tmp_path):
    """Curves that are smooth but end at different heights: points of one run err together."""
    alike = [write(tmp_path / f"alike-{seed}", 60, ceiling=0.61, seed=seed) for seed in range(3)]
    apart = [write(tmp_path / f"apart-{seed}", 60, ceiling=0.61 + 0.05 * seed, seed=seed) for seed in range(3)]
    (close,), (wide,) = (fit_runs(runs).fits.values() for runs in (alike, apart))
    assert close.identified
    assert not wide.identified
    # The three ceilings are 0.61, 0.66, 0.71: t(2) * sd / sqrt(3) = 4.303 * 0.05 / 1.732.
    assert wide.interval.high - wide.A == pytest.approx(0.124, abs=0.01)
