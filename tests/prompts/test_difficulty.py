"""`assay filter`: estimates that survive interruption, and decisions that give nothing up on one look."""

import json
import math

import numpy as np
import pytest

from assay.errors import InputError
from assay.prompts import Curriculum, CurriculumOptions, Estimate, FilterOptions, Store, apply_filter, estimate
from assay.prompts.difficulty import judge

IDENTITY = {"model": "tiny", "samples": 8}


def wilson(right, total, z=1.959963984540054):
    """Wilson 1927, written out."""
    rate = right / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    return centre - half, centre + half


@pytest.mark.parametrize(("right", "wrong"), [(1, 7), (4, 4), (0, 8), (16, 0)])
def test_interval(right, wrong):
    found = Estimate(right, wrong).interval()
    assert found == pytest.approx(wilson(right, right + wrong), abs=1e-9)
    assert Estimate(unjudged=8).interval() == (0.0, 1.0)


def by_rate(rates, make_group, calls=None):
    """A sampler whose answers depend on (prompt, look) alone, as the engine's do."""

    def sample(prompts, k, look):
        if calls is not None:
            calls.extend((prompt.content_key, look) for prompt in prompts)
        groups = []
        for prompt in prompts:
            index = int(prompt.content_key[1:])
            right = int(np.random.default_rng([index, look]).binomial(k, rates[index]))
            groups.append(make_group(prompt, right, k - right))
        return groups

    return sample


def test_only_uniform_prompts_are_looked_at_again(tmp_path, make_prompts, make_group):
    prompts, calls = make_prompts(3), []
    store = Store(tmp_path / "c.jsonl", IDENTITY)
    list(estimate(prompts, by_rate([0.0, 0.5, 1.0], make_group, calls), store, FilterOptions(retests=2)))
    assert sorted(calls) == [("p0", 0), ("p0", 1), ("p0", 2), ("p1", 0), ("p2", 0), ("p2", 1), ("p2", 2)]
    assert (store.of(prompts[0]).wrong, store.of(prompts[2]).right) == (24, 24)


@pytest.mark.parametrize("stop", [1, 2, 5, 7])
def test_an_interrupted_estimate_goes_on_and_repeats_at_most_the_torn_batch(tmp_path, make_prompts, make_group, stop):
    prompts, rates = make_prompts(10), [index / 9 for index in range(10)]
    options = FilterOptions(batch=3)
    whole = Store(tmp_path / "whole.jsonl", IDENTITY)
    list(estimate(prompts, by_rate(rates, make_group), whole, options))

    first, path = [], tmp_path / "cut.jsonl"
    steps = estimate(prompts, by_rate(rates, make_group, first), Store(path, IDENTITY), options)
    for _ in range(stop):
        next(steps)
    steps.close()
    with open(path, "a") as file:
        file.write('{"key": "p9", "rig')  # what a killed writer leaves
    second = []
    again = Store(path, IDENTITY)
    assert again.estimates == {key: found for key, found in again.estimates.items() if found.looks}
    list(estimate(prompts, by_rate(rates, make_group, second), again, options))
    assert again.estimates == whole.estimates
    assert not set(first) & set(second)
    assert Store(path, IDENTITY).estimates == whole.estimates


def test_counts_of_something_else_are_refused(tmp_path):
    Store(tmp_path / "c.jsonl", IDENTITY)
    with pytest.raises(InputError, match="would count"):
        Store(tmp_path / "c.jsonl", {**IDENTITY, "model": "other"})
    (tmp_path / "d.jsonl").write_text("no counts\n")
    with pytest.raises(InputError, match="does not hold counts"):
        Store(tmp_path / "d.jsonl", IDENTITY)


@pytest.mark.parametrize(
    ("found", "changes", "keep", "reason"),
    [
        (Estimate(4, 4), {}, True, "kept"),
        (Estimate(0, 8), {}, True, "unsolved"),  # p = 0.05 shows this two times in three
        (Estimate(0, 16), {}, True, "unsolved"),
        (Estimate(0, 73), {}, False, "hopeless"),  # Wilson's upper bound 3.84/(73+3.84) is just below 0.05
        (Estimate(0, 72), {}, True, "unsolved"),
        (Estimate(8, 0), {}, False, "solved"),
        (Estimate(1, 7), {"low": 0.2}, False, "below"),
        (Estimate(7, 1), {"high": 0.8}, False, "above"),
        (Estimate(0, 16), {"low": 0.2}, False, "hopeless"),  # upper bound 0.194 lies below the wanted range
        (Estimate(0, 0, unjudged=8), {}, True, "unjudged"),
    ],
)
def test_decisions(found, changes, keep, reason):
    verdict = judge(found, FilterOptions(**changes), weight=0.3)
    assert (verdict.keep, verdict.reason) == (keep, reason)
    assert verdict.weight == (0.3 if reason in ("unsolved", "hopeless", "solved", "unjudged") else 1.0)


def test_rows_summary_and_the_way_back_into_a_curriculum(tmp_path, make_prompts, make_group):
    rng = np.random.default_rng(0)
    rates = np.where(rng.random(300) < 0.6, rng.choice([0.0, 1.0], 300), rng.uniform(0.2, 0.8, 300))
    prompts = make_prompts(300, name=[f"row {index}" for index in range(300)])
    store = Store(tmp_path / "c.jsonl", IDENTITY)
    list(estimate(prompts, by_rate(rates, make_group), store, FilterOptions(retests=1)))
    found = apply_filter(prompts, store, FilterOptions(), generations=(4, 8, 32))
    assert len(found.kept) + len(found.aside) == 300 == found.summary["prompts"]
    assert {row["assay_reason"] for row in found.aside} == {"solved"}
    assert found.summary["reasons"]["unsolved"] == sum(rates == 0)
    for generations in (4, 8, 32):
        truth = np.mean(1 - rates**generations - (1 - rates) ** generations)
        assert found.summary["mixed"][str(generations)]["before"] == pytest.approx(truth, abs=0.05)
        assert found.summary["mixed"][str(generations)]["after"] > found.summary["mixed"][str(generations)]["before"]
    row = found.kept[0]
    assert row["name"].startswith("row ")
    weights = [row["assay_weight"] for row in found.kept]
    assert all(weight < 0.2 for weight, row in zip(weights, found.kept) if row["assay_reason"] == "unsolved")
    assert all(weight == 1 for weight, row in zip(weights, found.kept) if row["assay_reason"] == "kept")
    again = make_prompts(
        len(found.kept), **{key: [row[key] for row in found.kept] for key in ("assay_right", "assay_wrong")}
    )
    curriculum = Curriculum(again, CurriculumOptions(), num_generations=8, seed=0)
    drawn = curriculum.draw(40)
    assert sum(prompt.row["assay_right"] == 0 for prompt in drawn) < 0.2 * 40  # unsolved ones are 43% of the rows


def test_counts_file_is_plain_and_starts_with_what_it_is_of(tmp_path, make_prompts, make_group):
    store = Store(tmp_path / "c.jsonl", IDENTITY)
    store.add([make_group(make_prompts(1)[0], 3, 4, none=1)])
    lines = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert lines == [{"of": IDENTITY}, {"key": "p0", "right": 3, "wrong": 4, "unjudged": 1, "looks": 1}]


@pytest.mark.parametrize("change", [{"samples": 1}, {"low": 0.5, "high": 0.5}, {"retests": -1}, {"give_up": 2}])
def test_bad_options(change):
    with pytest.raises(InputError):
        FilterOptions(**change)
