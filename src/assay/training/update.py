"""One optimiser update: a window of rows in micro-batches, whose gradients add up to exactly that of the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from assay.errors import RunError
from assay.objectives import Denominators, Metrics, Objective
from assay.policy import Policy, ScoringBatch
from assay.policy.model import EntropyMode
from assay.ranks import Ranks
from assay.training.options import TrainOptions
from assay.training.rows import Window, keep_token_values, micro_batches, select, to_device

GRADIENT_BUCKET = 2**24

# Names of what the objective measures about the distance from the sampler.
SAMPLER = "sampling/"

# Of every so many groups that are scored with the sampler's outputs, one row is scored without.
PROBE_EVERY = 4


@dataclass(frozen=True)
class Updated:
    """What an update measured. `skipped` when no row of any rank had a signal: nothing moved, not even momentum."""

    metrics: dict[str, float]
    skipped: bool


class Updater:
    """Holds what stays the same from update to update. `dump_folder` gets the offending window of a NaN."""

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        options: TrainOptions,
        *,
        temperature: float,
        max_completion_length: int,
        seed: int,
        ranks: Ranks,
        dump_folder: Path,
    ) -> None:
        self.policy = policy
        self.objective = objective
        self.optimizer = optimizer
        self.options = options
        self.temperature = temperature
        self.max_completion_length = max_completion_length
        self.seed = seed
        self.ranks = ranks
        self.dump_folder = dump_folder
        self.parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        bonus = objective.spec.has_entropy_bonus
        measured = objective.needs_entropy or options.token_entropies
        self.entropies: EntropyMode = "grad" if bonus else "value" if measured else "none"
        self.scaler = torch.amp.GradScaler(policy.device.type, enabled=policy.choices["dtype"] == "float16")

    def __call__(self, window: Window, step: int, learning_rate: float) -> Updated:
        """Update the policy by `window` (this rank's share); collective: every rank calls it with its own share."""
        plan = self.plan(window, window.forwarded(self.objective.forwards_dead_rows))
        denominators = self.denominators(window, len(plan))
        if self.ranks.max(len(plan)) == 0:
            return Updated({"skipped_update": 1.0, "learning_rate": learning_rate, "grad_norm": 0.0}, skipped=True)
        self.policy.train()
        torch.manual_seed(self.seed + step)
        try:
            parts = [self.backward(window, indices, denominators) for indices in plan]
            parts = parts or [self.measure_nothing(denominators, window)]
            parts += self.probe(window, plan, step, denominators)
        except ValueError as error:
            raise self.not_finite(window, step, str(error)) from error
        self.sum_gradients()
        metrics = self.reduce(parts)
        norm = self.gradient_norm()
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            raise self.not_finite(window, step, f"the gradient norm is {norm} (loss {metrics.get('loss')})")
        self.apply(learning_rate)
        self.void_traces(window)
        if not self.weights_are_finite():
            raise self.not_finite(window, step, f"a step of size {learning_rate:g} left weights that are not finite")
        return Updated(
            {**metrics, "grad_norm": norm, "learning_rate": learning_rate, "skipped_update": 0.0}, skipped=False
        )

    def plan(self, window: Window, indices: list[int]) -> list[list[int]]:
        """Micro-batches of row indices under the token budget."""
        batch = window.batch.select(indices)
        cut = micro_batches(batch, self.options.token_budget, shared=self.policy.shares_prefixes)
        return [[indices[position] for position in micro] for micro in cut]

    def denominators(self, window: Window, parts: int) -> Denominators:
        """Counts over the window and all ranks, before anything is split."""
        sums = self.objective.measure(
            window.rows.mask,
            window.group_ids,
            window.no_signal,
            entropy_mask=window.rows.entropy_mask,
            micro_batches=parts,
        )
        return Denominators.from_sums(self.ranks.sum(sums), self.max_completion_length)

    def backward(self, window: Window, indices: list[int], denominators: Denominators) -> Metrics:
        """Add the gradient of some rows of the window.

        A pass that takes its outputs from the sampler says nothing about how far the two are apart; see `probe`.
        """
        batch = window.batch.select(indices)
        rows = to_device(select(window.rows, indices, batch.shape[1]), self.policy.device)
        outputs = self.policy(batch, temperature=self.temperature, entropies=self.entropies)
        loss, metrics = self.objective(outputs, rows, denominators)
        self.scaler.scale(loss).backward()
        keep_token_values(window.written(indices), "entropies", outputs.entropies)
        if self.policy.replays(batch):
            return metrics.split(SAMPLER)[1]
        keep_token_values(window.written(indices), "old_logps", outputs.logps)
        return metrics

    def sum_gradients(self) -> None:
        """Sum gradients over ranks in flat buckets: denominators are global, so the sum is the whole gradient."""
        if self.ranks.world == 1:
            return
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in buckets([parameter.grad for parameter in self.parameters if parameter.grad is not None]):
            flat = self.ranks.sum(torch.cat([gradient.flatten() for gradient in bucket]))
            for gradient, part in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def reduce(self, parts: list[Metrics]) -> dict[str, float]:
        """Metrics over micro-batches and ranks."""
        whole = Metrics.reduce(parts)
        if self.ranks.world > 1:
            additive, extreme = (tensor.to(self.policy.device) for tensor in whole.pack())
            whole = whole.unpack(self.ranks.sum(additive), self.ranks.maximum(extreme))
        self.objective.observe(whole)
        return whole.values()

    @torch.no_grad()
    def probe(self, window: Window, plan: list[list[int]], step: int, denominators: Denominators) -> list[Metrics]:
        """How far sampler and policy are apart, on a few rows of those that were scored with the sampler's outputs.

        With these there is no gap, even if the sampler had not got the policy's weights. One row of every few groups is
        taken, whatever rank it lies on. Every rank has the same entries.
        """
        replayed = [row for micro in plan if self.policy.replays(window.batch.select(micro)) for row in micro]
        first = {int(window.group_ids[row]): row for row in reversed(replayed)}
        groups = sorted(group for part in self.ranks.gather(list(first)) for group in part)
        if not groups:
            return []
        chosen = groups[step % min(PROBE_EVERY, len(groups)) :: PROBE_EVERY]
        rows = sorted(first[group] for group in chosen if group in first)
        found = [self.measure_nothing(denominators, window)]
        for indices in self.plan(replace(window, batch=replace(window.batch, traces=())), rows):
            batch = replace(window.batch.select(indices), traces=())
            outputs = self.policy(batch, temperature=self.temperature, entropies=self.entropies)
            tensors = to_device(select(window.rows, indices, batch.shape[1]), self.policy.device)
            found.append(self.objective(outputs, tensors, denominators)[1])
            keep_token_values(window.written(indices), "old_logps", outputs.logps)
        return [metrics.split(SAMPLER)[0] for metrics in found]

    def measure_nothing(self, denominators: Denominators, window: Window) -> Metrics:
        """Of an empty batch: a rank without rows must have the names that the others have."""
        with torch.no_grad():
            outputs = self.policy(ScoringBatch((), (), ()), entropies=self.entropies)
            return self.objective(outputs, to_device(select(window.rows, [], 1), self.policy.device), denominators)[1]

    def gradient_norm(self) -> float:
        """The norm over all trainable parameters, after which they are scaled down to `max_grad_norm`."""
        self.scaler.unscale_(self.optimizer)
        limit = self.options.max_grad_norm or math.inf
        return float(nn.utils.clip_grad_norm_(self.parameters, limit))

    def apply(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def void_traces(self, window: Window) -> None:
        """What the sampler computed was for the weights before this update."""
        for trace in window.batch.traces:
            if trace is not None:
                trace.recording.end()

    def weights_are_finite(self) -> bool:
        """Without this the sampler would write nonsense, no group would differ, and the run would idle to its end."""
        largest = torch._foreach_norm(list[torch.Tensor](self.parameters), math.inf)
        return bool(torch.stack([norm.float() for norm in largest]).isfinite().all())

    def not_finite(self, window: Window, step: int, reason: str) -> RunError:
        """Save what led to a NaN and say where it is."""
        path = self.dump_folder / f"nan-step-{step + 1}-rank-{self.ranks.rank}.pt"
        tensors = {name: value for name, value in vars(window.rows).items() if value is not None}
        batch = {
            "tokens": [torch.tensor(row) for row in window.batch.rows],
            "prompts": [torch.tensor(prompt) for prompt in window.batch.prompts],
            "row_prompt": window.batch.row_prompt,
        }
        torch.save({"step": step + 1, "reason": reason, "rows": tensors, **batch}, path)
        return RunError(
            f"step {step + 1}: {reason}; the batch is in {path}. Checkpoints are whole. Start again under another name "
            "with a lower train.learning_rate, or with model.dtype=float32"
        )


def buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Consecutive tensors of one dtype, up to a number of elements."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        full = bucket and sum(item.numel() for item in bucket) + tensor.numel() > GRADIENT_BUCKET
        if bucket and (full or bucket[0].dtype != tensor.dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
