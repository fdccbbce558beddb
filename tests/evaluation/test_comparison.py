"""Runs compared: settings found by configuration, differences only where seeds and problems support them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from assay.errors import InputError
from assay.evaluation.comparison import band, compare_runs
from assay.evaluation.comparison_page import render
from assay.evaluation.runs import group_settings, read_run
from assay.evaluation.seeds import setting_difference, welch_difference
from assay.evaluation.verdicts import HeldoutLog, read_verdicts


def curve(difficulty, gain):
    return [difficulty, np.clip(difficulty + gain / 2, 0, 1), np.clip(difficulty + gain, 0, 1)]


def objective(loss_type, scale="group"):
    return {"objective": {"loss_type": loss_type, "scale_rewards": scale, "epsilon": 0.2}}


def test_settings_are_what_differs_but_for_the_seed(make_run, difficulty):
    runs = [
        make_run(f"{loss}-{scale}-{seed}", curve(difficulty, 0), seed, config=objective(loss, scale))
        for loss in ("grpo", "dapo")
        for scale in ("group", "none")
        for seed in (0, 1)
    ]
    settings = group_settings([read_run(path) for path in runs])
    assert [setting.label for setting in settings] == [
        "loss_type=grpo, scale_rewards=group",
        "loss_type=grpo, scale_rewards=none",
        "loss_type=dapo, scale_rewards=group",
        "loss_type=dapo, scale_rewards=none",
    ]
    assert all(setting.seeds == [0, 1] for setting in settings)


def test_real_difference_is_found_and_none_is_not_invented(make_run, difficulty):
    runs = [
        make_run(f"{loss}-{seed}", curve(difficulty, gain), seed, config=objective(loss))
        for loss, gain in (("grpo", 0.0), ("dapo", 0.0), ("dr_grpo", 0.3))
        for seed in (0, 1, 2)
    ]
    report = compare_runs(runs)
    assert (report.metric, report.step) == ("heldout/accuracy", 20)
    verdicts = {(pair.first, pair.second): pair.verdict for pair in report.pairs}
    assert verdicts["loss_type=grpo", "loss_type=dapo"] == "not distinguishable"
    assert verdicts["loss_type=grpo", "loss_type=dr_grpo"] == "loss_type=dr_grpo is higher"
    assert {pair.basis for pair in report.pairs} == {"seeds and problems"}
    row = report.rows[2]
    assert row.gain == pytest.approx(0.3, abs=0.1)
    assert row.best_steps == (20, 20, 20)
    json.dumps(report.as_dict())


def test_baseline_narrows_the_simultaneous_intervals(make_run, difficulty):
    runs = [
        make_run(f"{loss}-{seed}", curve(difficulty, 0.1), seed, config=objective(loss))
        for loss in ("grpo", "dapo", "dr_grpo", "bnpo")
        for seed in (0, 1)
    ]
    everyone, few = compare_runs(runs), compare_runs(runs, baseline="=grpo")
    assert (len(everyone.pairs), len(few.pairs)) == (6, 3)
    assert few.pairs[0].interval.width < everyone.pairs[0].interval.width
    with pytest.raises(InputError, match="matches 2 settings"):
        compare_runs(runs, baseline="=d")
    with pytest.raises(InputError, match="matches 0 settings"):
        compare_runs(runs, baseline="sft")


def test_one_seed_compares_the_models_and_says_so(make_run, difficulty):
    runs = [
        make_run("a", curve(difficulty, 0.0), 0, config=objective("grpo")),
        make_run("b", curve(difficulty, 0.4), 1, config=objective("dapo")),
    ]
    report = compare_runs(runs)
    assert report.pairs[0].basis == "problems, one seed"
    assert report.pairs[0].distinguishable
    assert any("not the settings" in warning for warning in report.warnings)


def test_without_verdicts_seeds_alone_decide_and_one_seed_cannot(make_run, difficulty):
    def runs(seeds):
        return [
            make_run(
                f"{loss}-{seed}-of-{len(seeds)}", curve(difficulty, 0.1), seed, verdicts=False, config=objective(loss)
            )
            for loss in ("grpo", "dapo")
            for seed in seeds
        ]

    assert compare_runs(runs((0, 1, 2))).pairs[0].basis == "seeds"
    pair = compare_runs(runs((7,))).pairs[0]
    assert (pair.interval, pair.verdict) == (None, "cannot be told")


def test_runs_of_different_length_meet_at_the_last_common_step(make_run, difficulty):
    short = make_run("short", curve(difficulty, 0.1)[:2], config=objective("grpo"))
    long = make_run("long", curve(difficulty, 0.1), config=objective("dapo"))
    report = compare_runs([short, long])
    assert report.step == 10
    assert any("longer: long" in warning for warning in report.warnings)
    with pytest.raises(InputError, match="last common one is 10"):
        compare_runs([short, long], step=20)
    with pytest.raises(InputError, match="never measured"):
        compare_runs([short, long], metric="heldout/pass_rate")
    assert compare_runs([short, long], metric="reward").warnings


def test_same_seed_twice_is_not_two_repeats(make_run, difficulty):
    runs = [make_run(name, curve(difficulty, 0.1), 0, config=objective("grpo")) for name in ("one", "again")]
    assert any("not independent" in warning for warning in compare_runs(runs).warnings)


def test_bands_say_what_they_are(make_run, difficulty):
    runs = [read_run(make_run(f"r{seed}", curve(difficulty, 0.1), seed, config=objective("grpo"))) for seed in range(3)]
    one, two, three = (group_settings(runs[:count])[0] for count in (1, 2, 3))
    assert band(one, "heldout/accuracy").kind == "95% interval over problems, one seed"
    assert band(two, "heldout/accuracy").kind == "range of two seeds"
    many = band(three, "heldout/accuracy")
    values = np.array([run.history.series("heldout/accuracy")[1] for run in runs])
    half = 4.302653 * values.std(axis=0, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(many.high, np.minimum(many.mean + half, 1), rtol=1e-6)
    assert (many.low >= 0).all()
    assert band(three, "no such metric") is None


def test_verdicts_survive_rewinding_and_torn_lines(make_run, difficulty):
    directory = make_run("r", curve(difficulty, 0.1))
    with open(directory / "heldout.jsonl", "a") as file:
        file.write('{"step": 30, "set": "", "fig')
    before = read_verdicts(directory)["", "accuracy"]
    assert sorted(before) == [0, 10, 20]
    HeldoutLog(directory).rewind(10)
    after = read_verdicts(directory)["", "accuracy"]
    assert sorted(after) == [0, 10]
    np.testing.assert_array_equal(after[10].correct, before[10].correct)


def test_page_is_self_contained_and_escapes_names(make_run, difficulty):
    nasty = {"model": {"path": "<script>alert(1)</script>"}}
    runs = [
        make_run("a", curve(difficulty, 0.1), config=nasty),
        make_run("b", curve(difficulty, 0.1), config={"model": {"path": "plain"}}),
    ]
    page = render(compare_runs(runs))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for outside in ('src="http', 'href="http', "@import", "url(http"):
        assert outside not in page
    assert page.count("<svg") == 2
    assert page == render(compare_runs(runs))


def test_command_line(make_run, difficulty, tmp_path):
    runs = [make_run(f"{loss}", curve(difficulty, 0.1), config=objective(loss)) for loss in ("grpo", "dapo")]
    page = tmp_path / "out" / "page.html"
    done = assay("compare", *runs, "--json", "--html", page, "--plot", tmp_path / "out" / "curves.svg")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metric"] == "heldout/accuracy"
    assert page.read_text().startswith("<!doctype html>")
    shown = assay("compare", *runs)
    assert "loss_type=dapo" in shown.stdout
    wrong = assay("compare", tmp_path / "nothing")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "not a run directory" in wrong.stderr


def assay(*arguments):
    command = [sys.executable, "-m", "assay.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_crossed_difference_by_hand():
    # Two seeds, three problems, no interaction: seed variances 0.02/2 and 0; problems differ by 0.1 exactly.
    before = np.array([[0.2, 0.4, 0.6], [0.4, 0.6, 0.8]])
    after = np.full((2, 3), [0.3, 0.5, 0.7]) + 0.1
    found = setting_difference(before, after)
    assert found.value == pytest.approx(0.1)
    assert found.better == 3
    with pytest.raises(InputError, match="two or more seeds"):
        setting_difference(before[:1], after)
    with pytest.raises(InputError, match="share their problems"):
        setting_difference(before, after[:, :2])


def test_crossed_variance_from_mean_squares():
    """The half-width against the two-way analysis of variance, written out sum by sum."""
    from scipy import stats

    rng = np.random.default_rng(6)
    before = 0.3 * rng.random((3, 40)) + np.array([[0.0], [0.1], [0.05]])
    after = 0.3 * rng.random((3, 40)) + np.array([[0.2], [0.3], [0.0]]) + 0.4 * rng.random(40)
    seed_part = residual = 0.0
    for table in (before, after):
        rows, columns, grand = table.mean(axis=1), table.mean(axis=0), table.mean()
        seed_part += sum((row - grand) ** 2 for row in rows) / 2 / 3
        cells = [(table[i, j] - rows[i] - columns[j] + grand) ** 2 for i in range(3) for j in range(40)]
        residual += sum(cells) / (2 * 39) / (3 * 40)
    change = [*(after.mean(axis=0) - before.mean(axis=0)), 3**-0.5, -(3**-0.5)]
    problem_part = sum((value - sum(change) / 42) ** 2 for value in change) / 41 / 42
    variance = problem_part + seed_part - residual
    assert variance > max(problem_part, seed_part)  # the guard does not decide here
    found = setting_difference(before, after)
    half = (found.interval.high - found.interval.low) / 2
    freedom = variance**2 / (
        problem_part**2 / 39 + sum((table.mean(axis=1).var(ddof=1) / 3) ** 2 / 2 for table in (before, after))
    )
    assert half == pytest.approx(stats.t.ppf(0.975, freedom) * variance**0.5, rel=1e-9)


def test_welch_equals_scipy():
    from scipy import stats

    a, b = np.array([0.3, 0.35, 0.31]), np.array([0.5, 0.41, 0.46, 0.44])
    change, interval = welch_difference(a, b)
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    assert change == pytest.approx(b.mean() - a.mean())
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("spread", [0.02, 0.06])
def test_crossed_interval_covers(seeds, spread):
    rng = np.random.default_rng(8)
    hits, trials = 0, 600
    for _ in range(trials):
        base = 0.1 + 0.8 * rng.random(100)
        tables = [
            np.stack([rng.binomial(8, np.clip(base + shift + rng.normal(0, spread), 0, 1)) / 8 for _ in range(seeds)])
            for shift in (0.0, 0.05)
        ]
        hits += 0.05 in setting_difference(*tables).interval
    assert 0.91 <= hits / trials <= 0.98
