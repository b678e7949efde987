"""Moving a subspace: new positions, and every vector that has one number per entry follows them.

This is the only place that rewrites supports. Entries that stay keep their mean, std, gradient, estimate of the
curvature and optimizer state; new ones start as their weight says, with a gradient and a state of zero. Where a weight
``warms_states``, a state that is nowhere negative (Adam's mean square of the gradient) is the average of the layer's
instead: from zero, Adam's first steps for a new entry would be several times as long as those for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gossamer.kernels.dispatch import std_of_means
from gossamer.kernels.ordered import located
from gossamer.layers import CurvatureWeight, DeltaWeight, GaussianWeight, PointWeight, SparseWeight
from gossamer.layers.curvature import regrown_curvature
from gossamer.layers.gaussian import regrown_raw_std, std_of
from gossamer.layers.weight import RegrowStd
from gossamer.sparsity.selection import Segments, works_together
from gossamer.types import WeightStats

MOST = 1 << 15  # weights: their numbers are sorted as 16-bit integers


class WeightBatch:
    """Sparse weights of one device taken as one: active vectors end to end, dense entries numbered through."""

    def __init__(self, weights: Mapping[str, SparseWeight]) -> None:
        self.names, self.weights = list(weights), list(weights.values())
        self.device = self.weights[0].mean.device
        self.active = Segments([len(weight.mean) for weight in self.weights], self.device)
        self.sizes = [math.prod(weight.support.shape) for weight in self.weights]

    @property
    def is_one_kind(self) -> bool:
        """Whether the weights compute their stds and new entries alike, so that one call can do it for all."""
        # A kind of your own may compute its std otherwise, or have other vectors.
        known = all(
            type(weight) in (GaussianWeight, CurvatureWeight, DeltaWeight, PointWeight) for weight in self.weights
        )
        kinds = {(type(w), w.mode, w.mean.dtype) for w in self.weights}
        return known and len(kinds) == 1 and len(self.weights) < MOST

    def vector(self, name: str) -> Tensor:
        """One of the vectors of all weights, end to end."""
        with torch.no_grad():
            return torch.cat([getattr(weight, name) for weight in self.weights])

    @cached_property
    def numbers(self) -> tuple[Tensor, Tensor]:
        """The number of each weight's first dense entry, ``(weights,)``, and those of all active entries."""
        (starts,) = self.active.table([[sum(self.sizes[:i]) for i in range(len(self.sizes))]])
        positions = [weight.support.explicit(self.device) for weight in self.weights]
        return starts, torch.cat(positions) + self.active.spread(starts)

    def stats(self) -> WeightStats:
        """What a criterion sees of all active entries of weights of one kind."""
        return WeightStats(self.vector("mean"), self._std())

    def _std(self) -> Tensor | None:
        """σ of all active entries, in few kernels where all weights compute it with the same numbers."""
        curved = [weight for weight in self.weights if isinstance(weight, CurvatureWeight)]
        gaussians = [weight for weight in self.weights if isinstance(weight, GaussianWeight)]
        if curved and len({(w.noise_scale, w.damping) for w in curved}) == 1:
            shrinkage = self.active.spread(torch.stack([weight.shrinkage for weight in curved])).T
            means = self.vector("curvature"), self.vector("grad_square"), shrinkage
            return std_of_means(*means, curved[0].noise_scale, curved[0].damping).to(curved[0].mean.dtype)
        if gaussians and not curved:
            return std_of(self.vector("raw_std"))
        if not gaussians:
            return None
        with torch.no_grad():
            return torch.cat([weight.learnt_std() for weight in gaussians])

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None) -> dict[str, Tensor]:
        """Value of a new entry of each weight for each vector, ``(weights,)``, given which entries are kept."""
        first = self.weights[0]
        if not (self.is_one_kind and works_together(self.device)):
            masks = kept.split(self.active.lengths)
            own = [weight.regrown(mask, regrow_std) for weight, mask in zip(self.weights, masks, strict=True)]
            names = dict.fromkeys(name for values in own for name in values)
            return {name: torch.stack([values.get(name, kept.new_zeros(())) for values in own]) for name in names}
        zero = torch.zeros(len(self.weights), dtype=first.mean.dtype, device=self.device)
        if not isinstance(first, GaussianWeight):
            return {"mean": zero}
        among = kept | self.active.spread(self.active.counts(kept) == 0)  # all of them where none is kept

        def average(values: Tensor) -> Tensor:
            return self.active.sums(torch.where(among, values, 0)) / self.active.counts(among)

        if isinstance(first, CurvatureWeight):
            columns = torch.stack([self.vector("curvature"), self.vector("grad_square")], 1)
            both = torch.where(among[:, None], columns, 0)
            means, squares = (self.active.sums(both) / self.active.counts(among)[:, None]).T
            curved = [weight for weight in self.weights if isinstance(weight, CurvatureWeight)]
            fills = [regrown_curvature(w, mean, regrow_std) for w, mean in zip(curved, means, strict=True)]
            return {"mean": zero, "curvature": torch.stack(fills), "grad_square": squares}
        raw_std = regrown_raw_std(self.vector("raw_std"), first.regrows(regrow_std), average)
        return {"mean": zero, "raw_std": raw_std.expand_as(zero)}


class Moved(NamedTuple):
    """The entries of a batch that are active after a move."""

    entries: Segments  # how many each weight has
    position: Tensor  # sorted, in the numbers of their own weight
    slot: Tensor  # where each of them was among all active entries; from their number on, one for each weight, nowhere
    is_new: Tensor  # which of them were nowhere

    @classmethod
    def to(cls, batch: WeightBatch, number: Tensor, entries: Segments | None = None) -> Moved:
        """To the dense entries of these numbers, sorted; ``entries`` where weights change how many they have."""
        starts, old = batch.numbers
        entries = entries or batch.active
        slot, is_new = located(old, number)
        slot += is_new * entries.spread(torch.arange(len(batch.weights), device=batch.device))
        return cls(entries, number - entries.spread(starts), slot, is_new)


@torch.no_grad()
def move(batch: WeightBatch, to: Moved, regrown: Mapping[str, Tensor], optimizers: Iterable[Optimizer] = ()) -> None:
    """Make the entries of ``to`` the active ones.

    A weight that keeps its number of entries is rewritten in place. Otherwise its parameters get another length but
    stay the same objects, and the tensors of the optimizers' states are replaced. ``regrown`` has the value of a new
    entry of each weight for each vector, ``(weights,)``.
    """
    pending = [w.estimates.take(w.mean) if isinstance(w, CurvatureWeight) else None for w in batch.weights]
    for name, fill in regrown.items():
        parameters = [getattr(weight, name) if name in weight.vectors else None for weight in batch.weights]
        for optimizer in optimizers:
            states = [{} if p is None else optimizer.state.get(p, {}) for p in parameters]
            for key in dict.fromkeys(key for state in states for key in state):
                vectors = [_like(state.get(key), p) for state, p in zip(states, parameters, strict=True)]
                for state, vector in zip(states, _follow(batch, to, vectors, _warm(batch, vectors)), strict=True):
                    if vector is not None:
                        state[key] = vector
        grads = _follow(batch, to, [None if p is None else p.grad for p in parameters])
        values = _follow(batch, to, [None if p is None else p.data for p in parameters], fill)
        for parameter, value, grad in zip(parameters, values, grads, strict=True):
            if parameter is not None and value is not None and value.shape != parameter.shape:
                parameter.grad = None
                _set_data(parameter, value)
                parameter.grad = grad
    nothing = torch.full((len(batch.weights),), torch.nan, device=batch.device)  # is no estimate for a new entry
    for weight, estimate in zip(batch.weights, _follow(batch, to, pending, nothing), strict=True):
        if isinstance(weight, CurvatureWeight):
            weight.estimates.put(estimate, weight.mean)
    _set_positions(batch, to)


def remove(weight: SparseWeight, kept: Tensor, optimizers: Iterable[Optimizer] = ()) -> None:
    """Keep the active entries that ``kept`` marks; the others leave the weight and the states of its optimizers."""
    if bool(kept.all()):
        return
    batch = WeightBatch({"": weight})
    slot = kept.nonzero().flatten()
    position = weight.support.explicit(batch.device)[slot]
    to = Moved(Segments([len(slot)], batch.device), position, slot, torch.zeros_like(slot, dtype=torch.bool))
    move(batch, to, batch.regrown(kept, None), optimizers)


def forget_histories(optimizer: Optimizer) -> None:
    """Drop states that run over all parameters at once (L-BFGS): after a move their entries mean other weights."""
    for group in optimizer.param_groups:
        total = sum(parameter.numel() for parameter in group["params"])
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if any(_is_history(value, total, parameter) for value in state.values()):
                state.clear()


def after_steps(optimizer: Optimizer, method: Callable[[], None]) -> RemovableHandle:
    """Call a bound method after every step of the optimizer, until the hook is removed or its object is gone."""
    inner: Any = optimizer
    if not hasattr(optimizer, "_optimizer_step_post_hooks"):  # accelerate's wrapper has no hooks of its own
        inner = inner.optimizer
    found = WeakMethod(method)  # an optimizer must not keep a network alive

    def act(*_: Any) -> None:
        bound = found()
        if bound is not None:
            bound()

    hook: RemovableHandle = inner.register_step_post_hook(act)
    return hook


def _follow(
    batch: WeightBatch, to: Moved, vectors: Sequence[Tensor | None], fill: Tensor | None = None
) -> list[Tensor | None]:
    """One vector of each weight after the move: the same tensors, rewritten, where their length stays.

    A weight may have none. New entries take the ``fill`` of their weight, or zero.
    """
    present = [vector for vector in vectors if vector is not None]
    if not present:
        return list(vectors)
    every = zip(vectors, batch.active.lengths, strict=True)
    fill = present[0].new_zeros(len(batch.weights)) if fill is None else fill.to(present[0].dtype)
    values = torch.cat([*(present[0].new_zeros(n) if vector is None else vector for vector, n in every), fill])
    values = values.index_select(0, to.slot)
    parts = list(values.split(to.entries.lengths))
    pairs = [(old, part) for old, part in zip(vectors, parts, strict=True) if old is not None]
    stays = [(old, part) for old, part in pairs if old.shape == part.shape]
    if stays:
        torch._foreach_copy_([old for old, _ in stays], [part for _, part in stays])
    return [
        old if old is None or old.shape == part.shape else part.to(old.dtype, copy=True)
        for old, part in zip(vectors, parts, strict=True)
    ]


def _warm(batch: WeightBatch, vectors: Sequence[Tensor | None]) -> Tensor | None:
    """The state that new entries start with, ``(weights,)``; ``None`` for zero."""
    warms = [weight.warms_states and vector is not None for weight, vector in zip(batch.weights, vectors, strict=True)]
    present = [vector for vector, is_warm in zip(vectors, warms, strict=True) if is_warm and vector is not None]
    if not present or bool(torch.cat(present).amin() < 0):
        return None
    means = [
        vector.mean() if is_warm and vector is not None else present[0].new_zeros(())
        for vector, is_warm in zip(vectors, warms, strict=True)
    ]
    return torch.stack(means)


def _set_positions(batch: WeightBatch, to: Moved) -> None:
    supports = [weight.support for weight in batch.weights]
    old = [support.explicit(batch.device) for support in supports]
    if len({position.dtype for position in old}) == 1:
        to = to._replace(position=to.position.to(old[0].dtype))  # one kernel copies what needs no conversion
    parts = list(to.position.split(to.entries.lengths))
    if to.entries.lengths == batch.active.lengths:
        torch._foreach_copy_(old, parts)
        for support in supports:
            support.moved()
        return
    for support, part in zip(supports, parts, strict=True):
        support.set_position(part.clone())


def _like(value: Any, parameter: Tensor | None) -> Tensor | None:
    """A state that has one number per entry and so moves with its parameter; ``None`` for any other state."""
    return value if isinstance(value, Tensor) and parameter is not None and value.shape == parameter.shape else None


def _is_history(value: Any, total: int, parameter: Tensor) -> bool:
    if isinstance(value, Tensor):
        return value.shape == (total,) and value.shape != parameter.shape
    return isinstance(value, list)


def _set_data(parameter: Tensor, data: Tensor) -> None:
    # If the last loss is still alive, so is its graph, and torch would use its node for this gradient again, which has
    # the old length. It makes a new node only when the dtype changes.
    parameter.data = data.to(torch.float32 if data.dtype == torch.float16 else torch.float16)
    parameter.data = data
