"""Ranks: the few collective operations that a run needs, the same with one process as with many. A leaf."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Ranks:
    """This process's place among all of them. With one process every operation is the identity."""

    def __init__(self) -> None:
        self.active = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.active else 0
        self.world = dist.get_world_size() if self.active else 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, items: list[T]) -> list[T]:
        """The items that fall to this rank, every `world`-th: which rank has which depends on position alone."""
        return items[self.rank :: self.world]

    def interleave(self, shares: list[list[T]]) -> list[T]:
        """The inverse of `share` over all ranks' parts."""
        total = sum(len(share) for share in shares)
        return [shares[position % self.world][position // self.world] for position in range(total)]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of a small tensor (any device); same shape."""
        if self.active:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elementwise largest over ranks of a small tensor; same shape."""
        if self.active:
            tensor = tensor.clone()
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def max(self, value: int) -> int:
        """The largest of one number a rank."""
        return max(self.gather(value))

    def gather(self, item: T) -> list[T]:
        """One Python object a rank, in rank order, on every rank."""
        if not self.active:
            return [item]
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, item)
        return gathered

    def broadcast(self, item: T) -> T:
        """Rank 0's object on every rank."""
        if not self.active:
            return item
        box: list[Any] = [item]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        if self.active:
            dist.barrier()


def start_ranks() -> None:
    """Join the process group that a launcher (accelerate launch, torchrun) set up; nothing without one."""
    import os

    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not (dist.is_available() and dist.is_initialized()):
        from accelerate import PartialState

        PartialState(cpu=not torch.accelerator.is_available())
