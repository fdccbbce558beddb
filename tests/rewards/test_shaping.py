"""Shaping terms: numbers from the papers and from TRL's own functions on the same inputs."""

import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import InputError
from assay.records import Outcome
from assay.rewards import RewardSpec, Scorer
from assay.rewards.shaping import Cosine, Format, Language, LengthCost, Overlong, Repetition

trl_rewards = pytest.importorskip("trl.rewards")


@pytest.mark.parametrize(
    ("style", "text", "paid"),
    [
        ("think", "<think>\nhm\n</think>\nanswer", True),
        ("think", "hm\n</think>\nanswer", True),
        ("think", "  <think>hm</think>answer", True),
        ("think", "<think></think>answer", False),
        ("think", "<think>hm</think>", False),
        ("think", "<think>hm", False),
        ("think", "answer", False),
        ("think", "<think>a</think>b<think>c</think>d", False),
        ("think", "text first <think>a</think>b", False),
        ("think", "<think><think>a</think>b", False),
        ("box", "so \\boxed{5}", True),
        ("box", "so \\boxed{}", False),
        ("box", "so \\boxed{?}", False),
        ("box", "so \\boxed{answer}", False),
        ("box", "#### 5", False),
        ("think_box", "<think>a</think>\\boxed{5}", True),
        ("think_box", "<think>\\boxed{5}</think>so", False),
        ("answer_tag", "<answer>5</answer>", True),
        ("answer_tag", "<answer>\\boxed{5}</answer>", True),
        ("answer_tag", "\\boxed{5}", False),
        ("think_answer", "a</think><answer>5</answer>", True),
    ],
)
def test_format_is_a_small_bonus(style, text, paid):
    judged = Format(style).judge(text, None, {})
    assert judged.outcome is Outcome.SCORED
    assert judged.reward == (0.1 if paid else 0.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 130), min_size=1, max_size=8), st.integers(0, 100))
def test_soft_overlong_punishment_is_trls(lengths, cache):
    ids = [[1] * length for length in lengths]
    expected = trl_rewards.get_soft_overlong_punishment(100, cache)(completion_ids=ids)
    if all(lengths):
        assert Overlong(100, cache)(completion_ids=ids) == pytest.approx(expected)


def test_soft_overlong_punishment_by_hand():
    """DAPO eq. 13 with L_max 100 and L_cache 20."""
    overlong = Overlong(100, 20)
    assert [overlong.punishment(n) for n in (80, 81, 90, 100, 101)] == [0.0, -0.05, -0.5, -1.0, -1.0]
    with pytest.raises(InputError, match="cache is 200"):
        Overlong(100, 200)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(2, 4))
def test_repetition_is_trls(ids, size):
    expected = trl_rewards.get_repetition_penalty_reward(ngram_size=size, max_penalty=-1.0)(completion_ids=[ids])
    assert Repetition(size)(completion_ids=[ids]) == pytest.approx(expected)


def test_repetition_by_hand():
    assert Repetition(3)(completion_ids=[[5] * 6, [1, 2, 1, 2, 1, 2], [1, 2], [1, 2, 3, 4]]) == [-0.75, -0.5, 0.0, 0.0]


def test_cosine_by_hand():
    """Quarter of the way: (1 + cos(pi/4)) / 2 of the range is left."""
    cosine = Cosine(100, verifier="exact_match")
    at = cosine(completions=["a", "b", "a"], completion_ids=[[1] * 25, [1] * 25, [1] * 200], gold=["a"] * 3)
    share = (1 + math.cos(math.pi / 4)) / 2
    assert at[0].reward == pytest.approx(0.5 + 0.5 * share)
    assert at[1].reward == pytest.approx(-0.5 - 0.5 * share)
    assert at[2].reward == pytest.approx(0.5)
    assert [judged.outcome for judged in at] == [Outcome.CORRECT, Outcome.WRONG, Outcome.CORRECT]
    with pytest.raises(InputError, match="no verdicts"):
        Cosine(100, verifier="format")


def test_a_cost_per_token_past_a_budget():
    cost = LengthCost(10, per_token=0.1, max_cost=0.35)
    assert cost(completion_ids=[[1] * 10, [1] * 12, [1] * 50]) == pytest.approx([0.0, -0.2, -0.35])


def test_language_counts_words_by_script():
    latin = Language("latin")
    assert latin.judge("All of it is English.", None, {}).reward == 1.0
    assert latin.judge("Half 一半 is 中文", None, {}).reward == pytest.approx(2 / 6)
    assert latin.judge("$x + \\text{一}$ and \\(y\\) ```一二三```", None, {}).reward == 1.0
    assert Language("han").judge("中文 only", None, {}).reward == pytest.approx(2 / 3)
    assert latin.judge("1 + 2 = 3", None, {}).reward == 0.0


def test_lengths_are_not_guessed(make_group):
    group = make_group(["text"], token_ids=[[]])
    with (
        pytest.raises(InputError, match="completion_ids"),
        Scorer([RewardSpec("overlong", options={"max_length": 9, "cache": 1})]) as scorer,
    ):
        scorer.score([group])


def test_trls_own_functions_run_unchanged(make_group):
    group = make_group(["<think>a</think>b", "b"], token_ids=[[1] * 90, [5] * 6])
    messages = make_group(
        [[{"role": "assistant", "content": "<think>a</think>b"}]], prompt=[{"role": "user", "content": "q"}]
    )
    functions = [trl_rewards.get_soft_overlong_punishment(100, 20), trl_rewards.get_repetition_penalty_reward(3, -1.0)]
    with Scorer(functions) as scorer:
        scorer.score([group])
        assert [c.reward for c in group.completions] == pytest.approx([-0.5 - (1 - 1 / 88), -0.75])
    with Scorer([trl_rewards.think_format_reward]) as scorer:
        scorer.score([messages])
        assert messages.completions[0].reward == 1.0


def test_shaping_functions_are_picklable():
    for made in (Overlong(10, 2), Repetition(), LengthCost(5), Format(), Language(), Cosine(10)):
        assert pickle.loads(pickle.dumps(made)).__name__ == made.__name__
