"""Redistribution: active entries leave some layers and come back in others, and their sum stays the same.

What sparse momentum and dynamic sparse reparameterization share. An update removes some active entries of each layer,
divides as many new ones among the layers, and takes those of the highest score in each. The budget is constant to the
last integer, and no layer is left empty.
"""

import sys
from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.kernels.ordered import top_mask
from gossamer.layers import SparseWeight, sparse_weights
from gossamer.sparsity.allocation import apportion
from gossamer.sparsity.clock import Clocked
from gossamer.sparsity.moves import Moved, WeightBatch, forget_histories, move
from gossamer.sparsity.selection import Segments

__all__ = ["Redistribution"]


class Redistribution(Clocked):
    """Moves active entries within and between the layers of ``model``; call :meth:`step` after ``backward``.

    A subclass says which entries stay, what the growth of a layer is proportional to, and where it grows.

    Args:
        model: A network of :func:`gossamer.sparsify`; layers that it keeps dense stay as they are.
        optimizer: The optimizer that holds its parameters; its state follows.
        update_period: Steps between updates, as a function of the step.
        last_step: The last step at which there may be an update.

    Example:
        >>> import gossamer
        >>> class ToTheLargest(Redistribution):
        ...     def keep(self, batch):
        ...         return batch.vector("mean").abs() > 0.1
        ...     def shares(self, batch, kept):
        ...         return [float(weight.mean.abs().mean()) for weight in batch.weights]
        ...     def scores(self, name, weight, removed):
        ...         return torch.rand(weight.shape.numel())
        >>> plain = nn.Sequential(nn.Linear(50, 20), nn.Linear(20, 10))
        >>> model = gossamer.sparsify(plain, density=0.1)
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
        >>> rule = ToTheLargest(model, optimizer, update_period=lambda step: 1, last_step=10)
        >>> rule.step(), gossamer.layers.active_parameters(model)
        (True, 120)
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, update_period: Callable[[int], int], last_step: int
    ) -> None:
        super().__init__()
        if world_size() > 1:
            raise ValueError(
                "entries that move between layers change parameters' shapes, which DDP cannot follow: train on one "
                "rank, or by a method that keeps the number of each layer, such as rigl"
            )
        self.optimizer, self.update_period, self.last_step = optimizer, update_period, last_step
        found = sparse_weights(model)
        self.weights = {n: w for n, w in found.items() if w.support.position is not None and w.mean.requires_grad}
        if not self.weights:
            raise ValueError(
                "no weights have inactive entries: convert with gossamer.sparsify(model, density=0.1) first"
            )

    @abstractmethod
    def keep(self, batch: WeightBatch) -> Tensor:
        """Which active entries of all weights stay; the largest of a weight stays in any case."""

    @abstractmethod
    def shares(self, batch: WeightBatch, kept: Tensor) -> list[float]:
        """What the number of new entries of each weight is proportional to; not negative."""

    @abstractmethod
    def scores(self, name: str, weight: SparseWeight, removed: Tensor) -> Tensor:
        """Finite scores of all entries of a weight, flat, the highest come in; ``removed`` has just left."""

    def moved(self, batch: WeightBatch, to: Moved) -> None:
        """Called after an update."""

    def step(self) -> bool:
        self.index += 1
        is_due = self.is_due(self.index)
        if is_due:
            self._update()
        return is_due

    def is_due(self, step: int) -> bool:
        """Whether there is an update at this step."""
        return step <= self.last_step and step % self.update_period(step) == 0

    @property
    def acts(self) -> bool:
        return self.is_due(self.index + 1)

    @property
    def chosen(self) -> dict[str, Any]:
        return {"update_period": self.update_period(1)}

    @torch.no_grad()
    def _update(self) -> None:
        batch = WeightBatch(self.weights)
        kept = self.keep(batch) | _largest(batch)
        n_kept = batch.active.counts(kept).tolist()
        grown = self._grown(batch, kept, n_kept)
        starts, _ = batch.numbers
        counts = [n + new for n, new in zip(n_kept, grown, strict=True)]
        parts = zip(batch.names, batch.weights, kept.split(batch.active.lengths), counts, strict=True)
        number = torch.cat([start + self._chosen(*part) for start, part in zip(starts, parts, strict=True)])
        to = Moved.to(batch, number, Segments(counts, batch.device))
        move(batch, to, batch.regrown(kept, None), [self.optimizer])
        forget_histories(self.optimizer)
        self.moved(batch, to)
        columns = {
            "removed": [n - stay for n, stay in zip(batch.active.lengths, n_kept, strict=True)],
            "replaced": to.entries.counts(to.is_new).tolist(),
            "active": counts,
        }
        figures = {name: dict(zip(batch.names, column, strict=True)) for name, column in columns.items()}
        self.record.append({"step": self.index, **figures})

    def _grown(self, batch: WeightBatch, kept: Tensor, n_kept: list[int]) -> list[int]:
        """How many entries each weight gets: as many in all as have left."""
        room = [weight.support.size - n for weight, n in zip(batch.weights, n_kept, strict=True)]
        # A share of zero gets what fits nowhere else.
        shares = [Fraction(max(share, sys.float_info.min)) for share in self.shares(batch, kept)]
        return apportion(batch.active.total - sum(n_kept), shares, room, least=0)

    def _chosen(self, name: str, weight: SparseWeight, kept: Tensor, count: int) -> Tensor:
        """Positions of a weight after the update, sorted: those kept and the highest scores."""
        position = weight.support.explicit(weight.mean.device).long()
        score = self.scores(name, weight, position[~kept]).clone()
        low, high = weight.support.frozen
        score[low:high] = -torch.inf
        score[position[kept]] = torch.inf
        return top_mask(score, count).nonzero().flatten()


def _largest(batch: WeightBatch) -> Tensor:
    """The largest active entry of each weight: an empty layer would cut the network in two."""
    return batch.active.top_mask(batch.vector("mean").abs(), [1] * len(batch.weights))
