"""An objective, put together from its axes: (outputs, rows, denominators) -> (loss, metrics)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.objectives.aggregation import AGGREGATIONS, Lengths, dapo, weighted_sum
from assay.objectives.batch import PolicyOutputs, Rows, masked
from assay.objectives.denominators import Denominators
from assay.objectives.entropy import EntropyController, top_entropy_mask
from assay.objectives.filters import off_policy_mask
from assay.objectives.kl import KL_ESTIMATORS, importance_weighted_kl
from assay.objectives.metrics import Metrics
from assay.objectives.mismatch import bounded_weight, log_mismatch, mismatch_level, mismatch_metrics
from assay.objectives.ratio import RATIO_LEVELS, bounded_exp, overflows
from assay.objectives.spec import ObjectiveSpec
from assay.objectives.surrogates import SURROGATES, SurrogateInputs
from assay.objectives.values import value_loss
from assay.objectives.working import WorkingBatch


def build(spec: ObjectiveSpec) -> Objective:
    """The objective that `spec` describes."""
    return Objective(spec)


@dataclass
class Objective:
    """Sum the losses of a window's micro-batches on all ranks and you have the window's loss; its gradient does not
    depend on the cut (`bnpo`, and a high-entropy mask without `Rows.entropy_mask`, excepted).

    The one thing with memory is the adaptive entropy coefficient: call `observe(window_metrics)` after each update.
    """

    spec: ObjectiveSpec
    entropy: EntropyController = field(init=False)

    def __post_init__(self) -> None:
        self.entropy = EntropyController(self.spec)
        self._surrogate = SURROGATES[self.spec.surrogate_name]
        self._aggregate = AGGREGATIONS[self.spec.aggregation_name]

    @property
    def needs_ref(self) -> bool:
        """Whether reference log-probabilities are needed, in the loss or in the reward."""
        return self.spec.beta != 0 or self._surrogate.needs_ref

    @property
    def needs_logps_for_advantages(self) -> bool:
        """Whether old and reference log-probabilities are needed before advantages (KL in the reward)."""
        return self.spec.beta != 0 and self.spec.kl_in != "loss"

    @property
    def needs_entropy(self) -> bool:
        return self.spec.has_entropy_bonus or self.spec.top_entropy_quantile < 1

    @property
    def needs_values(self) -> bool:
        """Whether a critic is needed: values before advantages, `old_values` and `returns` in the rows."""
        return self.spec.baseline == "value"

    @property
    def uses_sampling_logps(self) -> bool:
        """Whether the engine's log-probabilities change the loss; without them the old policy's stand in."""
        return self.spec.vllm_importance_sampling_correction or self.spec.off_policy_mask_threshold is not None

    @property
    def forwards_dead_rows(self) -> bool:
        """Whether rows without signal must be forwarded, for the sake of a KL, entropy or value term."""
        return self._has_kl_loss or self.spec.has_entropy_bonus or self.needs_values

    @property
    def counts_dead_rows(self) -> bool:
        """Whether rows without signal count in the policy term's denominators."""
        return self.spec.count_no_signal

    @property
    def _has_kl_loss(self) -> bool:
        return self.spec.beta != 0 and self.spec.kl_in == "loss"

    def measure(self, mask: Tensor, group_ids: Tensor, no_signal: Tensor, **options: Any) -> Tensor:
        """`Denominators.measure` with this objective's choice of what counts: all rows of a window, forwarded or not.

        `mask` [N, T] is the loss mask after the truncation filter; `options` go to `Denominators.measure`.
        """
        everyone = torch.ones_like(no_signal) if self.spec.count_truncated else None
        left_out = None if self.spec.count_no_signal else no_signal
        return Denominators.measure(mask, group_ids, no_signal=left_out, kept=everyone, **options)

    def __call__(self, outputs: PolicyOutputs, rows: Rows, denominators: Denominators) -> tuple[Tensor, Metrics]:
        """The micro-batch's share of the window's loss (a scalar with gradient) and what was measured.

        Raises ValueError for a counted token whose log-probability is not finite, for inputs that the spec needs and
        the rows lack, and for a loss that overflowed.
        """
        metrics = Metrics()
        batch = WorkingBatch.of(outputs, rows, self._has_kl_loss or self._surrogate.needs_ref)
        log_weight = RATIO_LEVELS[self.spec.importance_sampling_level](
            batch.log_ratio, batch.mask, batch.trajectory_ids
        )
        selected = self._selected(batch, rows)
        loss = self._policy_loss(batch, log_weight, selected, denominators, metrics)
        metrics.total("policy_loss", loss)
        if self._has_kl_loss:
            loss = loss + self._kl_loss(batch, log_weight, denominators, metrics)
        if self.spec.has_entropy_bonus:
            loss = loss - self._entropy_bonus(batch, selected, denominators, metrics)
        if self.needs_values:
            loss = loss + self._value_loss(batch, outputs, rows, denominators, metrics)
        _measure_policy(batch, log_weight, metrics)
        metrics.total("loss", loss)
        if not torch.isfinite(loss.detach()):
            raise ValueError(f"the loss overflowed: largest log-ratio {batch.log_ratio.max().item():.1f} nats")
        return loss, metrics

    def row_weights(
        self,
        mask: Tensor,
        denominators: Denominators,
        dtype: torch.dtype = torch.float32,
        trajectory_ids: Tensor | None = None,
        group_tokens: Tensor | None = None,
    ) -> Tensor:
        """[B]: what each counted token of a row weighs in the window's loss."""
        return self._aggregate(Lengths.of(mask, dtype, trajectory_ids, group_tokens), denominators)

    def observe(self, window: Metrics) -> None:
        """Take a window's reduced metrics: the adaptive entropy coefficient follows them."""
        values = window.means.get("entropy_selected", window.means.get("entropy"))
        if values is not None and values[1] > 0:
            self.entropy.observe((values[0] / values[1]).item())

    def state_dict(self) -> dict[str, Any]:
        return {"entropy": self.entropy.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.entropy.load_state_dict(state["entropy"])

    def _selected(self, batch: WorkingBatch, rows: Rows) -> Tensor:
        """[B, T] tokens that the policy term and the entropy bonus act on."""
        if self.spec.top_entropy_quantile >= 1:
            return batch.mask
        if rows.entropy_mask is not None:
            return batch.mask & rows.entropy_mask
        return top_entropy_mask(batch.required("entropies"), batch.mask, self.spec.top_entropy_quantile)

    def _policy_loss(
        self, batch: WorkingBatch, log_weight: Tensor, selected: Tensor, denominators: Denominators, metrics: Metrics
    ) -> Tensor:
        log_mismatch_weight = self._mismatch(batch, metrics)
        correction = None if log_mismatch_weight is None else self._bounded(log_mismatch_weight)
        x = SurrogateInputs(
            batch.logps, batch.log_ratio, log_weight, batch.advantages, batch.mask, selected, batch.trajectory_ids,
            ref_logps=batch.ref_logps, log_mismatch=None if correction is None else correction.log(),
        )  # fmt: skip
        per_token = self._surrogate.loss(x, self.spec)
        for name, value in self._surrogate.measured(x, self.spec).items():
            _measure(name, value, batch.mask, metrics)
        if self.spec.off_policy_mask_threshold is not None:
            stays = off_policy_mask(
                batch.advantages, batch.logps, batch.behaviour_logps, batch.mask,
                self.spec.off_policy_mask_threshold, batch.trajectory_ids,
            )  # fmt: skip
            per_token = per_token * stays
            metrics.masked_mean("off_policy/masked_frac", (~stays).expand_as(batch.mask), batch.mask)
        if correction is not None and not self._surrogate.absorbs_mismatch:
            per_token = per_token * correction
        counted = batch.mask if self._surrogate.absorbs_selection else selected
        return weighted_sum(per_token, counted, self._weights(batch, denominators))

    def _mismatch(self, batch: WorkingBatch, metrics: Metrics) -> Tensor | None:
        """The log of the raw weight old/sampling at its level, where it is to be corrected; measured in any case."""
        spec = self.spec
        if batch.sampling_logps is None:
            return None
        log_diff = log_mismatch(batch.old_logps, batch.sampling_logps, batch.mask)
        log_weight = mismatch_level(log_diff, batch.mask, spec.vllm_importance_sampling_mode, batch.trajectory_ids)
        low, high = spec.vllm_importance_sampling_clip_min, spec.vllm_importance_sampling_clip_max
        metrics.update(mismatch_metrics(log_diff, log_weight, batch.mask, low, high))
        return log_weight if spec.vllm_importance_sampling_correction else None

    def _bounded(self, log_weight: Tensor) -> Tensor:
        spec = self.spec
        return bounded_weight(
            log_weight, spec.vllm_importance_sampling_mode,
            spec.vllm_importance_sampling_clip_min, spec.vllm_importance_sampling_clip_max,
        )  # fmt: skip

    def _kl_loss(self, batch: WorkingBatch, log_weight: Tensor, denominators: Denominators, metrics: Metrics) -> Tensor:
        spec, ref = self.spec, batch.required("ref_logps")
        if spec.use_bias_correction_kl:
            kl = importance_weighted_kl(batch.logps, ref, bounded_exp(log_weight), spec.kl_estimator)
        else:
            kl = KL_ESTIMATORS[spec.kl_estimator](batch.logps, ref)
        metrics.masked_mean("kl", kl, batch.mask)
        metrics.masked_mean("guard/kl_overflow", overflows(ref - batch.logps), batch.mask)
        return spec.beta * weighted_sum(kl, batch.mask, self._weights(batch, denominators.counting_all()))

    def _entropy_bonus(
        self, batch: WorkingBatch, selected: Tensor, denominators: Denominators, metrics: Metrics
    ) -> Tensor:
        """coefficient times the mean entropy of the selected tokens of the window."""
        entropies = batch.required("entropies")
        if self.spec.top_entropy_quantile >= 1:
            count: Tensor | float = denominators.all_tokens
        else:
            metrics.masked_mean("entropy_selected", entropies, selected)
            local = selected.sum().clamp(min=1) * denominators.micro_batches
            count = denominators.entropy_tokens or local
        mean = torch.where(selected, entropies, 0.0).sum() / torch.as_tensor(count).clamp(min=1)
        metrics.constant("entropy_coef", self.entropy.value, mean.device)
        return self.entropy.coefficient * mean

    def _value_loss(
        self, batch: WorkingBatch, outputs: PolicyOutputs, rows: Rows, denominators: Denominators, metrics: Metrics
    ) -> Tensor:
        named = {
            "PolicyOutputs.values": outputs.values,
            "Rows.old_values": rows.old_values,
            "Rows.returns": rows.returns,
        }
        for name, tensor in named.items():
            if tensor is None:
                raise ValueError(f"baseline='value' needs {name}")
        values, old, returns = (masked(x, batch.mask, batch.logps.dtype) for x in named.values() if x is not None)
        per_token = value_loss(values, old, returns, self.spec.cliprange_value)
        lengths = Lengths.of(batch.mask, values.dtype)
        loss = weighted_sum(per_token, batch.mask, dapo(lengths, denominators.counting_all()))
        metrics.total("value_loss", loss)
        metrics.masked_mean("value/clip_ratio", (values - old).abs() > self.spec.cliprange_value, batch.mask)
        return self.spec.vf_coef * loss

    def _weights(self, batch: WorkingBatch, denominators: Denominators) -> Tensor:
        return self.row_weights(batch.mask, denominators, batch.logps.dtype, batch.trajectory_ids, batch.group_tokens)


def _measure_policy(batch: WorkingBatch, log_weight: Tensor, metrics: Metrics) -> None:
    if batch.entropies is not None:
        metrics.masked_mean("entropy", batch.entropies, batch.mask)
    seen = batch.mask if log_weight.shape == batch.mask.shape else batch.mask.any(-1, keepdim=True)
    metrics.maximum("ratio/max", bounded_exp(log_weight), seen)
    metrics.minimum("ratio/min", bounded_exp(log_weight), seen)
    metrics.masked_mean("guard/ratio_overflow", overflows(log_weight.detach()), seen)


def _measure(name: str, value: Tensor, mask: Tensor, metrics: Metrics) -> None:
    """The mean over tokens (or sequences), and for clipping the extremes over sequences, under TRL's names."""
    per_token = value.shape == mask.shape
    seen = mask if per_token else mask.any(-1, keepdim=True)
    metrics.masked_mean(name, value, seen)
    extreme = {"clip_ratio/low_mean": metrics.minimum, "clip_ratio/high_mean": metrics.maximum}.get(name)
    if extreme is not None:
        counted = value.to(torch.float32) * seen
        fraction = counted.sum(-1) / seen.sum(-1).clamp(min=1)
        extreme(name.replace("low_mean", "low_min").replace("high_mean", "high_max"), fraction, mask.any(-1))
