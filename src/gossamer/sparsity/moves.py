"""Moving a subspace: new positions, and every vector that has one number an entry follows them.

This is the only place that rewrites supports. Entries that stay keep their mean, std, gradient and optimizer state; new
ones start as their weight says, with a gradient and a state of zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.layers import SparseWeight
from gossamer.sparsity.weight_batch import WeightBatch

__all__ = ["forget_histories", "move", "move_together", "remove"]


@torch.no_grad()
def move(
    weight: SparseWeight, position: Tensor, regrown: Mapping[str, Tensor], optimizers: Iterable[Optimizer] = ()
) -> Tensor:
    """Make ``position`` (sorted) the active entries of ``weight``; returns which of them were active before.

    With as many positions as before everything is rewritten in place. Otherwise the parameters get another length but
    stay the same objects, and the tensors of the optimizer's state are replaced.

    Args:
        weight: The weight to move.
        position: The new sorted flat positions.
        regrown: Value of a new entry for each parameter with one number an entry, by name.
        optimizers: Those whose state follows; any of ``torch.optim``.
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
        for state in _states(optimizers, parameter):
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


@torch.no_grad()
def move_together(
    batch: WeightBatch,
    position: Tensor,
    slot: Tensor,
    is_new: Tensor,
    regrown: Mapping[str, Tensor],
    optimizers: Iterable[Optimizer],
) -> None:
    """As :func:`move`, for weights taken as one that keep their numbers of entries: all in place, in few kernels.

    Args:
        batch: The weights, each with positions.
        position: Their new positions, each weight's sorted and in its own numbers, end to end.
        slot: Where each of the new entries was among all active entries.
        is_new: Which of them were nowhere.
        regrown: Value of a new entry of each weight for each vector, ``(weights,)``.
        optimizers: Those whose state follows.
    """
    for name, fill in regrown.items():
        parameters = [weight.get_parameter(name) for weight in batch.weights]
        states = [_merged(_states(optimizers, parameter)) for parameter in parameters]
        _follow(batch, [parameter.data for parameter in parameters], slot, is_new, batch.active.spread(fill))
        _follow(batch, [parameter.grad for parameter in parameters], slot, is_new)
        for key in dict.fromkeys(key for state in states for key in state):
            _follow(batch, [_like(s.get(key), p) for s, p in zip(states, parameters, strict=True)], slot, is_new)
    old = batch.positions()
    if len({one.dtype for one in old}) == 1:
        position = position.to(old[0].dtype)  # one kernel copies what needs no conversion
    torch._foreach_copy_(old, list(position.split(batch.active.lengths)))
    for weight in batch.weights:
        weight.support.moved()


def remove(weight: SparseWeight, kept: Tensor, optimizers: Iterable[Optimizer] = ()) -> None:
    """Keep only some of the active entries of ``weight``; the others leave the storage and the optimizer's state.

    Args:
        weight: The weight; it may be one whose every entry is active.
        kept: Which of the active entries stay, ``(n_active,)``.
        optimizers: Those whose state follows.
    """
    if bool(kept.all()):
        return
    position = weight.support.explicit(weight.device)
    move(weight, position[kept], weight.regrown(kept), optimizers)


def forget_histories(optimizer: Optimizer) -> None:
    """Drop states that run over all parameters at once (L-BFGS): after a move their entries mean other weights."""
    for group in optimizer.param_groups:
        total = sum(parameter.numel() for parameter in group["params"])
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if any(_is_history(value, total, parameter) for value in state.values()):
                state.clear()


def _follow(
    batch: WeightBatch, vectors: Sequence[Tensor | None], slot: Tensor, is_new: Tensor, fill: Tensor | None = None
) -> None:
    """Rewrite one vector of each weight; where a weight has none there is nothing to rewrite."""
    present = [vector for vector in vectors if vector is not None]
    if not present:
        return
    every = zip(vectors, batch.active.lengths, strict=True)
    values = torch.cat([present[0].new_zeros(n) if vector is None else vector for vector, n in every])[slot]
    values = values.masked_fill_(is_new, 0.0) if fill is None else torch.where(is_new, fill.to(values.dtype), values)
    parts = zip(values.split(batch.active.lengths), vectors, strict=True)
    torch._foreach_copy_(present, [part for part, vector in parts if vector is not None])


def _states(optimizers: Iterable[Optimizer], parameter: Tensor) -> list[dict[str, Any]]:
    """What each optimizer knows of a parameter; asking must not make an entry, by which some tell their first step."""
    return [optimizer.state[parameter] for optimizer in optimizers if parameter in optimizer.state]


def _merged(states: list[dict[str, Any]]) -> dict[tuple[int, str], Any]:
    return {(number, key): value for number, state in enumerate(states) for key, value in state.items()}


def _like(value: Any, parameter: Tensor) -> Tensor | None:
    return value if isinstance(value, Tensor) and value.shape == parameter.shape else None


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
