"""Averages of weights over training: EMA and SWA for networks whose active entries move, SWAG for plain ones.

SWAG (Maddox et al., NeurIPS 2019) is a Gaussian over all parameters, from the path of SGD at a constant rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from gossamer.files.container import tensor
from gossamer.layers import GaussianWeight, SparseWeight, replica, sparse_weights
from gossamer.layers.weight import resize, stats_of
from gossamer.posterior.draw import unwrapped
from gossamer.posterior.in_layers import InLayers, OneNetwork, Refreshing, SingleNetwork, ready
from gossamer.types import Collector, Posterior, Saved


def averaged(model: nn.Module, decay: float | None = None, *, use_buffers: bool = False) -> Averaged:
    """A copy of ``model`` that averages its weights over training, as ``torch.optim.swa_utils.AveragedModel`` does.

    The average is one of *dense* weights, kept where the model has active entries now: an entry counts as zero for the
    time in which it was not active, and what left the support leaves the average. Of Gaussian weights the means and the
    variances are averaged. (Torch's own class averages the n-th entries, wherever they are; such an average raises when
    it is used.)

    Args:
        model: A converted network; plain ones are averaged as torch does.
        decay: Weight of the past in an exponential average; ``None`` is the plain mean over all updates.
        use_buffers: Average buffers such as the statistics of batch normalisation too, rather than copy the last ones.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(10, 5), density=0.2)
        >>> average = gossamer.averaged(model, decay=0.99)
        >>> average.update_parameters(model)  # after each step, or each epoch
        >>> gossamer.predict(average, torch.randn(3, 10)).probs.shape
        torch.Size([3, 5])
    """
    if decay is not None and not 0 <= decay < 1:
        raise ValueError(f"decay is the weight of the past, at least 0 and less than 1; got {decay}")
    return Averaged(model, decay, use_buffers)


class Averaged(AveragedModel):
    """What :func:`averaged` returns: ``module`` is the averaged network, ``n_averaged`` the number of updates."""

    def __init__(self, model: nn.Module, decay: float | None = None, use_buffers: bool = False) -> None:
        nn.Module.__init__(self)  # not AveragedModel's, which deep-copies the model
        self.module = replica(unwrapped(model))
        self.register_buffer("n_averaged", torch.zeros((), dtype=torch.long))
        self.decay, self.use_buffers = decay, use_buffers

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        model, n = unwrapped(model), int(self.n_averaged)
        new = 1.0 if n == 0 else 1 / (n + 1) if self.decay is None else 1 - self.decay
        moving: set[int] = set()
        for mine, other in zip(self.module.modules(), model.modules(), strict=True):
            if isinstance(mine, SparseWeight) and isinstance(other, SparseWeight):
                _average(mine, other, new)
                moving |= {id(tensor) for tensor in (*mine.parameters(), *mine.buffers())}
        for kept, latest in zip(self.module.parameters(), model.parameters(), strict=True):
            if id(kept) not in moving:
                kept.lerp_(latest.detach().to(kept.device), new)
        for held, last in zip(self.module.buffers(), model.buffers(), strict=True):
            if id(held) not in moving:
                averages = self.use_buffers and held.is_floating_point()
                held.lerp_(last.to(held), new) if averages else held.copy_(last)
        self.n_averaged += 1


class InAverage(Collector):
    """Collector that averages the network from step ``begin`` to the end: the posterior is that of the average.

    Args:
        begin: The step, counted from 1, after which the first network is taken.
        every: Steps between two.
        refresh: Called with each network that is drawn. Batch normalisation has to be refreshed: the average of
            weights has statistics that no network of the training had.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(10, 5), density=0.2)
        >>> collector = InAverage(begin=80, every=10)
        >>> for step in range(1, 101):
        ...     collector.observe(model, step)
        >>> int(collector.average.n_averaged), type(collector.posterior(model)).__name__
        (3, 'InLayers')
    """

    def __init__(self, begin: int, every: int, refresh: Refreshing | None = None) -> None:
        self.begin, self.every, self.refresh = begin, every, refresh
        self.average: Averaged | None = None
        self._saved: dict[str, Any] = {}  # of a checkpoint, until there is a network to load it into

    def observe(self, model: nn.Module, step: int) -> None:
        if step >= self.begin and (step - self.begin) % self.every == 0:
            self._of(model).update_parameters(model)

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        started = self.average is not None or bool(self._saved)
        return InLayers(self._of(model).module if started else model, refresh=self.refresh)

    def _of(self, model: nn.Module) -> Averaged:
        if self.average is None:
            self.average = averaged(model)
            if self._saved:
                self.average.load_state_dict(self._saved)
        return self.average

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._saved if self.average is None else self.average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self._saved = None, state["average"]


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
        return sum(tensor.nbytes for tensor in (self.mean, self.var, self.deviations, *self.model.buffers()))


def _average(mine: SparseWeight, other: SparseWeight, new: float) -> None:
    """Move ``mine`` to the support of ``other``, and average what is there."""
    values, latest = _moments(mine), _moments(other)
    if other.support.position is not None:
        position = other.support.position.to(mine.mean.device)
        old = mine.support.explicit(mine.mean.device)
        slot = torch.searchsorted(old, position).clamp_max_(max(0, len(old) - 1))
        stays = old[slot] == position
        values = {name: torch.where(stays, value[slot], 0) for name, value in values.items()}
        if len(position) != len(old):
            resize(mine, len(position))
        mine.support.set_position(position)
    result = {name: value.lerp(latest[name].to(value), new) for name, value in values.items()}
    mine.mean.copy_(result["mean"])
    if isinstance(mine, GaussianWeight):
        mine.set_std(result["var"].sqrt())


def _moments(weight: SparseWeight) -> dict[str, Tensor]:
    stats = stats_of(weight)
    return {"mean": stats.mean} if stats.std is None else {"mean": stats.mean, "var": stats.std.square()}


@torch.no_grad()
def _write(weights: Tensor, network: nn.Module) -> None:
    for parameter, values in zip(
        network.parameters(), weights.split([p.numel() for p in network.parameters()]), strict=True
    ):
        parameter.copy_(values.view_as(parameter))
