"""Baselines and scales on worked numbers, and every way in which a reward can be missing."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.objectives import ObjectiveSpec, TokenInputs, compute_advantages, preset

nan = math.nan


def advantages(rewards, size, weights=None, spec=None, **options):
    table = torch.tensor(rewards, dtype=torch.float64)
    table = table.unsqueeze(1) if table.dim() == 1 else table
    spec = ObjectiveSpec(**options.pop("fields", {})) if spec is None else spec
    return compute_advantages(table, torch.arange(len(table)) // size, weights, spec, **options)


def rounded(tensor, digits=6):
    return [round(x, digits) + 0.0 for x in tensor.flatten().tolist()]


# The worked numbers below were computed by TRL 1.16, or by hand from the papers' formulas.


def test_batch_scale():
    result = advantages([1, 0, 0, 0, 1, 1, 1, 1], 4, fields={"scale_rewards": "batch"})
    assert rounded(result.advantages) == [1.448858, *[-0.482953] * 3, *[0.0] * 4]


def test_reinforce_pp_baseline_divides_by_the_std_of_centred_rewards():
    fields = {"scale_rewards": "batch_centred", "std_eps": 0.0}
    result = advantages([1, 0, 0, 0, 1, 1, 1, 1], 4, fields=fields)
    assert result.advantages[0].item() == pytest.approx(0.75 / math.sqrt(0.75 / 7))  # std .327327
    assert result.advantages[1].item() == pytest.approx(-0.25 / math.sqrt(0.75 / 7))


def test_missing_rewards_and_weights():
    rows = [[1, nan], [0, 0.5], [nan, nan], [1, 0.5]]
    result = advantages(rows, 4, [1.0, 2.0])
    assert rounded(result.advantages) == [-0.57725, -0.57725, 0.0, 1.154501]
    assert result.no_signal.tolist() == [False, False, True, False]
    rloo = advantages(rows, 4, [1.0, 2.0], preset("rloo", beta=0.0))
    assert rounded(rloo.advantages) == [-0.5, -0.5, 0.0, 1.0]


def test_a_partly_applicable_reward_is_a_zero_or_is_left_out():
    rows = [[1, nan], [0, 1]]
    zero = advantages(rows, 2, [1.0, 3.0], fields={"scale_rewards": "none"})
    assert zero.advantages.tolist() == [-1.0, 1.0]  # 1 against 3
    renormalized = advantages(rows, 2, [1.0, 3.0], fields={"scale_rewards": "none", "partial_rewards": "renormalize"})
    assert renormalized.advantages.tolist() == [0.5, -0.5]  # 4 * 1 / 1 against 4 * 3 / 4


GDPO_ROWS = [(1, 1), (1, 0.2), (0, 0.8), (1, 0.6), (1, 0.4), (1, 0.4), (1, 0.8), (1, 0)]


def test_gdpo():
    result = advantages(GDPO_ROWS, 4, spec=preset("gdpo"))
    expected = [1.498727, -0.803472, -1.042882, 0.347627, 0.0, 0.0, 1.203833, -1.203833]
    assert rounded(result.advantages) == expected
    summed = advantages(GDPO_ROWS, 4, spec=preset("grpo"))
    assert rounded(summed.advantages) == [1.16167, -0.387223, -1.16167, 0.387223, 0.0, 0.0, 1.22437, -1.22437]


def test_gdpo_keeps_apart_what_a_sum_cannot():
    """{(0,0),(0,1)} and {(0,0),(1,1)} look alike once summed and normalised; decoupled, one is twice as strong."""
    rows = [(0, 0), (0, 1), (0, 0), (1, 1)]
    summed = advantages(rows, 2).advantages
    assert summed[1].item() == pytest.approx(summed[3].item(), abs=1e-3)
    decoupled = advantages(rows, 2, spec=preset("gdpo")).advantages
    assert decoupled[3].item() == pytest.approx(2 * decoupled[1].item())


def test_gdpo_has_signal_where_components_cancel_in_the_sum():
    result = advantages([(1, 0), (0, 1)], 2, spec=preset("gdpo"))
    assert not result.no_signal.any()
    assert advantages([(1, 0), (0, 1)], 2).no_signal.all()


def test_a_uniform_component_is_exactly_neutral_in_gdpo():
    """Three times 0.1 has a mean that is not 0.1 in binary: over a std of rounding, that would be an advantage."""
    rows = [(0.1, 1), (0.1, 0), (0.1, 0), (0, 0), (0, 1), (0, 1)]
    alone = advantages([1, 0, 0, 0, 1, 1], 3, spec=preset("gdpo", std_eps=0.0))
    torch.testing.assert_close(advantages(rows, 3, spec=preset("gdpo", std_eps=0.0)).advantages, alone.advantages)


def test_a_missing_component_is_neutral_in_gdpo():
    result = advantages([(1, nan), (0, 1), (1, 0), (0, nan)], 4, spec=preset("gdpo", std_eps=0.0))
    z = [math.sqrt(3) / 2, -math.sqrt(3) / 2 + math.sqrt(0.5), math.sqrt(3) / 2 - math.sqrt(0.5), -math.sqrt(3) / 2]
    std = math.sqrt(sum(x * x for x in z) / 3)
    assert result.advantages.tolist() == pytest.approx([x / std for x in z])


@pytest.mark.parametrize("scale", ["group", "batch", "batch_centred", "none"])
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_uniform_groups_under_every_scale(scale, baseline):
    correct = torch.tensor([1, 1, 0, 0, 1, 0], dtype=torch.float64)
    rewards = [0.1, 0.1, 0.3, 0.3, 1, 0]
    fields = {"scale_rewards": scale, "baseline": baseline, "std_eps": 0.0}
    result = advantages(rewards, 2, fields=fields, correct=correct)
    assert result.advantages[:4].tolist() == [0.0] * 4
    assert result.no_signal.tolist() == [True] * 4 + [False] * 2
    assert result.all_correct.tolist() == [True] * 2 + [False] * 4
    assert result.all_wrong.tolist() == [False] * 2 + [True] * 2 + [False] * 2
    values = result.metrics.values()
    assert values["frac_reward_zero_std"] == pytest.approx(2 / 3)
    assert values["frac_all_correct"] == values["frac_all_wrong"] == pytest.approx(1 / 3)


def test_equality_is_of_rewards_not_of_a_float_std():
    """A spread of 1e-9 has a sample std that float32 rounds to nothing, and is signal; three times 0.1 is none."""
    assert not advantages([1.0, 1.0 + 1e-9], 2).uniform.any()
    assert advantages([(0.1, 0.2), (0.3, 0.0)], 2).uniform.all()  # 0.30000000000000004 against 0.3
    result = advantages([0.0, 1e-9, 0.1, 0.1, 0.1, 0.1], 2, fields={"std_eps": 0.0})
    assert result.uniform.tolist() == [False, False, True, True, True, True]
    assert result.advantages[1].item() == pytest.approx(math.sqrt(0.5))


def test_without_a_group_baseline_equal_rewards_still_teach():
    mask = torch.ones(4, 2, dtype=torch.bool)
    spec = preset("reinforce_pp", beta=0.0)
    result = advantages([1, 1, 0, 0], 2, spec=spec, tokens=TokenInputs(mask))
    assert result.uniform.all()
    assert not result.no_signal.any()
    assert result.advantages[0, 0] > 0 > result.advantages[2, 0]


def test_single_completion_and_single_scorable_one():
    assert advantages([1.0], 1).advantages.tolist() == [0.0]
    result = advantages([[nan], [5.0]], 2)
    assert result.advantages.tolist() == [0.0, 0.0]
    assert result.no_signal.all()
    assert advantages([[nan], [nan]], 2).no_signal.all()
    assert advantages([1.0, 2.0], 1, spec=preset("rloo", beta=0.0)).advantages.tolist() == [0.0, 0.0]


def test_truncated_completions_vote_or_do_not():
    truncated = torch.tensor([False, False, True, True])
    after = advantages([1, 0, 0, 0], 4, fields={"scale_rewards": "none"}, truncated=truncated)
    assert after.advantages.tolist() == [0.75, -0.25, -0.25, -0.25]
    fields = {"scale_rewards": "none", "mask_truncated_completions": True, "truncated_in_baseline": False}
    before = advantages([1, 0, 0, 0], 4, fields=fields, truncated=truncated)
    assert before.advantages.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert before.no_signal.tolist() == [False, False, True, True]


def test_kl_in_the_reward_of_the_sequence():
    """RLOO: R_i - beta * sum_t (old - ref), then leave-one-out; a uniform group still learns from its KL."""
    old = torch.tensor([[-1.0, -1.0], [-1.0, -9.0]])
    ref = torch.tensor([[-2.0, -1.5], [-1.0, nan]])
    mask = torch.tensor([[True, True], [True, False]])
    spec = preset("rloo", beta=0.1)
    result = advantages([1, 1], 2, spec=spec, tokens=TokenInputs(mask, old, ref))
    assert result.advantages.tolist() == pytest.approx([-0.15, 0.15])
    assert result.uniform.all()
    assert not result.no_signal.any()
    assert result.metrics.values()["kl"] == pytest.approx(0.5)


def test_reinforce_pp_token_advantages():
    """r = (1, 0), KL rows [.1, -.2, .05] and [.3, 0], beta .1: the sum of KL from each token on, then whitened."""
    kl = torch.tensor([[0.1, -0.2, 0.05], [0.3, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    ref = torch.full_like(kl, -1.0)
    tokens = TokenInputs(mask, ref + kl, ref)
    plain = advantages([1, 0], 1, spec=preset("reinforce_pp", beta=0.1, whiten_advantages=False), tokens=tokens)
    assert rounded(plain.advantages[mask]) == [1.005, 1.015, 0.995, -0.03, 0.0]
    white = advantages([1, 0], 1, spec=preset("reinforce_pp", beta=0.1), tokens=tokens)
    assert rounded(white.advantages[mask]) == [0.730107, 0.748001, 0.712212, -1.122002, -1.068318]
    assert white.advantages[~mask].tolist() == [0.0]


def test_tool_tokens_are_no_steps():
    """What a tool wrote in the middle changes neither KL to go nor GAE."""
    kl = torch.tensor([[0.1, -0.2, 0.05]], dtype=torch.float64)
    zeros, full = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    gap = torch.tensor([[True, False, True, False, True]])

    def spread(x):
        return torch.full((1, 5), 7.0, dtype=torch.float64).masked_scatter(gap, x)

    for name in ("reinforce_pp", "ppo"):
        spec = preset(name, beta=0.1, whiten_advantages=False)
        dense = advantages([1.0], 1, spec=spec, tokens=TokenInputs(full, kl, zeros, kl + 0.2))
        gapped = advantages([1.0], 1, spec=spec, tokens=TokenInputs(gap, spread(kl), spread(zeros), spread(kl + 0.2)))
        torch.testing.assert_close(gapped.advantages[gap], dense.advantages[full])
        assert gapped.advantages[~gap].abs().sum() == 0


def test_ppo_puts_the_score_on_the_last_token():
    values = torch.tensor([[0.2, 0.4, 0.6], [0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    spec = preset("ppo", beta=0.0, whiten_advantages=False)
    result = advantages([1, 1], 1, spec=spec, tokens=TokenInputs(mask, values=values))
    assert rounded(result.advantages[mask]) == [0.751, 0.58, 0.4, 1.0]
    assert rounded(result.returns[mask]) == [0.951, 0.98, 1.0, 1.0]


def test_reward_clip_and_batch_normalisation():
    spec = ObjectiveSpec(baseline="leave_one_out", scale_rewards="none", normalize_advantages=True)
    result = advantages([1, 0, 1, 0, 0, 1, 0, 0], 8, spec=spec)
    assert rounded(result.advantages[:2]) == [1.207411, -0.724446]
    clipped = advantages([9, 0], 2, fields={"reward_clip_range": (-1.0, 1.0), "scale_rewards": "none"})
    assert clipped.advantages.tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ([[1.0], [math.inf]], None, "row 1, function 0 is infinite"),
        ([[1.0], [0.0]], [1.0, 2.0], "2 reward weights for 1"),
    ],
)
def test_refusals(rewards, weights, message):
    with pytest.raises(ValueError, match=message):
        advantages(rewards, 2, weights)


@pytest.mark.parametrize(("name", "message"), [("ppo", "critic"), ("reinforce_pp", "log-prob"), ("rloo", "log-prob")])
def test_missing_inputs_are_named(name, message):
    with pytest.raises(ValueError, match=message):
        advantages([1, 0], 2, spec=preset(name))


@given(st.lists(st.floats(-10, 10), min_size=8, max_size=8), st.permutations(range(8)))
def test_group_advantages_sum_to_zero_and_follow_their_rows(rewards, order):
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    table = torch.tensor(rewards, dtype=torch.float64).unsqueeze(1)
    result = compute_advantages(table, ids, None, ObjectiveSpec())
    for group in (0, 1):
        assert abs(result.advantages[ids == group].sum().item()) < 1e-9
    order = torch.tensor(order)
    permuted = compute_advantages(table[order], ids[order], None, ObjectiveSpec())
    torch.testing.assert_close(permuted.advantages, result.advantages[order])
