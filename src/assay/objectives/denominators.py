"""What a sum is divided by: counted over the whole update window and all ranks, before the window is cut.

The window's loss is a sum of per-token terms times fixed weights, so its gradient cannot depend on how the window was
cut into micro-batches, on their order, on padding, or on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.objectives.batch import wide

_ADDITIVE = ("tokens", "rows", "groups", "all_tokens", "all_rows", "all_groups", "entropy_tokens", "micro_batches")


@dataclass(frozen=True)
class Denominators:
    """Counts over an update window and all ranks.

    `tokens`, `rows` (trajectories) and `groups` count what the policy term divides by; the `all_` ones also count the
    rows without signal, and divide the KL, entropy and value terms, which those rows do have. `entropy_tokens` counts
    high-entropy tokens (0: not known before the split). `micro_batches` is read by the `bnpo` aggregation only.

    Adding the tensors of `measure` over windows' parts and ranks and calling `from_sums` gives the counts of the whole:

    >>> mask = torch.tensor([[True, True, False], [True, True, True]])
    >>> sums = Denominators.measure(mask, group_ids=torch.tensor([0, 0]))
    >>> both = Denominators.from_sums(sums + sums, max_completion_length=8)
    >>> both.tokens, both.rows, both.groups
    (10.0, 4.0, 2.0)
    """

    tokens: float
    rows: float
    groups: float
    all_tokens: float
    all_rows: float
    all_groups: float
    entropy_tokens: float = 0.0
    micro_batches: float = 1.0
    max_completion_length: int | None = None

    @staticmethod
    def measure(
        mask: Tensor,
        group_ids: Tensor,
        *,
        no_signal: Tensor | None = None,
        kept: Tensor | None = None,
        trajectory_ids: Tensor | None = None,
        entropy_mask: Tensor | None = None,
        group_rows: Tensor | None = None,
        micro_batches: int = 0,
    ) -> Tensor:
        """One rank's share of a window as a flat float64 tensor, to be summed over ranks.

        `mask` [N, T] and `group_ids` [N] describe all rows of the window, forwarded or not. `no_signal` [N] marks rows
        that the policy term leaves out of its denominators (None: it counts every row); `kept` [N] marks rows that
        count at all (None: rows with a counted token). A group must lie in one rank's share, or `group_rows` [N] must
        say how many counted rows it has over all ranks.
        """
        tokens = wide(mask.sum(-1))
        kept = (tokens > 0) if kept is None else kept
        live = kept if no_signal is None else kept & ~no_signal
        entropy_tokens = 0.0 if entropy_mask is None else (entropy_mask & mask)[kept].sum().item()
        counts = [_count(tokens, rows, group_ids, trajectory_ids, group_rows) for rows in (live, kept)]
        flat = [*counts[0], *counts[1], float(entropy_tokens), float(micro_batches)]
        return torch.tensor(flat, dtype=tokens.dtype, device=mask.device)

    @classmethod
    def from_sums(cls, sums: Tensor, max_completion_length: int | None = None) -> Denominators:
        """The window's counts from the sum over ranks of what `measure` gave."""
        fields = dict(zip(_ADDITIVE, sums.tolist(), strict=True))
        fields["micro_batches"] = fields["micro_batches"] or 1.0
        return cls(**fields, max_completion_length=max_completion_length)

    def with_micro_batches(self, count: int) -> Denominators:
        """The same window, cut into `count` micro-batches over all ranks."""
        return replace(self, micro_batches=float(count))

    def counting_all(self) -> Denominators:
        """The denominators of terms that rows without signal have too (KL, entropy, value)."""
        return replace(self, tokens=self.all_tokens, rows=self.all_rows, groups=self.all_groups)


def sum_locally(x: Tensor) -> Tensor:
    """The sum over ranks where there is one rank."""
    return x


SumOverRanks = Callable[[Tensor], Tensor]


def _count(
    tokens: Tensor, rows: Tensor, group_ids: Tensor, trajectory_ids: Tensor | None, group_rows: Tensor | None
) -> tuple[float, float, float]:
    """(tokens, trajectories, groups) among the selected rows."""
    trajectories = int(rows.sum()) if trajectory_ids is None else torch.unique(trajectory_ids[rows]).numel()
    if group_rows is None:
        groups = float(torch.unique(group_ids[rows]).numel())
    else:
        groups = (1.0 / wide(group_rows[rows])).sum().item()
    return tokens[rows].sum().item(), float(trajectories), groups
