"""Parts that several methods share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from gossamer.layers import param_groups
from gossamer.posterior import Refresh
from gossamer.types import Mode, Task

__all__ = [
    "first_given",
    "noise_of_all_ranks",
    "refresh_of",
    "update_period_for",
    "variational_defaults",
    "variational_optimizer",
]

REFERENCE = (0.01, 0.01)  # lr and kl_weight of the released code
# Chosen on held-out digits, an MLP and a conv net at densities 1 and 0.05: the ELBO itself (weight 1) underfits there,
# a dense MLP by six points of accuracy, because every weight pays for a posterior of its own.
DEFAULT = (0.02, 0.02)


def variational_defaults(mode: Mode, lr: float | None, kl_weight: float | None) -> tuple[float, float]:
    """Learning rate and KL weight, by default those of the mode."""
    default_lr, default_weight = REFERENCE if mode == "reference" else DEFAULT
    return default_lr if lr is None else lr, default_weight if kl_weight is None else kl_weight


def variational_optimizer(mode: Mode, lr: float, std_lr: float | None = None) -> Callable[[nn.Module], Optimizer]:
    """SGD as in the released code, with which σ hardly moves; otherwise Adam, whose step in log σ is free of N."""
    if mode == "reference":
        return lambda model: SGD(param_groups(model, weight_decay=5e-4, std_lr=std_lr), lr=lr, momentum=0.9)
    return lambda model: Adam(param_groups(model, std_lr=std_lr), lr=lr)


def update_period_for(steps: int, update_period: int | None) -> int:
    """The given period; by default the papers' 100 steps, or a fiftieth of a training shorter than 5,000 steps."""
    return update_period or min(100, max(1, steps // 50))


def noise_of_all_ranks() -> torch.Generator:
    """A generator for noise on the weights: the same on every rank, or their networks would diverge.

    A method's optimizer is built while all ranks are in the same random state.
    """
    return torch.Generator().manual_seed(int(torch.randint(2**62, ())))


def refresh_of(task: Task) -> Refresh:
    """Recomputes batch-norm statistics of a draw from the training data of ``task``.

    The data are augmented as in training: the layers after a normalisation were trained with the statistics of
    augmented data and do worse with others, even though the data to predict are not augmented.
    """
    return Refresh(task.train[0], partial(_as_in_training, task.augment, task.transform))


def _as_in_training(augment: Callable[[Tensor], Tensor], transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return transform(augment(x))


def first_given(*values: float | None) -> float:
    """The first value that is not ``None``.

    Example:
        >>> first_given(None, 0.0, 1.0)
        0.0
    """
    return next(value for value in values if value is not None)
