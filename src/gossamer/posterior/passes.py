"""Passes of drawn networks that form nothing that is not active: one structure, and values for each draw.

A draw needs no network of its own. The layers of a twin of the network know the positions of its active entries, and
for a pass they hold the values of one draw or of several, over which ``torch.vmap`` maps all but the sparse layers.
:class:`FixedDraws` are drawn networks to deploy: positions once, and a value of each for every draw.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C import _functorch

from gossamer import kernels
from gossamer.kernels.draws import LANES
from gossamer.layers import GaussianWeight, PointWeight, SparseModule, SparseWeight, Support, replica, sparse_weights
from gossamer.layers.fixed import FixedWeight
from gossamer.layers.structure import Identity
from gossamer.posterior.draw import DrawnNetwork, unwrapped
from gossamer.types import Posterior, Saved, answer

# Numbers in the largest output of a layer, of all draws and examples: with more, outputs leave the caches.
MOST_AT_ONCE = 2**19
MOST_VALUES = 2**22  # of all weights, that are held at a time

NOTHING = torch.empty(0)

_kept: weakref.WeakKeyDictionary[nn.Module, tuple[Identity, DrawnPasses]] = weakref.WeakKeyDictionary()
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def drawn_passes(model: nn.Module) -> Iterator[DrawnPasses]:
    """The passes of a network; of one that was asked for before and has not changed since, the same, if nobody uses it.

    They share its tensors, so they follow what training does to these.
    """
    with _one_at_a_time:
        identity, passes = _kept.pop(model, (None, None))
    if identity is None or passes is None or not identity.is_of(model):
        identity, passes = Identity(model, SparseWeight), DrawnPasses(unwrapped(model))
    try:
        yield passes
    finally:
        passes.hold([])
        with _one_at_a_time:
            _kept[model] = identity, passes


class DrawnPasses(nn.Module):
    """A network in evaluation mode with the structure of ``model``, and with draws in place of its weights.

    It shares the other parameters and the buffers of ``model``, a converted network.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights = [module for module in model.modules() if isinstance(module, SparseWeight)]
        self.fixed = [FixedWeight(weight) for weight in self.weights]
        stand_ins = dict(zip(map(id, self.weights), self.fixed, strict=True))
        self.network = replica(model, stand_ins, share=True).eval()
        sparse = [module for module in self.network.modules() if isinstance(module, SparseModule)]
        self.together = bool(self.fixed) and all(module.takes_draws for module in sparse)
        self.values: list[Tensor] = []
        # Numbers in the largest output of a layer, by the shapes of an example, once a pass has shown it.
        self.largest: dict[tuple[torch.Size, ...], float] = {}

    def draws(self, n: int, generator: torch.Generator | None = None) -> Iterator[tuple[nn.Module, list[int]]]:
        """This module with the next draws, again and again, and that each of these counts once."""
        self._check()
        yield from ((self.hold([]), [1]) for _ in range(0 if self.weights else n))
        for tables in _tables(self.weights, n if self.weights else 0, generator):
            yield self.hold(tables), [1] * len(tables[0])

    def sampled(self, n: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """``n`` draws, ``(n, n_active)`` of each weight."""
        self._check()
        return next(_tables(self.weights, n, generator, most=n))

    def at_mean(self) -> nn.Module:
        """This module with the means."""
        self._check()
        return self.hold([weight.expected().detach().unsqueeze(0) for weight in self.weights])

    def hold(self, values: list[Tensor]) -> nn.Module:
        """This module with these values, ``(draws, n_active)`` of each weight; without any it holds none."""
        self.values = values
        self.rows: list[tuple[Tensor, ...]] = []  # of each draw, once they are computed one by one
        for i, fixed in enumerate(self.fixed):
            fixed.hold(values[i][0] if values else NOTHING)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of all draws, ``(draws, batch, …)``."""
        count = len(self.values[0]) if self.values else 1
        if count == 1 or not self.together or torch.compiler.is_exporting():
            return self._one_by_one(args, kwargs)
        run = partial(self._pass, args=args, kwargs=kwargs)
        at_once = self._together(run, [*args, *kwargs.values()])
        try:
            parts = [
                _mapped(run, [rows[first : first + at_once] for rows in self.values])
                for first in range(0, count, at_once)
            ]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        except Exception as error:  # of any kind: what the network computes with may refuse mapped tensors
            self.together = False
            alone = self._one_by_one(args, kwargs)  # in which errors of the network itself show up
            logging.getLogger("gossamer").info("draws are computed one by one, as %s", error)
            return alone

    def _one_by_one(self, args: Any, kwargs: Any) -> Any:
        self.rows = self.rows or list(zip(*(rows.unbind(0) for rows in self.values), strict=True)) or [()]
        outputs = [self._pass(row, args, kwargs) for row in self.rows]
        if not all(isinstance(output, Tensor) for output in outputs):
            return outputs[0]
        return torch.stack(outputs) if len(outputs) > 1 else outputs[0].unsqueeze(0)

    def _pass(self, values: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        for fixed, row in zip(self.fixed, values, strict=True):
            if fixed.mean is not row:
                fixed.hold(row)
        return answer(self.network(*args, **kwargs))

    def _together(self, run: Callable[..., Any], inputs: list[Tensor]) -> int:
        """How many draws to compute together, so that outputs of layers stay in the caches.

        A draw is computed to see how large these are, and its outputs are forgotten: the same call gives the same bits.
        """
        examples, key = max(1, len(inputs[0])), tuple(part.shape[1:] for part in inputs)
        if key not in self.largest:
            for fixed in self.fixed:
                fixed.n_outputs = 0
            run([rows[0] for rows in self.values])
            self.largest[key] = max(fixed.n_outputs for fixed in self.fixed) / examples
        return max(1, int(MOST_AT_ONCE / max(1, self.largest[key] * examples)))

    def _check(self) -> None:
        for weight in self.weights:
            weight.support.check_average()


class FixedDraws(Posterior):
    """``values[name]``, ``(draws, n_active)``, at the positions of the weights of ``model``, which holds their mean."""

    def __init__(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        self.model, self.values = model, values

    @classmethod
    def of(cls, model: nn.Module, n: int, generator: torch.Generator | None = None) -> Self:
        """``n`` draws of a converted network, those that :meth:`InLayers.draws` makes."""
        model = unwrapped(model)
        with torch.no_grad():
            values = DrawnPasses(model).sampled(n, generator)
            own = points(model)
            weights = sparse_weights(own)
            for weight, drawn in zip(weights.values(), values, strict=True):
                weight.mean.copy_(drawn.mean(0))
        return cls(own, dict(zip(weights, values, strict=True)))

    def to_tree(self) -> dict[str, Any]:
        return {"network": self.model, "values": self.values}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        model, entries = tree.network(), tree.inside("values")
        values = {name: entries.get(name, Tensor) for name in entries.content}
        weights = sparse_weights(model)
        for name in {**weights, **values}:
            fits = name in weights and name in values and values[name].dim() == 2 and len(values[name])
            if not fits or values[name].shape[1] != weights[name].support.n_active:
                raise entries.error(name, "must have one number for each draw and active entry of the network")
            if not bool(values[name].isfinite().all()):
                raise entries.error(name, "has entries that are not finite")
            values[name] = values[name].to(weights[name].mean)
        if len({len(rows) for rows in values.values()}) != 1:
            raise tree.error("values", "must be of the same draws for all weights")
        return cls(model, values)

    def n_drawn(self, n: int) -> int:
        return min(n, len(next(iter(self.values.values()))))

    def at_mean(self) -> Posterior:
        means = {name: weight.mean.detach().unsqueeze(0) for name, weight in sparse_weights(self.model).items()}
        return FixedDraws(self.model, means)

    def fixed(self, n: int) -> Posterior:
        return FixedDraws(self.model, {name: rows[: self.n_drawn(n)] for name, rows in self.values.items()})

    def draws(self, n: int) -> Iterator[nn.Module]:
        twin = replica(self.model)
        drawn, weights = DrawnNetwork(twin), sparse_weights(twin)
        for i in range(self.n_drawn(n)):
            for name, weight in weights.items():
                weight.mean.data.copy_(self.values[name][i])
            yield drawn.redraw(at_mean=True).eval()

    def passes(self, n: int) -> Iterator[tuple[nn.Module, list[int]]]:
        with drawn_passes(self.model) as passes:
            count = self.n_drawn(n)
            yield passes.hold([rows[:count] for rows in self.values.values()]), [1] * count

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + sum(rows.nbytes for rows in self.values.values())


def points(model: nn.Module) -> nn.Module:
    """A copy of a converted network with its means in place of its distributions, in evaluation mode."""
    model = unwrapped(model)
    weights = [module for module in model.modules() if isinstance(module, SparseWeight)]
    return replica(model, {id(weight): _point(weight) for weight in weights}).eval()


def _point(weight: SparseWeight) -> PointWeight:
    own = weight.support
    support = Support(own.shape, None if own.position is None else own.position.clone(), own.frozen)
    return PointWeight(support, weight.expected().detach().clone())


def _mapped(run: Callable[..., Any], values: list[Tensor]) -> Any:
    """The outputs for each draw; an error where an operation knows no batches, which torch would take one by one."""
    before = _functorch._is_vmap_fallback_enabled()  # type: ignore[attr-defined]
    _functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    try:
        return torch.vmap(run, randomness="different")(values)
    finally:
        _functorch._set_vmap_fallback_enabled(before)  # type: ignore[attr-defined]


def _tables(
    weights: list[SparseWeight], n: int, generator: torch.Generator | None, most: int | None = None
) -> Iterator[list[Tensor]]:
    """Some of ``n`` draws, ``(draws, n_active)`` of each weight, until all had their turn; the memory is the same."""
    stds = [None if weight.std is None else weight.std.detach() for weight in weights]
    step = max(1, MOST_VALUES // max(1, sum(weight.support.n_active for weight in weights)))
    step = most or (step if step <= LANES else step // LANES * LANES)
    tables = [weight.mean.detach().new_empty(min(n, step), weight.support.n_active) for weight in weights]
    at_once = all(type(weight).sample is GaussianWeight.sample and kernels.is_seeded(weight.mean) for weight in weights)
    for first in range(0, n, step):
        parts = [table[: n - first] for table in tables]
        with torch.no_grad():
            if at_once:
                seeds = kernels.seeds((len(parts[0]), len(weights)), generator)
                for i, (weight, part, std) in enumerate(zip(weights, parts, stds, strict=True)):
                    assert std is not None
                    kernels.sampled(weight.mean.detach(), std, seeds[:, i], part)
            else:
                for rows in zip(*(part.unbind(0) for part in parts), strict=True):  # in the order of drawn networks
                    for weight, row, std in zip(weights, rows, stds, strict=True):
                        row.copy_(weight.sample(generator, std))
        yield parts
