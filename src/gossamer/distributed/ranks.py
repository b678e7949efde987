"""What the processes of one training agree on; without a process group there is one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes that train together; 1 when there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def average_over_ranks(tensor: Tensor) -> Tensor:
    """The mean of ``tensor`` over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
        tensor /= world_size()
    return tensor


class Message:
    """Tensors that all processes average in one message, where they are.

    Between :meth:`pack` and :meth:`unpack`, which move numbers within a device and may be parts of CUDA graphs, stands
    :meth:`average`, which may not: a lost process is an error there, and would be a wait without end inside a graph.

    Example:
        >>> message = Message([torch.ones(2), torch.zeros(())])
        >>> message.pack(), message.average(), message.unpack()
        (None, None, None)
        >>> message.tensors
        [tensor([1., 1.]), tensor(0.)]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.flat = torch.cat([tensor.detach().flatten() for tensor in self.tensors])
        parts = self.flat.split([tensor.numel() for tensor in self.tensors])
        self._parts = [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]

    @torch.no_grad()
    def pack(self) -> None:
        """Write the tensors into the message."""
        torch._foreach_copy_(self._parts, self.tensors)

    def average(self) -> None:
        """Exchange the message for the mean of all."""
        average_over_ranks(self.flat)

    @torch.no_grad()
    def unpack(self) -> None:
        """Write the means into the tensors."""
        torch._foreach_copy_(self.tensors, self._parts)


def from_first_rank(tensor: Tensor) -> Tensor:
    """The first process's ``tensor``, in place: for scores that are drawn at random."""
    if world_size() > 1:
        dist.broadcast(tensor, src=0)
    return tensor


def from_every_rank(tensor: Tensor) -> Tensor:
    """``tensor`` of each process, stacked: shape ``(ranks, …)``. There must be a process group."""
    gathered = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(gathered, tensor)
    return torch.stack(gathered)


def sum_over_ranks(number: int, device: torch.device | None = None) -> int:
    """The sum of a number over all processes."""
    return _reduced(number, dist.ReduceOp.SUM, device) if world_size() > 1 else number


def largest_over_ranks(number: int, device: torch.device | None = None) -> int:
    """The largest of the numbers of all processes."""
    return _reduced(number, dist.ReduceOp.MAX, device) if world_size() > 1 else number


def _reduced(number: int, how: dist.ReduceOp.RedOpType, device: torch.device | None) -> int:
    total = torch.tensor(number, device=device)
    dist.all_reduce(total, how)
    return int(total)


def on_any_rank(flags: list[bool], device: torch.device | None = None) -> list[bool]:
    """Flag by flag, whether it is true on some process."""
    if world_size() == 1:
        return flags
    votes = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(votes, dist.ReduceOp.MAX)
    return [bool(vote) for vote in votes.tolist()]
