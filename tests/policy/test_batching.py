"""Micro-batch plans: every row once, within the budget, no more micro-batches than needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.policy import ScoringBatch, micro_batch_tokens, plan_micro_batches


@st.composite
def windows(draw):
    prompts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    rows = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, len(prompts) - 1)), min_size=1, max_size=20))
    return prompts, [length for length, _ in rows], [prompt for _, prompt in rows]


@given(windows(), st.integers(1, 400), st.booleans())
def test_every_row_once_and_within_the_budget(window, budget, shared):
    prompts, lengths, row_prompt = window
    plan = plan_micro_batches(prompts, lengths, row_prompt, budget, shared=shared)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        tokens = micro_batch_tokens(prompts, lengths, row_prompt, rows, shared)
        assert tokens <= budget or len(rows) == 1


@given(windows())
def test_a_window_that_fits_is_one_micro_batch_with_every_prompt_once(window):
    prompts, lengths, row_prompt = window
    tokens = sum(prompts[p] for p in set(row_prompt)) + sum(lengths)
    assert plan_micro_batches(prompts, lengths, row_prompt, tokens) == [list(range(len(lengths)))]


def test_a_large_group_is_cut_evenly():
    plan = plan_micro_batches([100], [30, 10, 20, 20, 10, 30], [0] * 6, token_budget=160)
    assert sorted(sum([30, 10, 20, 20, 10, 30][row] for row in rows) for rows in plan) == [60, 60]


def test_without_sharing_rows_of_similar_length_meet():
    plan = plan_micro_batches([1] * 4, [99, 9, 99, 9], [0, 1, 2, 3], token_budget=200, shared=False)
    assert plan == [[0, 2], [1, 3]]


def test_a_budget_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        plan_micro_batches([1], [1], [0], 0)


def test_select_keeps_only_the_prompts_in_use():
    batch = ScoringBatch(tuple(np.arange(n) for n in (2, 3, 4)), tuple(np.arange(n) for n in (5, 6, 7)), (2, 0, 2))
    part = batch.select([2, 0])
    assert [len(prompt) for prompt in part.prompts] == [4]
    assert [len(row) for row in part.rows] == [7, 5]
    assert part.row_prompt == (0, 0)
    assert part.mask().sum() == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((np.arange(2),), (np.arange(2),), ()), "row_prompt"),
        (((np.arange(2),), (np.arange(2),), (1,)), "outside"),
        (((np.arange(0),), (np.arange(2),), (0,)), "prompt 0 has no tokens"),
        (((np.arange(2),), (np.arange(0),), (0,)), "row 0 has no tokens"),
    ],
)
def test_impossible_batches_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScoringBatch(*arguments)
