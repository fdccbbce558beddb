"""A round: scored groups become advantages, and windows of rows that updates consume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from assay.objectives import (
    Metrics,
    Objective,
    Rows,
    TokenInputs,
    compute_advantages,
    entropy_threshold,
    group_tokens,
    high_entropy_mask,
)
from assay.policy import Policy, ScoringBatch
from assay.policy.recording import live_traces
from assay.ranks import Ranks
from assay.records import Group
from assay.rewards import Scorer, reward_table
from assay.training.options import TrainOptions
from assay.training.rows import Window, keep_token_values, micro_batches, scoring_batch, select, tensors_of


@dataclass(frozen=True)
class Round:
    """This rank's share of every update window of a round, and what the advantages measured over all ranks."""

    windows: list[Window]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Scored:
    """What passes without gradient found out about rows, each [N, T]; None where nothing needs it."""

    old_logps: torch.Tensor | None = None
    ref_logps: torch.Tensor | None = None
    values: torch.Tensor | None = None
    entropies: torch.Tensor | None = None


class Collator:
    """Turns groups (the same on every rank) into a `Round`; writes each completion's advantage back into it.

    Attributes:
        baselines: by a prompt's content key, for an objective whose baseline is given; set before the first round.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        options: TrainOptions,
        *,
        scorer: Scorer,
        temperature: float,
        ranks: Ranks,
    ) -> None:
        self.policy = policy
        self.objective = objective
        self.options = options
        self.scorer = scorer
        self.temperature = temperature
        self.ranks = ranks
        self.baselines: Mapping[str, float] | None = None

    def __call__(self, groups: Sequence[Group]) -> Round:
        size = self.options.prompts_per_step
        window_of = [position // size for position in range(len(groups))]
        own = self.ranks.share(list(range(len(groups))))
        mine = [groups[position] for position in own]
        completions = [completion for group in mine for completion in group.completions]
        counts = [len(group.completions) for group in mine]
        group_ids = torch.tensor(np.repeat(own, counts), dtype=torch.long)
        windows = torch.tensor(np.repeat([window_of[position] for position in own], counts), dtype=torch.long)
        tokens, mask, sampling = tensors_of(completions)
        truncated = torch.tensor([completion.truncated for completion in completions], dtype=torch.bool)
        if self.objective.spec.mask_truncated_completions:
            mask = mask & ~truncated.unsqueeze(-1)
        batch = scoring_batch(mine, tokens)
        scored = self.score(batch, mask)
        if scored.old_logps is not None:
            keep_token_values(completions, "entropies", scored.entropies)
            # A row that was scored with the sampler's own outputs says nothing about the sampler.
            fresh = [row for row, trace in enumerate(live_traces(batch)) if trace is None]
            keep_token_values([completions[row] for row in fresh], "old_logps", scored.old_logps[fresh])
        result = compute_advantages(
            torch.from_numpy(reward_table(mine, self.scorer.functions)[0]),
            group_ids,
            self.scorer.weights,
            self.objective.spec,
            truncated=truncated,
            correct=verdicts(completions),
            tokens=TokenInputs(mask, scored.old_logps, scored.ref_logps, scored.values),
            baselines=self.given(mine),
            sum_over_ranks=self.ranks.sum,
        )
        self.write_back(groups, completions, result.advantages, mask)
        rows = Rows(
            mask=mask,
            advantages=result.advantages.float(),
            old_logps=scored.old_logps if self.options.updates_per_round > 1 else None,
            sampling_logps=sampling,
            ref_logps=scored.ref_logps,
            old_values=scored.values,
            returns=None if result.returns is None else result.returns.float(),
            group_tokens=group_tokens(mask, group_ids),
            entropy_mask=self.entropy_mask(scored.entropies, mask, windows),
        )
        whole = Window(batch, rows, group_ids, result.no_signal, tuple(completions))
        count = -(-len(groups) // size)
        parts = [part_of(whole, (windows == window).nonzero().flatten().tolist()) for window in range(count)]
        # What it says of rewards is of the groups that are trained on; rollout metrics are of all that were written.
        return Round(parts, self.reduce(result.metrics.split("kl")[0]))

    def given(self, groups: Sequence[Group]) -> torch.Tensor | None:
        """[N] baselines of the rows, where the objective takes them from outside."""
        if self.baselines is None:
            return None
        rows = [self.baselines[group.prompt.content_key] for group in groups for _ in group.completions]
        return torch.tensor(rows, dtype=torch.float64)

    @torch.no_grad()
    def score(self, batch: ScoringBatch, mask: torch.Tensor) -> Scored:
        """The passes without gradient that the objective needs before the first update of the round."""
        objective = self.objective
        # What was sampled had no dropout; neither has what it is compared with.
        self.policy.eval()
        old = self.options.updates_per_round > 1 or objective.needs_logps_for_advantages or objective.needs_values
        thresholds = old and objective.spec.top_entropy_quantile < 1
        found: dict[str, torch.Tensor | None] = {}
        if old:
            outputs = self.over_micro_batches(
                batch,
                lambda micro: self.policy(
                    micro, temperature=self.temperature, entropies="value" if thresholds else "none"
                ),
            )
            found |= {
                "old_logps": outputs["logps"],
                "values": outputs.get("values"),
                "entropies": outputs.get("entropies"),
            }
        if objective.needs_ref:
            reference = self.over_micro_batches(
                batch, lambda micro: self.policy(micro, temperature=self.temperature, reference=True)
            )
            found["ref_logps"] = reference["logps"]
        return Scored(**found)

    def over_micro_batches(self, batch: ScoringBatch, score: Callable) -> dict[str, torch.Tensor]:
        """Score all rows under the token budget; [N, T] tensors by name, on the CPU, in the rows' order."""
        whole: dict[str, torch.Tensor] = {}
        for indices in micro_batches(batch, self.options.token_budget, shared=self.policy.shares_prefixes):
            outputs = vars(score(batch.select(indices)))
            for name, tensor in outputs.items():
                if tensor is None:
                    continue
                target = whole.setdefault(name, torch.zeros(batch.shape, dtype=tensor.dtype))
                target[torch.tensor(indices), : tensor.shape[1]] = tensor.cpu()
        return whole or {"logps": torch.zeros(batch.shape)}

    def entropy_mask(
        self, entropies: torch.Tensor | None, mask: torch.Tensor, windows: torch.Tensor
    ) -> torch.Tensor | None:
        """High-entropy tokens by each window's threshold over all ranks, where a pass without gradient exists."""
        quantile = self.objective.spec.top_entropy_quantile
        if entropies is None or quantile >= 1:
            return None
        chosen = torch.zeros_like(mask)
        last = self.ranks.max(int(windows.max()) if len(windows) else -1)
        for window in range(last + 1):
            rows = windows == window
            everyone = torch.cat(self.ranks.gather(entropies[rows][mask[rows]]))
            chosen[rows] = high_entropy_mask(entropies[rows], mask[rows], entropy_threshold(everyone, quantile))
        return chosen

    def write_back(self, groups: Sequence[Group], own: Sequence, advantages: torch.Tensor, mask: torch.Tensor) -> None:
        """Every rank's advantages into every rank's copy of the completions (token-level ones as their mean)."""
        if advantages.dim() == 2:
            advantages = torch.where(mask, advantages, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)
        shares = self.ranks.gather(advantages.tolist())
        for rank, values in enumerate(shares):
            theirs = [completion for group in groups[rank :: self.ranks.world] for completion in group.completions]
            for completion, value in zip(theirs, values, strict=True):
                completion.advantage = value

    def reduce(self, metrics: Metrics) -> dict[str, float]:
        if self.ranks.world == 1:
            return metrics.values()
        additive, extreme = metrics.pack()
        return metrics.unpack(self.ranks.sum(additive), self.ranks.maximum(extreme)).values()


def verdicts(completions: Sequence) -> torch.Tensor:
    """[N]: 1 correct, 0 not, NaN where there is no verdict."""
    return torch.tensor(
        [float("nan") if completion.correct is None else float(completion.correct) for completion in completions]
    )


def part_of(window: Window, indices: list[int]) -> Window:
    """Some rows of a window, as a window of its own with tensors as wide as its longest row."""
    batch = window.batch.select(indices)
    rows = select(window.rows, indices, batch.shape[1])
    own = tuple(window.completions[index] for index in indices)
    return Window(batch, rows, window.group_ids[indices], window.no_signal[indices], own)
