"""Metrics against numbers computed by hand, and the four that TRL gets wrong."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.monitoring.metrics import merge, repetition, rollout_metrics, update_metrics, within_group_correlation
from assay.records import Completion, Finish, Judgement, Outcome, Segment, VersionSpan


def test_lengths_by_ending_and_by_correctness(completion, group):
    metrics = rollout_metrics(
        [
            group([completion(2, 1.0, True), completion(4, 0.0, False), completion(10, 0.0, False, Finish.LENGTH)]),
            group([completion(6, 1.0, True), completion(8, 0.0, False, Finish.ABORT)]),
        ]
    )
    assert metrics["completions/mean_length"] == 6.0
    assert (metrics["completions/min_length"], metrics["completions/max_length"]) == (2.0, 10.0)
    assert metrics["completions/clipped_ratio"] == 0.2
    assert metrics["completions/aborted_ratio"] == 0.2
    assert metrics["completions/mean_terminated_length"] == 4.0
    assert metrics["completions/max_terminated_length"] == 6.0
    assert metrics["completions/mean_length_correct"] == 4.0
    assert metrics["completions/mean_length_wrong"] == pytest.approx(22 / 3)
    assert metrics["completions/total_tokens"] == 30.0
    assert metrics["num_prompt_tokens"] == 15.0


def test_lengths_count_only_what_the_policy_wrote(group):
    segment = Segment(np.arange(5), np.array([1, 1, 0, 0, 1], bool), np.array([-1.0, -2.0, np.nan, np.nan, -3.0]))
    metrics = rollout_metrics([group([Completion([segment], Finish.STOP, "x")])])
    assert metrics["completions/mean_length"] == 3.0
    assert metrics["sampling/entropy"] == 2.0
    assert metrics["sampling/missing_frac"] == 0.0


def test_what_was_not_measured_is_absent(completion, group):
    metrics = rollout_metrics([group([completion(finish=Finish.LENGTH, reward=None, outcome=Outcome.ERROR)])])
    for name in ("completions/mean_terminated_length", "reward", "accuracy", "rewards/math/mean", "staleness/mean"):
        assert name not in metrics
    assert rollout_metrics([]) == {}
    assert all(math.isfinite(value) for value in metrics.values())


def test_zero_std_comes_from_equal_raw_rewards_not_from_a_float_std(completion, group):
    # 0.1 three times has a float std of about 1e-17; the group is nevertheless without signal.
    flat = group([completion(reward=0.1, correct=False) for _ in range(3)])
    mixed = group([completion(reward=0.1, correct=False), completion(reward=0.1 + 1e-9, correct=False)])
    assert rollout_metrics([flat, mixed])["frac_reward_zero_std"] == 0.5


def test_decoupled_rewards_have_signal_where_any_function_varies(group):
    def two(first, second):
        judgements = {"a": Judgement(Outcome.SCORED, first), "b": Judgement(Outcome.SCORED, second)}
        segment = Segment(np.arange(3), np.ones(3, bool), np.zeros(3))
        return Completion([segment], Finish.STOP, "x", judgements, first + second)

    groups = [group([two(0.0, 1.0), two(1.0, 0.0)])]
    assert rollout_metrics(groups)["frac_reward_zero_std"] == 1.0
    assert rollout_metrics(groups, decoupled=True)["frac_reward_zero_std"] == 0.0


def test_groups_split_by_verdict(completion, group):
    right, wrong = completion(reward=1.0, correct=True), completion(reward=0.0, correct=False)
    unknown = completion(reward=None, correct=None, outcome=Outcome.TIMEOUT)
    metrics = rollout_metrics(
        [group([right, right]), group([wrong, wrong, unknown]), group([right, wrong]), group([unknown, unknown])]
    )
    assert metrics["groups/frac_all_correct"] == pytest.approx(1 / 3)
    assert metrics["groups/frac_all_wrong"] == pytest.approx(1 / 3)
    assert metrics["groups/frac_mixed"] == pytest.approx(1 / 3)
    assert metrics["accuracy"] == 0.5
    assert metrics["rewards/none_frac"] == pytest.approx(3 / 9)
    assert metrics["verifier/timeout_frac"] == pytest.approx(3 / 9)


def test_reward_mean_leaves_out_what_could_not_be_judged(completion, group):
    groups = [group([completion(reward=1.0, correct=True), completion(reward=None, outcome=Outcome.ERROR)])]
    metrics = rollout_metrics(groups)
    assert metrics["reward"] == 1.0
    assert metrics["rewards/math/mean"] == 1.0
    assert metrics["rewards/math/none_frac"] == 0.5
    assert "reward_std" not in metrics


def test_rewards_that_do_not_apply_do_not_count(completion, group):
    skipped = completion(reward=None, outcome=Outcome.NOT_APPLICABLE)
    metrics = rollout_metrics([group([completion(reward=1.0, correct=True), skipped])])
    assert metrics["rewards/math/none_frac"] == 0.0
    assert metrics["verifier/error_frac"] == 0.0


def test_stds_are_bessel_corrected_over_the_batch(completion, group):
    rewards = [0.0, 0.0, 1.0, 1.0]
    metrics = rollout_metrics([group([completion(reward=value, correct=bool(value)) for value in rewards])])
    assert metrics["reward_std"] == pytest.approx(math.sqrt(1 / 3))
    assert metrics["rewards/math/std"] == pytest.approx(math.sqrt(1 / 3))


def test_prompts_count_alike_where_screening_made_groups_unequal(completion, group):
    """Two answers, both wrong, and four of which two are right: over completions 1/3, over prompts (0 + 1/2) / 2."""
    short = group([completion(reward=0.0, correct=False) for _ in range(2)])
    whole = group([completion(reward=float(n % 2), correct=bool(n % 2)) for n in range(4)])
    metrics = rollout_metrics([short, whole])
    assert metrics["accuracy"] == metrics["reward"] == 0.25
    assert rollout_metrics([whole, whole])["accuracy"] == 0.5


def test_single_answers_have_no_shares_of_groups(completion, group):
    metrics = rollout_metrics(
        [group([completion(reward=1.0, correct=True)]), group([completion(reward=0.0, correct=False)])]
    )
    assert metrics["accuracy"] == 0.5
    assert not {"frac_reward_zero_std", "groups/frac_mixed", "groups/frac_all_wrong"} & metrics.keys()


def test_staleness_weighs_tokens(completion, group):
    # Three tokens by version 1 and one by version 3, trained at version 4: (3 * 3 + 1 * 1) / 4.
    row = completion(4, 1.0, True, versions=(VersionSpan(0, 1), VersionSpan(3, 3)))
    metrics = update_metrics([group([row])], policy_version=4)
    assert metrics["staleness/mean"] == 2.5
    assert metrics["staleness/max"] == 3.0


def test_missing_log_probs_are_counted(completion, group):
    metrics = rollout_metrics([group([completion(logps=[-1.0, np.nan, -3.0, np.nan])])])
    assert metrics["sampling/missing_frac"] == 0.5
    assert metrics["sampling/entropy"] == 2.0


def test_flags_among_the_rewarded(completion, group):
    cheat = completion(reward=1.0, correct=True, tags={"flags": ["exit"]})
    honest = completion(reward=1.0, correct=True, tags={"flags": []})
    failed = completion(reward=0.0, correct=False, tags={"flags": []})
    metrics = rollout_metrics([group([cheat, honest, failed, failed])])
    assert metrics["hack/exit_frac"] == 0.25
    assert metrics["hack/flagged_frac"] == 0.25
    assert metrics["hack/rewarded_frac"] == 0.5


def test_duplicates_within_a_group(completion, group):
    rows = [completion(token_ids=[1, 2]), completion(token_ids=[1, 2]), completion(token_ids=[3])]
    assert rollout_metrics([group(rows), group(rows[:1])])["groups/duplicate_frac"] == 0.25


@given(st.lists(st.integers(0, 3), max_size=60))
def test_repetition_is_the_share_of_repeated_four_grams(tokens):
    grams = [tuple(tokens[start : start + 4]) for start in range(len(tokens) - 3)]
    expected = 1 - len(set(grams)) / len(grams) if len(tokens) > 4 else 0.0
    assert repetition(np.array(tokens, dtype=np.int64)) == pytest.approx(expected)


def test_within_group_correlation_does_not_see_differences_between_prompts(completion, group):
    # Across prompts long goes with wrong; inside each group long goes with right.
    easy = group([completion(2, 0.9, True), completion(4, 1.0, True)])
    hard = group([completion(20, 0.0, False), completion(22, 0.1, False)])
    assert within_group_correlation([easy, hard], lambda item: item.num_tokens) == pytest.approx(1.0)
    assert within_group_correlation([easy], lambda item: 1.0) is None


def test_merging_refuses_two_values_of_one_name():
    assert merge({"a": 1.0}, {"b": 2.0}, {"a": 1.0}) == {"a": 1.0, "b": 2.0}
    with pytest.raises(ValueError, match="'a' is given twice"):
        merge({"a": 1.0}, {"a": 2.0})


def test_the_trainers_log_probs_beside_the_samplers_by_hand(completion, group):
    from assay.monitoring.metrics import trainer_metrics

    first, second = completion(3, 1.0, True, logps=[-1.0, -2.0, -3.0]), completion(2, 0.0, False, logps=[-0.5, -1.5])
    first.advantage, second.advantage = 0.5, -2.0
    assert trainer_metrics([first, second]) == {"advantages/max": 0.5, "advantages/min": -2.0}
    first.tags["old_logps"] = np.array([-1.1, -2.1, -3.1], np.float32)
    found = trainer_metrics([first, second])
    assert found["sampling/mismatch_kl"] == pytest.approx(0.1, abs=1e-6)
    assert found["sampling/logp_correlation"] == pytest.approx(1.0)
    # Log-probs that hardly vary: rounding decides their correlation, so there is none.
    flat = completion(3, 1.0, True, logps=[-1e-6, -2e-6, -1e-6])
    flat.tags["old_logps"] = np.array([-2e-6, -1e-6, -1e-6], np.float32)
    assert "sampling/logp_correlation" not in trainer_metrics([flat])
