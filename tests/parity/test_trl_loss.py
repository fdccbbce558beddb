"""Random batches through TRL's own loss code and ours: loss, gradient and metrics.

The trainer object is TRL's class without its constructor, given the attributes that its `_compute_loss` reads; the
log-probabilities come from us instead of a model. One process, no accumulation.
"""

import math
import os
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from assay.objectives import Denominators, PolicyOutputs, Rows, build, preset

pytest.importorskip("trl", reason="the extra `parity` installs TRL")

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

ROWS, TOKENS, MAX_LENGTH = 6, 9, 16


def random_batch(seed, truncated=True):
    """Lengths from 1 to T, tool tokens in the middle, one row masked as truncated; float32 as in training."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, TOKENS + 1, (ROWS,), generator=g)
    lengths[0], lengths[1] = TOKENS, 1
    mask = torch.arange(TOKENS) < lengths.unsqueeze(1)
    mask[0, 3:5] = False
    mask[5] &= not truncated
    logps = -torch.rand(ROWS, TOKENS, generator=g) * 3 - 0.05

    def drift(size):
        return torch.randn(ROWS, TOKENS, generator=g) * size

    return {
        "mask": mask,
        "logps": logps,
        "old": logps - drift(0.3),
        "sampling": logps + drift(0.2),
        "ref": logps + drift(0.3),
        "entropies": torch.rand(ROWS, TOKENS, generator=g) * 2,
        "advantages": torch.randn(ROWS, generator=g),
    }


class OneProcess:
    """The parts of accelerate's Accelerator that TRL's loss calls, for one process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x):
        return x

    def reduce(self, x, reduction="sum"):
        return x

    def pad_across_processes(self, x, dim=0, pad_index=0):
        return x


def bare_trainer(cls, batch, spec):
    trainer = cls.__new__(cls)
    trainer.accelerator = OneProcess()
    trainer.model = SimpleNamespace(training=True)
    trainer.loss_type = spec.loss_type
    trainer.beta, trainer.epsilon_low, trainer.epsilon_high = spec.beta, spec.epsilon, spec.upper
    trainer.importance_sampling_level = spec.importance_sampling_level
    trainer.top_entropy_quantile = spec.top_entropy_quantile
    trainer.off_policy_mask_threshold = spec.off_policy_mask_threshold
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = spec.vllm_importance_sampling_correction
    trainer.max_completion_length = MAX_LENGTH
    trainer.current_gradient_accumulation_steps = 1
    trainer.aux_loss_enabled = False
    trainer._entropy_bonus_enabled = spec.has_entropy_bonus
    trainer.use_adaptive_entropy, trainer.entropy_coef = False, spec.entropy_coef
    trainer._metrics = {"train": defaultdict(list)}
    trainer.args = SimpleNamespace(
        delta=spec.delta, use_bias_correction_kl=spec.use_bias_correction_kl, steps_per_generation=1,
        sapo_temperature_pos=spec.sapo_temperature_pos, sapo_temperature_neg=spec.sapo_temperature_neg,
        vespo_k_pos=spec.vespo_k_pos, vespo_lambda_pos=spec.vespo_lambda_pos, vespo_k_neg=spec.vespo_k_neg,
        vespo_lambda_neg=spec.vespo_lambda_neg,
    )  # fmt: skip
    return trainer


def mismatch_ratio(batch, spec):
    """What TRL's rollout code hands its loss (trainer/grpo_trainer.py, `vllm_importance_sampling_ratio`)."""
    diff = (batch["old"] - batch["sampling"]) * batch["mask"]
    mode = spec.vllm_importance_sampling_mode
    ratio = torch.exp(diff.sum(-1, keepdim=True) if mode.startswith("sequence") else diff)
    low, high = spec.vllm_importance_sampling_clip_min, spec.vllm_importance_sampling_clip_max
    if mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < (low or -math.inf)) | (ratio > (high or math.inf)), 0.0)


def trl_loss(batch, spec, cls=GRPOTrainer):
    trainer = bare_trainer(cls, batch, spec)
    logps = batch["logps"].clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logps, batch["entropies"], None)
    ids = torch.zeros(ROWS, TOKENS, dtype=torch.long)
    inputs = {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": batch["mask"].long(),
        "advantages": batch["advantages"], "old_per_token_logps": batch["old"], "ref_per_token_logps": batch["ref"],
        "num_items_in_batch": batch["mask"].sum(), "old_logps": (batch["old"] * batch["mask"]).sum(-1),
    }  # fmt: skip
    if spec.vllm_importance_sampling_correction:
        inputs["importance_sampling_ratio"] = mismatch_ratio(batch, spec)
        inputs["sampling_per_token_logps"] = batch["sampling"]
    loss = trainer._compute_loss(trainer.model, inputs)
    (gradient,) = torch.autograd.grad(loss, logps)
    return loss, gradient, {name: values[-1] for name, values in trainer._metrics["train"].items()}


def our_loss(batch, spec):
    objective, mask = build(spec), batch["mask"]
    sums = objective.measure(mask, torch.arange(ROWS) // 2, torch.zeros(ROWS, dtype=torch.bool))
    logps = batch["logps"].clone().requires_grad_()
    sampling = batch["sampling"] if spec.vllm_importance_sampling_correction else None
    rows = Rows(mask, batch["advantages"], batch["old"], sampling, batch["ref"])
    loss, metrics = objective(
        PolicyOutputs(logps, batch["entropies"]), rows, Denominators.from_sums(sums, max_completion_length=MAX_LENGTH)
    )
    (gradient,) = torch.autograd.grad(loss, logps)
    return loss, gradient, metrics.values()


def assert_equal(batch, spec, cls=GRPOTrainer):
    theirs, their_gradient, their_metrics = trl_loss(batch, spec, cls)
    ours, our_gradient, our_metrics = our_loss(batch, spec)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(our_gradient, their_gradient, atol=1e-6, rtol=1e-6)
    return our_metrics, their_metrics


LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
OFF = {"vllm_importance_sampling_correction": False}
VARIANTS = {
    "plain": OFF,
    "kl": {**OFF, "beta": 0.1},
    "kl uncorrected": {**OFF, "beta": 0.1, "use_bias_correction_kl": False},
    "delta": {**OFF, "delta": 1.4},
    "top entropy": {**OFF, "top_entropy_quantile": 0.3},
    "top entropy and kl": {**OFF, "top_entropy_quantile": 0.3, "beta": 0.1},
    "entropy bonus": {**OFF, "entropy_coef": 0.05},
    "off-policy mask": {**OFF, "off_policy_mask_threshold": 0.05},
    "token truncate": {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.2},
    "token mask": {
        "vllm_importance_sampling_mode": "token_mask",
        "vllm_importance_sampling_clip_min": 0.8,
        "vllm_importance_sampling_clip_max": 1.25,
    },
    "sequence truncate": {
        "vllm_importance_sampling_mode": "sequence_truncate",
        "vllm_importance_sampling_clip_min": 0.7,
        "vllm_importance_sampling_clip_max": 1.1,
    },
    "sequence mask": {
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 1.1,
        "off_policy_mask_threshold": 0.02,
        "beta": 0.1,
    },
}


def has_meaning(loss_type, level, variant):
    """VESPO forms its own sequence weight: a second one is refused at configuration, as TRL warns or refuses."""
    return loss_type != "vespo" or (level == "token" and not variant.startswith("sequence"))


CASES = [
    (loss_type, level, variant)
    for loss_type in LOSS_TYPES
    for level in ("token", "sequence")
    for variant in VARIANTS
    if has_meaning(loss_type, level, variant)
]


@pytest.mark.parametrize(("loss_type", "level", "variant"), CASES)
def test_loss_and_gradient(loss_type, level, variant):
    fields = {"loss_type": loss_type, "importance_sampling_level": level, "epsilon_high": 0.28, **VARIANTS[variant]}
    if loss_type == "cispo":
        fields["epsilon_high"] = 1.1
    spec = preset("dapo", dialect="trl", **fields)
    for seed in range(4):
        ours, theirs = assert_equal(random_batch(seed), spec)
        # at sequence level TRL averages per-sequence numbers over masked rows too, which have no ratio
        names = [name for name in theirs if level == "token" or name in ("entropy",)]
        for name in set(names) - {"policy_loss", "vespo/phi_seq_mean"}:
            assert ours[name] == pytest.approx(theirs[name], abs=1e-5, nan_ok=True), name


# These two trainers add -A of a fully masked row to the loss's value: a constant without gradient, which we leave out.


@pytest.mark.parametrize("variant", ["plain", "top entropy"])
def test_gmpo(variant):
    spec = preset("gmpo", dialect="trl", epsilon=0.2, epsilon_high=0.3, **VARIANTS[variant])
    for seed in range(4):
        assert_equal(random_batch(seed, truncated=False), spec, GMPOTrainer)


def test_rloo():
    spec = preset("rloo", dialect="trl", **OFF)
    for seed in range(4):
        assert_equal(random_batch(seed, truncated=False), spec, RLOOTrainer)
