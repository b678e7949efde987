"""The plain network, trained by SGD or Adam: the baseline of every other method."""

from typing import Literal

from torch.optim import SGD, Adam

from gossamer.posterior import Last
from gossamer.schedules import cosine
from gossamer.types import Method, Task

__all__ = ["sgd"]


def sgd(
    task: Task,
    steps: int,
    *,
    optimizer: Literal["sgd", "adam"] = "sgd",
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
) -> Method:
    """The plain network, trained by SGD with momentum or by Adam.

    Args:
        optimizer: ``"sgd"`` or ``"adam"``.
        lr: Learning rate at the start of a cosine; 0.1, and 0.001 for Adam.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
    """
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"optimizer must be 'sgd' or 'adam'; got {optimizer!r}")
    rate = (0.1 if optimizer == "sgd" else 1e-3) if lr is None else lr
    return Method(
        optimizer=lambda model: (
            SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)
            if optimizer == "sgd"
            else Adam(model.parameters(), lr=rate)
        ),
        lr=cosine(rate, steps),
        collector=Last,
        lr_is_given=lr is not None,
        one_rate=optimizer == "sgd",
    )
