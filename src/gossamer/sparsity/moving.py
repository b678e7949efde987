"""Moving a subspace: new positions, and every vector that has one number an entry follows them.

This is the only place that rewrites supports. Entries that stay keep their mean, std, gradient and optimizer state; new
ones start as their weight says, with a gradient and a state of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.layers import SparseWeight

__all__ = ["forget_histories", "move", "remove"]


@torch.no_grad()
def move(weight: SparseWeight, position: Tensor, regrown: Mapping[str, Tensor], optimizer: Optimizer | None) -> Tensor:
    """Make ``position`` (sorted) the active entries of ``weight``; returns which of them were active before.

    With as many positions as before everything is rewritten in place. Otherwise the parameters get another length but
    stay the same objects, and the tensors of the optimizer's state are replaced.

    Args:
        weight: The weight to move.
        position: The new sorted flat positions.
        regrown: Value of a new entry for each parameter with one number an entry, by name.
        optimizer: Whose state follows; any ``torch.optim`` optimizer.
    """
    old = weight.support.position
    assert old is not None
    slot = torch.searchsorted(old, position.to(old.dtype)).clamp_max_(len(old) - 1)
    survives = old[slot] == position
    is_new = ~survives

    def follow(values: Tensor, fill: Tensor | float) -> Tensor:
        return values[slot].masked_fill_(is_new, fill)

    for name, fill in regrown.items():
        parameter = weight.get_parameter(name)
        state = {} if optimizer is None else optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[key] = _rewrite(value, follow(value, 0.0))
        grad = parameter.grad
        parameter.grad = None  # its length may change
        _set_data(parameter, follow(parameter.data, fill.to(parameter.dtype)))
        if grad is not None:
            parameter.grad = _rewrite(grad, follow(grad, 0.0))
    weight.support.set_position(position)
    return survives


def remove(weight: SparseWeight, kept: Tensor, optimizer: Optimizer | None) -> None:
    """Keep only some of the active entries of ``weight``; the others leave the storage and the optimizer's state.

    Args:
        weight: The weight; it may be one whose every entry is active.
        kept: Which of the active entries stay, ``(n_active,)``.
        optimizer: Whose state follows.
    """
    if bool(kept.all()):
        return
    position = weight.support.explicit(weight.device)
    move(weight, position[kept], weight.regrown(kept), optimizer)


def forget_histories(optimizer: Optimizer) -> None:
    """Drop states that run over all parameters at once (L-BFGS): after a move their entries mean other weights."""
    for group in optimizer.param_groups:
        total = sum(parameter.numel() for parameter in group["params"])
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if any(_is_history(value, total, parameter) for value in state.values()):
                state.clear()


def _is_history(value: Any, total: int, parameter: Tensor) -> bool:
    if isinstance(value, Tensor):
        return value.shape == (total,) and value.shape != parameter.shape
    return isinstance(value, list)


def _set_data(parameter: Tensor, data: Tensor) -> None:
    if data.shape == parameter.shape:
        parameter.data.copy_(data)
        return
    # Who still holds the last loss holds its graph, and torch would use the node that gathers this gradient again, with
    # the old length. It makes a new node only when the dtype changes.
    parameter.data = data.to(torch.float32 if data.dtype == torch.float16 else torch.float16)
    parameter.data = data


def _rewrite(old: Tensor, new: Tensor) -> Tensor:
    return old.copy_(new) if old.shape == new.shape else new
