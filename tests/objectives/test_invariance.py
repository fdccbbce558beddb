"""The gradient of a window does not depend on how the window is cut, ordered, padded or spread over ranks."""

from dataclasses import dataclass

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.objectives import (
    Denominators,
    EntropyController,
    Metrics,
    ObjectiveSpec,
    PolicyOutputs,
    Rows,
    TokenInputs,
    build,
    compute_advantages,
    group_tokens,
    preset,
    top_entropy_mask,
)

SPECS = {
    "grpo": preset("grpo", beta=0.1),
    "dapo": preset("dapo", entropy_coef=0.02),
    "dr_grpo": preset("dr_grpo", beta=0.1, kl_estimator="k1"),
    "gspo": preset("gspo", epsilon=0.1, epsilon_high=0.1),
    "prompt": preset("scalerl", beta=0.05),
    "luspo": preset("luspo", epsilon=0.1, epsilon_high=0.1),
    "sapo": preset("sapo"),
    "gmpo": preset("gmpo"),
    "vespo": preset("vespo"),
    "eighty_twenty": preset("eighty_twenty", entropy_coef=0.01),
    "sequence mismatch": preset("grpo", vllm_importance_sampling_mode="sequence_mask"),
    "off-policy mask": preset("grpo", off_policy_mask_threshold=0.02),
    "ppo": preset("ppo"),
}
FIELDS = ("logps", "entropies", "values", "old", "sampling", "ref", "old_values", "returns")


@dataclass
class Window:
    mask: torch.Tensor
    advantages: torch.Tensor
    group_ids: torch.Tensor
    no_signal: torch.Tensor
    tensors: dict

    @classmethod
    def random(cls, seed, groups=3, size=2, width=7):
        g = torch.Generator().manual_seed(seed)
        n = groups * size
        lengths = torch.randint(1, width + 1, (n,), generator=g)
        mask = torch.arange(width) < lengths.unsqueeze(1)
        mask[0, :1] = False  # may leave a row without a token
        base = -torch.rand(n, width, generator=g, dtype=torch.float64) - 0.1

        def near(size):
            return base + size * torch.randn(n, width, generator=g, dtype=torch.float64)

        tensors = dict(zip(FIELDS, [base, *(near(0.3) for _ in FIELDS[1:])], strict=True))
        tensors["entropies"] = tensors["entropies"].abs()
        advantages = torch.randn(n, generator=g, dtype=torch.float64)
        no_signal = torch.zeros(n, dtype=torch.bool)
        no_signal[:size] = True
        advantages[no_signal] = 0.0
        return cls(mask, advantages, torch.arange(n) // size, no_signal, tensors)


def window_sums(objective, window, chosen):
    selected = top_entropy_mask(window.tensors["entropies"], window.mask, 0.2)
    return objective.measure(
        window.mask[chosen], window.group_ids[chosen], window.no_signal[chosen], entropy_mask=selected[chosen]
    )


def backward(objective, window, parts, denominators, extra_padding=0):
    """(gradients by row and token, loss, metrics) of a window cut into `parts`, each a list of row indices."""
    logps, entropies, values = (window.tensors[name].clone().requires_grad_() for name in FIELDS[:3])
    leaves = [logps, entropies, values]
    per_group = group_tokens(window.mask, window.group_ids)
    selected = top_entropy_mask(entropies, window.mask, 0.2)

    def pad(x, rubbish=torch.nan):
        filler = x.new_full((len(x), extra_padding), False if x.dtype == torch.bool else rubbish)
        return torch.cat([x, filler], 1)

    total, metrics = 0.0, []
    for part in parts:
        part = torch.tensor(part, dtype=torch.long)
        rows = Rows(
            pad(window.mask[part]), window.advantages[part],
            *(pad(window.tensors[name][part]) for name in FIELDS[3:]),
            group_tokens=per_group[part], entropy_mask=pad(selected[part]),
        )  # fmt: skip
        outputs = PolicyOutputs(pad(logps[part]), pad(entropies[part]), pad(values[part]))
        loss, measured = objective(outputs, rows, denominators)
        loss.backward()
        total += loss.item()
        metrics.append(measured)
    gradients = [leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in leaves]
    return gradients, total, metrics


@st.composite
def cuts(draw, n=6):
    """An order of the rows, cut into one to n parts; some may be empty."""
    order = draw(st.permutations(range(n)))
    bounds = sorted(draw(st.lists(st.integers(0, n), max_size=n)))
    return [list(order[a:b]) for a, b in zip([0, *bounds], [*bounds, n], strict=True)]


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), parts=cuts(), padding=st.integers(0, 3))
def test_any_split_order_and_padding(name, seed, parts, padding):
    window, objective = Window.random(seed), build(SPECS[name])
    everyone = list(range(len(window.mask)))
    denominators = Denominators.from_sums(window_sums(objective, window, everyone), max_completion_length=9)
    whole, loss, metrics = backward(objective, window, [everyone], denominators)
    split, split_loss, split_metrics = backward(objective, window, parts, denominators, padding)
    assert split_loss == pytest.approx(loss, abs=1e-12)
    for one, other in zip(whole, split, strict=True):
        torch.testing.assert_close(other, one, atol=1e-12, rtol=1e-9)
    assert Metrics.reduce(split_metrics).values() == pytest.approx(metrics[0].values(), abs=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_any_number_of_ranks_by_summing_their_denominators(name):
    window, objective = Window.random(1), build(SPECS[name])
    everyone = list(range(6))
    denominators = Denominators.from_sums(window_sums(objective, window, everyone), max_completion_length=9)
    whole, _, _ = backward(objective, window, [everyone], denominators)
    for ranks in ([[0, 1], [2, 3, 4, 5]], [[0, 1], [2, 3], [4, 5]]):  # groups stay whole
        sums = sum(window_sums(objective, window, share) for share in ranks)
        apart, _, _ = backward(objective, window, ranks, Denominators.from_sums(sums, max_completion_length=9))
        for one, other in zip(whole, apart, strict=True):
            torch.testing.assert_close(other, one, atol=1e-12, rtol=1e-9)


def test_rows_without_signal_need_not_be_forwarded():
    """dapo does not count them, grpo does; either way the gradient is that of the full window."""
    window = Window.random(3)
    alive = [i for i in range(6) if not window.no_signal[i]]
    for name in ("dapo", "grpo"):
        objective = build(preset(name))
        sums = window_sums(objective, window, list(range(6)))
        full, _, _ = backward(objective, window, [list(range(6))], Denominators.from_sums(sums))
        live, _, _ = backward(objective, window, [alive], Denominators.from_sums(sums))
        torch.testing.assert_close(live[0], full[0])
    assert Denominators.from_sums(window_sums(build(preset("dapo")), window, list(range(6)))).rows == len(alive)


@pytest.mark.parametrize(
    ("term", "leaf"),
    [({"beta": 0.5, "use_bias_correction_kl": False, "kl_estimator": "k1"}, 0), ({"entropy_coef": 0.5}, 1)],
)
def test_kl_and_entropy_are_means_over_all_rows_while_the_policy_term_leaves_dead_ones_out(term, leaf):
    window = Window.random(4)
    objective = build(preset("dapo", **term))
    window.advantages[:] = 0.0
    denominators = Denominators.from_sums(window_sums(objective, window, list(range(6))))
    assert denominators.tokens < denominators.all_tokens == window.mask.sum()
    gradients, _, _ = backward(objective, window, [list(range(6))], denominators)
    expected = 0.5 * window.mask.double() / window.mask.sum() * (1 if leaf == 0 else -1)
    torch.testing.assert_close(gradients[leaf], expected)


def test_a_group_spread_over_ranks_counts_once():
    window, objective = Window.random(1), build(SPECS["prompt"])
    counted = (window.mask.any(-1) & ~window.no_signal).double()
    size = torch.zeros(3, dtype=torch.float64).index_add(0, window.group_ids, counted)[window.group_ids]
    shares = ([0, 2, 4], [1, 3, 5])
    parts = [
        objective.measure(window.mask[s], window.group_ids[s], window.no_signal[s], group_rows=size[s]) for s in shares
    ]
    assert Denominators.from_sums(parts[0] + parts[1]).groups == pytest.approx(2.0)


def test_bnpo_is_the_one_that_depends_on_the_split():
    window, objective = Window.random(1), build(preset("grpo", loss_type="bnpo"))
    everyone = list(range(6))
    sums = window_sums(objective, window, everyone)
    whole, _, _ = backward(objective, window, [everyone], Denominators.from_sums(sums))
    halves = [[0, 1, 2], [3, 4, 5]]
    split, _, _ = backward(objective, window, halves, Denominators.from_sums(sums).with_micro_batches(2))
    assert (whole[0] - split[0]).abs().max() > 1e-4


def test_trajectories_of_several_rows_are_one_sequence():
    """Cutting a sequence into two rows of one trajectory changes nothing but the shape."""
    window = Window.random(5)
    window.mask[:] = True
    for name in ("grpo", "gspo", "gmpo", "vespo", "sequence mismatch", "off-policy mask"):
        objective = build(SPECS[name])
        n, width = window.mask.shape
        everyone = list(range(n))
        denominators = Denominators.from_sums(window_sums(objective, window, everyone), max_completion_length=9)
        whole, _, _ = backward(objective, window, [everyone], denominators)

        ids = torch.arange(n).repeat_interleave(2)
        halves = torch.zeros(2 * n, width, dtype=torch.bool)
        halves[0::2, :3], halves[1::2, 3:] = True, True
        logps = window.tensors["logps"].repeat_interleave(2, 0).requires_grad_()
        fields = {
            {"old": "old_logps", "sampling": "sampling_logps", "ref": "ref_logps"}[k]: window.tensors[
                k
            ].repeat_interleave(2, 0)
            for k in ("old", "sampling", "ref")
        }
        rows = Rows(halves, window.advantages.repeat_interleave(2), trajectory_ids=ids, **fields)
        dead = window.no_signal.repeat_interleave(2)
        sums = objective.measure(halves, window.group_ids.repeat_interleave(2), dead, trajectory_ids=ids)
        loss, _ = objective(PolicyOutputs(logps), rows, Denominators.from_sums(sums, max_completion_length=9))
        (gradient,) = torch.autograd.grad(loss, logps)
        torch.testing.assert_close(gradient[0::2] + gradient[1::2], whole[0])


ACROSS_RANKS = {
    "batch": preset("grpo", scale_rewards="batch"),
    "batch_centred": preset("grpo", scale_rewards="batch_centred"),
    "gdpo": preset("gdpo"),
    "normalized": preset("rloo", beta=0.0, normalize_advantages=True),
    "whitened": preset("reinforce_pp", beta=0.0),
}


def _advantages(name, share, sum_over_ranks):
    """A rank's advantages; groups of two, one of them uniform, two reward functions, one missing reward."""
    rewards = torch.tensor([[1, 1], [0, 0.5], [1, 0], [1, 0], [0.2, torch.nan], [0.9, 1]], dtype=torch.float64)
    mask = Window.random(1).mask
    result = compute_advantages(
        rewards[share], torch.arange(6)[share] // 2, None, ACROSS_RANKS[name], tokens=TokenInputs(mask[share]),
        sum_over_ranks=sum_over_ranks,
    )  # fmt: skip
    return result.advantages


def _all_reduced(x):
    torch.distributed.all_reduce(x)
    return x


def _rank(rank, world, path, result):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    window, objective = Window.random(1), build(SPECS["dapo"])
    share = [[0, 1], [2, 3, 4, 5]][rank]
    sums = window_sums(objective, window, share)
    torch.distributed.all_reduce(sums)
    gradients, _, metrics = backward(objective, window, [share], Denominators.from_sums(sums))
    torch.distributed.all_reduce(gradients[0])
    additive, extreme = metrics[0].pack()
    torch.distributed.all_reduce(additive)
    torch.distributed.all_reduce(extreme, op=torch.distributed.ReduceOp.MAX)
    advantages = [_advantages(name, share, _all_reduced) for name in ACROSS_RANKS]
    torch.save((gradients[0], metrics[0].unpack(additive, extreme).values(), advantages), f"{result}{rank}")
    torch.distributed.destroy_process_group()


def test_two_real_processes(tmp_path):
    mp.spawn(_rank, args=(2, tmp_path / "store", tmp_path / "result"), nprocs=2)
    gradient, values, first = torch.load(tmp_path / "result0")
    _, _, second = torch.load(tmp_path / "result1")
    for name, one, other in zip(ACROSS_RANKS, first, second, strict=True):
        torch.testing.assert_close(torch.cat([one, other]), _advantages(name, list(range(6)), lambda x: x))
    window, objective = Window.random(1), build(SPECS["dapo"])
    everyone = list(range(6))
    whole, _, metrics = backward(
        objective, window, [everyone], Denominators.from_sums(window_sums(objective, window, everyone))
    )
    torch.testing.assert_close(gradient, whole[0], atol=1e-12, rtol=1e-9)
    assert values == pytest.approx(metrics[0].values())


def test_entropy_controller_follows_the_window_not_the_micro_batch():
    objective = build(ObjectiveSpec(use_adaptive_entropy=True, entropy_target=0.5))
    assert isinstance(objective.entropy, EntropyController)
    short, long = Metrics(), Metrics()
    short.mean("entropy", torch.tensor(2.0), 2)  # 1 nat a token
    long.mean("entropy", torch.tensor(18.0), 98)
    objective.observe(Metrics.reduce([short, long]))  # 0.2 nats a token: below the target
    assert objective.entropy.value == pytest.approx(0.005)
