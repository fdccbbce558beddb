"""Sampling for pass@k: the same samples however the work was cut, interrupted or extended."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from assay.errors import InputError
from assay.evaluation import pass_at_k
from assay.evaluation.passk_report import report, write_report
from assay.evaluation.passk_sampling import Tally, sample_all, tally, units
from assay.records import Completion, Finish, Group, Prompt, Segment

PROMPTS = [Prompt(content=f"problem {index}", token_ids=(index,)) for index in range(19)]


def draw(prompts, n, seed):
    """Texts that depend on the seed, the place in the call and the prompt, as an engine's do."""
    groups = []
    for place, prompt in enumerate(prompts):
        numbers = np.random.default_rng([seed, place]).random(n)
        texts = ["right" if number < (prompt.token_ids[0] + 1) / 25 else f"wrong {number}" for number in numbers]
        segment = Segment(np.arange(3), np.ones(3, bool), np.zeros(3))
        groups.append(Group(prompt, [Completion([segment], Finish.STOP, text) for text in texts]))
    return groups


class Marker:
    def score(self, groups, trainer_state):
        for group in groups:
            for completion in group.completions:
                completion.correct = completion.text == "right"
                completion.reward = float(completion.correct)


def texts(folder):
    rows = [row for file in folder.glob("samples-*.parquet") for row in pq.read_table(file).to_pylist()]
    return {(row["problem"], row["sample"]): row["text"] for row in rows}


def test_units_cover_everything_once():
    cells = [
        (problem, sample)
        for unit in units(19, 40)
        for problem in range(unit.first, unit.first + unit.problems)
        for sample in range(unit.first_sample, unit.first_sample + unit.samples)
    ]
    assert sorted(cells) == [(problem, sample) for problem in range(19) for sample in range(40)]
    assert len({unit.seed(0) for unit in units(19, 40)} | {unit.seed(1) for unit in units(19, 40)}) == 2 * len(
        units(19, 40)
    )


def test_shards_together_are_the_whole(tmp_path):
    sample_all(draw, Marker(), PROMPTS, 40, tmp_path / "one")
    for index in (2, 0, 1):
        sample_all(draw, Marker(), PROMPTS, 40, tmp_path / "three", shard=(index, 3))
    assert texts(tmp_path / "three") == texts(tmp_path / "one")
    wrong = [text for text in texts(tmp_path / "one").values() if text != "right"]
    assert len(set(wrong)) == len(wrong)  # no two units share random numbers
    counts = tally(tmp_path / "one", 40)
    np.testing.assert_array_equal(counts.n, 40)
    assert counts.c.sum() == sum(text == "right" for text in texts(tmp_path / "one").values())
    assert counts.c.sum() / (19 * 40) == pytest.approx(10 / 25, abs=0.05)


def test_missing_shards_are_named(tmp_path):
    sample_all(draw, Marker(), PROMPTS, 40, tmp_path, shard=(0, 3))
    with pytest.raises(InputError, match="6 of 9 sample files are missing"):
        tally(tmp_path, 40)
    with pytest.raises(InputError, match="shard 3 of 3"):
        sample_all(draw, Marker(), PROMPTS, 40, tmp_path, shard=(3, 3))
    with pytest.raises(InputError, match=r"holds no pass@k samples"):
        tally(tmp_path / "nowhere", 40)


def test_more_samples_keep_those_that_exist(tmp_path):
    sample_all(draw, Marker(), PROMPTS, 16, tmp_path)
    before = texts(tmp_path)
    sample_all(draw, Marker(), PROMPTS, 48, tmp_path)
    after = texts(tmp_path)
    assert len(after) == 3 * len(before)
    assert before.items() <= after.items()
    assert (tally(tmp_path, 16).n == 16).all()


def test_other_settings_are_refused(tmp_path):
    sample_all(draw, Marker(), PROMPTS, 8, tmp_path, settings={"temperature": 1.0})
    with pytest.raises(InputError, match=r"begun with temperature = 1\.0, now 0\.7"):
        sample_all(draw, Marker(), PROMPTS, 8, tmp_path, settings={"temperature": 0.7})
    with pytest.raises(InputError, match="begun with problems"):
        sample_all(draw, Marker(), PROMPTS[:5], 8, tmp_path, settings={"temperature": 1.0})


KILLED = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("here", {here!r})
here = importlib.util.module_from_spec(spec)
spec.loader.exec_module(here)
def slow(prompts, n, seed):
    time.sleep(0.15)
    return here.draw(prompts, n, seed)
here.sample_all(slow, here.Marker(), here.PROMPTS, 40, Path({folder!r}))
"""


def test_killed_and_resumed_is_the_same(tmp_path):
    sample_all(draw, Marker(), PROMPTS, 40, tmp_path / "whole")
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED.format(here=__file__, folder=str(folder))]
    with subprocess.Popen(command) as process:
        for _ in range(600):
            if len(list(folder.glob("samples-*.parquet"))) >= 3:
                break
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert 3 <= len(list(folder.glob("samples-*.parquet"))) < 9
    drawn = []

    def counted(prompts, n, seed):
        drawn.append(seed)
        return draw(prompts, n, seed)

    sample_all(counted, Marker(), PROMPTS, 40, folder)
    assert 0 < len(drawn) <= 6  # what was finished is not sampled again
    assert texts(folder) == texts(tmp_path / "whole")


def test_report_of_two_models(tmp_path):
    keys = tuple(f"p{index}" for index in range(50))
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 1.0, 50)
    n = np.full(50, 64)
    tallies = {
        "base": Tally(keys, n, rng.binomial(64, p), 0),
        "trained": Tally(keys, n, rng.binomial(64, np.minimum(1, 1.6 * p)), 2),
    }
    found = report(tallies, ks=[1, 8, 32])
    assert found.pass_at_k["base"].at(8)[0] == pytest.approx(pass_at_k(64, tallies["base"].c, 8).mean())
    assert found.change.low[0] > 0
    assert found.warnings == ("trained: 2 samples got no verdict and are left out",)
    assert any("fewer than 2k" in text for text in report(tallies).warnings)
    write_report(found, tallies, tmp_path)
    stored = json.loads((tmp_path / "passk.json").read_text())
    assert stored["change"]["ks"] == [1, 8, 32]
    assert pq.read_table(tmp_path / "problems.parquet").num_rows == 100
    assert (tmp_path / "passk.svg").read_text().count("trained") >= 1


def test_report_leaves_out_what_was_not_judged():
    keys = ("a", "b", "c")
    found = report({"base": Tally(keys, np.array([8, 0, 6]), np.array([4, 0, 6]), 10)})
    assert (found.problems, found.n) == (2, 6)
    assert found.pass_at_k["base"].ks == (1, 2, 4)
    assert any("1 problems without a judged sample" in text for text in found.warnings)
    with pytest.raises(InputError, match="no problem has a judged sample"):
        report({"base": Tally(keys, np.zeros(3, int), np.zeros(3, int), 24)})
    with pytest.raises(InputError, match=r"pass@8"):
        report({"base": Tally(keys, np.array([8, 0, 6]), np.array([4, 0, 6]), 10)}, ks=[8])
    with pytest.raises(InputError, match="different problems"):
        report({"a": Tally(keys, np.ones(3, int), np.ones(3, int), 0), "b": Tally(keys[:2], np.ones(2), np.ones(2), 0)})
