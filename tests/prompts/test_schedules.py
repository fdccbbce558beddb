"""Schedules at their ends and in between."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import InputError
from assay.prompts import Schedule, reward_curriculum


def test_shapes_by_hand():
    linear = Schedule(1.0, 0.0, to_step=100)
    assert [linear.at(step) for step in (0, 25, 100, 500)] == [1.0, 0.75, 0.0, 0.0]
    cosine = Schedule(0.0, 8.0, to_step=12, from_step=4, shape="cosine")
    assert [cosine.at(step) for step in (0, 4, 8, 12)] == pytest.approx([0.0, 0.0, 4.0, 8.0])
    assert cosine.at(6) == pytest.approx(8 * (1 - 2**-0.5) / 2)
    jump = Schedule(256, 512, to_step=10, shape="jump")
    assert [jump.at(step) for step in (0, 9, 10, 11)] == [256, 256, 512, 512]


@given(
    st.floats(-5, 5),
    st.floats(-5, 5),
    st.integers(0, 50),
    st.integers(1, 50),
    st.sampled_from(["linear", "cosine", "jump"]),
)
def test_values_stay_between_start_and_end_and_move_one_way(start, end, begin, length, shape):
    schedule = Schedule(start, end, from_step=begin, to_step=begin + length, shape=shape)
    values = [schedule.at(step) for step in range(begin + length + 5)]
    assert values[0] == pytest.approx(start if begin + length > 0 else end)
    assert values[-1] == pytest.approx(end)
    sign = 1 if end >= start else -1
    assert all(sign * (later - earlier) >= -1e-9 for earlier, later in pairwise(values))


def test_weights_and_limits_at_a_step():
    plan = reward_curriculum(
        {"format": {"start": 1.0, "end": 0.0, "to_step": 10}},
        {"max_completion_length": {"start": 100, "end": 201, "to_step": 10}},
        ["format", "math"],
    )
    assert plan.weights_at(5) == {"format": 0.5}
    assert plan.limits_at(5) == {"max_completion_length": 150}
    assert plan.metrics(10) == {"curriculum/weight/format": 0.0, "curriculum/max_completion_length": 201.0}


@pytest.mark.parametrize(
    ("weights", "limits", "says"),
    [
        ({"formt": {"start": 1, "end": 0, "to_step": 1}}, {}, r"reward_weights\.formt .*known: format"),
        ({}, {"length": {"start": 1, "end": 0, "to_step": 1}}, r"limits\.length .*max_completion_length"),
        ({"format": {"start": 1, "end": 0, "to_stp": 1}}, {}, "did you mean to_step"),
        ({"format": {"start": 1, "end": 0}}, {}, "lacks to_step"),
        ({"format": {"start": 1, "end": 0, "to_step": 0}}, {}, "step 0 to step 0"),
        ({"format": {"start": 1, "end": 0, "to_step": 5, "shape": "steep"}}, {}, "shape 'steep'"),
    ],
)
def test_bad_schedules_are_named(weights, limits, says):
    with pytest.raises(InputError, match=says):
        reward_curriculum(weights, limits, ["format"])
