"""Pruning at one step of a training, by what the weights have learnt until then."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import SparseWeight, density, sparse_weights
from gossamer.sparsity.clock import Clocked
from gossamer.sparsity.moves import forget_histories, remove
from gossamer.types import Step

__all__ = ["Cut"]

Margin = Callable[[SparseWeight], Tensor]
"""By how much each active entry of a weight passes its test; those above zero stay."""


class Cut(Clocked):
    """Removes, at step ``at``, all entries that fail a test; they leave the storage and the optimizer's state.

    It acts before the optimizer's step. Every weight keeps at least the entry with the largest margin.

    Args:
        model: A converted network.
        optimizer: The optimizer that holds its parameters.
        margin: A function of a weight that returns one number per active entry; those above zero stay.
        at: The step, counted from 1.

    Example:
        >>> import gossamer
        >>> model = gossamer.sparsify(nn.Linear(50, 10), density=1.0)
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
        >>> cut = Cut(model, optimizer, lambda weight: weight.mean.abs() - 0.1, at=3)
        >>> for number in range(1, 4):
        ...     _ = cut(Step(number, model, optimizer, lambda: torch.zeros(())))
        >>> bool(model.mean.abs().min() > 0.1), cut.record[0]["step"]
        (True, 3)
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, margin: Margin, at: int) -> None:
        super().__init__()
        self.optimizer, self.margin, self.at = optimizer, margin, at

    @property
    def acts(self) -> bool:
        return self.index + 1 == self.at

    @torch.no_grad()
    def __call__(self, step: Step) -> bool:
        """Cut if this is the step; the gradient is never spent."""
        self.index = step.number
        if step.number != self.at:
            return False
        weights = sparse_weights(step.model)
        before = {name: weight.support.n_active for name, weight in weights.items()}
        for weight in weights.values():
            margin = self.margin(weight)
            stays = margin > 0
            stays[margin.argmax()] = True  # kernels have no empty weights
            remove(weight, stays, [self.optimizer])
        forget_histories(self.optimizer)
        active = {name: weight.support.n_active for name, weight in weights.items()}
        removed = {name: before[name] - active[name] for name in weights}
        row = {"step": step.number, "density": density(step.model), "active": active, "removed": removed}
        self.record.append(row)
        return False
