"""Drawn networks to deploy: the positions of their active entries once, and a value of each for every draw."""

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from gossamer.layers import PointWeight, SparseWeight, Support, replica, sparse_weights
from gossamer.posterior.draw import DrawnNetwork, unwrapped
from gossamer.posterior.passes import DrawnPasses, drawn_passes
from gossamer.types import Posterior, Saved


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
    found = [module for module in model.modules() if isinstance(module, SparseWeight)]
    if any(weight.rest is not None for weight in found):
        raise ValueError(
            "a change of a pretrained network cannot be frozen, as it needs that network: gossamer.draw(model, "
            "at_mean=True) is a plain network, and gossamer.save(model, file, n_draws=20) writes draws"
        )
    return replica(model, {id(weight): _point(weight) for weight in found}).eval()


def _point(weight: SparseWeight) -> PointWeight:
    own = weight.support
    support = Support(own.shape, None if own.position is None else own.position.clone(), own.frozen)
    return PointWeight(support, weight.expected().detach().clone())
