"""Statistics over the groups of a round: which completions are compared with one another, and what they agree on."""

from __future__ import annotations

import torch
from torch import Tensor

# Equal weighted sums may differ in their last bits when they were added up from different parts.
_ROUNDING = 8 * torch.finfo(torch.float64).eps


class Groups:
    """Rows that share an id in `group_ids` [N]. Methods take [N] or [N, F] and give each row its group's value.

    `votes`, of the shape of x, says which entries take part; values elsewhere (NaN too) are never read.
    """

    def __init__(self, group_ids: Tensor) -> None:
        _, self.index = torch.unique(group_ids, return_inverse=True)
        self.count = int(self.index.max()) + 1 if len(self.index) else 0

    def sum(self, x: Tensor, votes: Tensor) -> Tensor:
        kept = torch.where(votes, x, 0.0)
        return torch.zeros((self.count, *x.shape[1:]), dtype=x.dtype, device=x.device).index_add(0, self.index, kept)[
            self.index
        ]

    def size(self, votes: Tensor, dtype: torch.dtype) -> Tensor:
        return self.sum(votes.to(dtype), votes)

    def mean(self, x: Tensor, votes: Tensor) -> Tensor:
        return self.sum(x, votes) / self.size(votes, x.dtype).clamp(min=1)

    def std(self, x: Tensor, votes: Tensor, kind: str) -> Tensor:
        """Sample (n - 1) or population (n) standard deviation; zero where a group has one vote."""
        squares = self.sum((x - self.mean(x, votes)).square(), votes)
        size = self.size(votes, x.dtype)
        return (squares / (size - int(kind == "sample")).clamp(min=1)).sqrt()

    def leave_one_out_mean(self, x: Tensor, votes: Tensor) -> Tensor:
        """The mean of the other votes of the group; a row's own value where it is the only one."""
        others = self.size(votes, x.dtype) - 1
        return torch.where(others > 0, (self.sum(x, votes) - x) / others.clamp(min=1), x)

    def all(self, x: Tensor, votes: Tensor) -> Tensor:
        """Whether x is True for every vote of the group."""
        return self.sum((~x).to(torch.float32), votes) == 0

    def uniform(self, x: Tensor, votes: Tensor) -> Tensor:
        """Whether all votes of the group are equal (up to the rounding of a sum); True where there is none or one.

        >>> groups = Groups(torch.tensor([0, 0, 1, 1]))
        >>> x = torch.tensor([0.1 + 0.2, 0.3, 0.0, 1e-9], dtype=torch.float64)
        >>> groups.uniform(x, torch.ones(4, dtype=torch.bool)).tolist()
        [True, True, False, False]
        """
        shape = (self.count, *x.shape[1:])
        index = self.index.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
        low = torch.full(shape, torch.inf, dtype=x.dtype, device=x.device)
        low = low.scatter_reduce(0, index, torch.where(votes, x, torch.inf), "amin")[self.index]
        high = torch.full(shape, -torch.inf, dtype=x.dtype, device=x.device)
        high = high.scatter_reduce(0, index, torch.where(votes, x, -torch.inf), "amax")[self.index]
        return (high - low) <= _ROUNDING * torch.maximum(high.abs(), low.abs())
