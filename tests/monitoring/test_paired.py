"""The paired test behind HK01: McNemar's counts, an interval that never closes on nothing, verdicts from the file."""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from assay.evaluation.heldout import HeldoutResult
from assay.evaluation.progress import HeldoutRound
from assay.evaluation.verdicts import HeldoutLog
from assay.monitoring.doctor.paired import change, paired_change


def test_counts_and_p_are_mcnemars():
    found = change(np.array([1] * 20 + [-1] * 8 + [0] * 172))
    assert (found.prompts, found.better, found.worse) == (200, 20, 8)
    assert found.value == pytest.approx(0.06)
    assert found.p == pytest.approx(binomtest(20, 28).pvalue)
    # Agresti and Min by hand: b = 20.5, c = 8.5, N = 202; d = 12 / 202.
    assert found.half == pytest.approx(1.959964 * np.sqrt(29 - 12**2 / 202) / 202, abs=1e-6)


def test_no_discordant_pair_leaves_doubt():
    found = change(np.zeros(12))
    assert found.p == 1.0
    assert found.half == pytest.approx(1.959964 / 14, abs=1e-5)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        draws = rng.choice([1, -1, 0], p=[0.15, 0.1, 0.75], size=60)
        found = change(draws.astype(float))
        inside += abs(found.value - 0.05) <= found.half
    assert 0.93 <= inside / 2000 <= 0.985


def write(folder, rows):
    log = HeldoutLog(folder)
    for step, correct in rows.items():
        keys = tuple(f"k{index}" for index in range(len(correct)))
        result = HeldoutResult(keys, np.array(correct), np.ones(len(correct), int), 1)
        log.append(HeldoutRound(step, {("", "accuracy"): result, ("other", "accuracy"): result}, {}, False))


def test_what_evaluation_writes_is_what_is_paired(tmp_path):
    write(tmp_path, {0: [0, 0, 0, 1], 10: [0, 0, 1, 1], 20: [1, 0, 1, 1], 30: [1, 1, 1, 0]})
    found = paired_change(tmp_path, "accuracy")
    assert (found.prompts, found.better, found.worse) == (4, 3, 1)
    assert found.value == 0.5
    assert paired_change(tmp_path, "pass_rate") is None


def test_few_evaluations_or_none_are_no_test(tmp_path):
    assert paired_change(tmp_path, "accuracy") is None
    write(tmp_path, {0: [0, 1], 10: [1, 1], 20: [1, 1]})
    assert paired_change(tmp_path, "accuracy") is None
    with open(tmp_path / "heldout.jsonl", "a") as file:
        file.write(json.dumps({"step": 30, "set": "", "figure": "accuracy"}) + '\n{"torn')
    assert paired_change(tmp_path, "accuracy") is None
