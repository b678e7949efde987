"""Parts that several methods share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.posterior import Refresh
from gossamer.types import Task


def update_period_for(steps: int, update_period: int | None, usual: int = 100) -> int:
    """The given period; by default the paper's ``usual`` one, but at most a fiftieth of the training."""
    return update_period or min(usual, max(1, steps // 50))


def noise_of_all_ranks() -> torch.Generator:
    """A generator for noise on the weights: the same on every rank, or their networks would diverge.

    A method's optimizer is built while all ranks are in the same random state.
    """
    return torch.Generator().manual_seed(int(torch.randint(2**62, ())))


def refresh_of(task: Task, is_wanted: bool = True) -> Refresh | None:
    """Recomputes batch-norm statistics of a draw from the training data of ``task``, if that is wanted.

    The data are augmented as in training: the layers after a normalisation were trained with the statistics of
    augmented data and do worse with others, even though the data to predict are not augmented.
    """
    return None if not is_wanted else Refresh(task.train[0], partial(_as_in_training, task.augment, task.transform))


def _as_in_training(augment: Callable[[Tensor], Tensor], transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return transform(augment(x))


def given(**options: Any) -> dict[str, Any]:
    """The options that are not ``None``."""
    return {name: value for name, value in options.items() if value is not None}


def only_with(what: str, **options: Any) -> None:
    """Refuse options that mean something only with another one."""
    if found := given(**options):
        raise ValueError(f"{' and '.join(found)} can only be given with {what}")


def first_given(*values: float | None) -> float:
    """The first value that is not ``None``."""
    return next(value for value in values if value is not None)
