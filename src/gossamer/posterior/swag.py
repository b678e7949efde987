"""SWAG (Maddox et al., NeurIPS 2019): a Gaussian over all parameters, from the path of SGD at a constant rate."""

import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from gossamer.files.container import tensor
from gossamer.layers import replica, sparse_weights
from gossamer.posterior.in_layers import OneNetwork, Refreshing, SingleNetwork, ready
from gossamer.types import Collector, Posterior, Saved


class Swag(Collector):
    """Collector of the first two moments of the parameters θ along the path of training.

    With the n-th network,

        mean ← mean + (θ - mean)/n,   d = θ - mean,   squares ← squares + d² n/(n - 1)

    and the last ``rank`` deviations d are kept. The variances, squares/n, are those of the paper, without the
    difference of two large numbers.

    Args:
        begin: The step, counted from 1, after which the first network is taken.
        every: Steps between two.
        rank: K, how many deviations are kept.
        scale: Factor of the covariance.
        refresh: Called with each network that is drawn. Batch normalisation has to be refreshed: draws have statistics
            that no network of the training had.
        generator: Random generator of the draws.

    Example:
        >>> network, collector = nn.Linear(3, 2), Swag(begin=80, every=10, rank=2)
        >>> for step in range(1, 101):
        ...     collector.observe(network, step)
        >>> collector.n, collector.deviations.shape, len(list(collector.posterior(network).draws(5)))
        (3, torch.Size([2, 8]), 5)
    """

    def __init__(
        self,
        begin: int,
        every: int,
        rank: int = 20,
        scale: float = 0.5,
        refresh: Refreshing | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if rank < 2 or not scale >= 0:  # the covariance of deviations divides by their number less one
            raise ValueError(f"rank must be at least 2 and scale at least 0; got {rank} and {scale}")
        self.begin, self.every, self.rank, self.scale = begin, every, rank, scale
        self.refresh, self.generator = refresh, generator
        self.n = 0
        self.mean = self.squares = torch.zeros(0)
        self.deviations = torch.zeros(0, 0)

    @torch.no_grad()
    def observe(self, model: nn.Module, step: int) -> None:
        if step < self.begin or (step - self.begin) % self.every:
            return
        if sparse_weights(model):
            raise ValueError("SWAG takes plain networks; of a converted one, InAverage takes the mean")
        weights = parameters_to_vector(model.parameters())
        if self.n == 0:
            self.mean, self.squares = torch.zeros_like(weights), torch.zeros_like(weights)
            self.deviations = weights.new_zeros(0, len(weights))
        moments = (self.mean, self.squares, self.deviations)
        self.mean, self.squares, self.deviations = (moment.to(weights) for moment in moments)  # of a checkpoint
        self.n += 1
        self.mean = self.mean + (weights - self.mean) / self.n
        deviation = weights - self.mean  # the first is zero
        self.squares = self.squares + deviation.square() * (self.n / max(1, self.n - 1))
        self.deviations = torch.cat([self.deviations, deviation[None]])[-self.rank :]

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        if self.n == 0:
            return SingleNetwork(model, self.refresh)
        there = next(model.parameters()).device  # a checkpoint is read on the CPU
        mean, var, deviations = (moment.to(there) for moment in (self.mean, self.squares / self.n, self.deviations))
        return SwagPosterior(model, mean, var, deviations, self.scale, self.refresh, self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n, "mean": self.mean, "squares": self.squares, "deviations": self.deviations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n, self.mean, self.squares, self.deviations = (
            state[name] for name in ("n", "mean", "squares", "deviations")
        )


class SwagPosterior(OneNetwork):
    """N(mean, scale · (diag(var) + DᵀD/(K - 1))) over all parameters of ``model`` as one vector.

    D are the K ``deviations``, ``(K, parameters)``. ``model`` becomes a network at the mean.
    """

    def __init__(
        self,
        model: nn.Module,
        mean: Tensor,
        var: Tensor,
        deviations: Tensor,
        scale: float = 0.5,
        refresh: Refreshing | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.mean, self.var, self.deviations, self.scale = mean, var, deviations, scale
        self.refresh, self.generator = refresh, generator
        self.model = replica(model)
        _write(self.mean, self.model)

    def to_tree(self) -> dict[str, Any]:
        moments = {"var": self.var, "deviations": self.deviations, "scale": float(self.scale)}
        return super().to_tree() | moments  # the network is at the mean

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        model, scale = tree.network(), tree.get("scale", float)
        if not 0 <= scale < math.inf:
            raise tree.error("scale", "must not be negative")
        mean = parameters_to_vector(model.parameters()).detach()
        var, deviations = tensor(tree, "var", mean, least=0), tensor(tree, "deviations", mean, rows=True)
        return cls(model, mean, var, deviations, scale, tree.refresh)

    def draws(self, n: int) -> Iterator[nn.Module]:
        twin = replica(self.model)
        for _ in range(n):
            _write(self.sample(), twin)
            yield ready(twin, self.refresh)

    def sample(self) -> Tensor:
        """All parameters of a draw: mean + √scale (√var z₁ + Dᵀz₂/√(K - 1)) for standard normal z₁ and z₂."""
        own = torch.empty_like(self.mean).normal_(generator=self.generator)
        common = self.mean.new_empty(len(self.deviations)).normal_(generator=self.generator)
        along = self.deviations.T @ common / math.sqrt(max(1, len(self.deviations) - 1))
        return self.mean + math.sqrt(self.scale) * (self.var.sqrt() * own + along)

    @property
    def n_bytes(self) -> int:
        tensors = [self.mean, self.var, self.deviations, *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@torch.no_grad()
def _write(weights: Tensor, network: nn.Module) -> None:
    for parameter, values in zip(
        network.parameters(), weights.split([p.numel() for p in network.parameters()]), strict=True
    ):
        parameter.copy_(values.view_as(parameter))
