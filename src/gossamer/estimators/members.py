"""Members of an ensemble, trained side by side: one pass and one product per layer for all of them.

The members stay converted networks of their own, so that each has its active positions, its budget and its moments, and
the rules and optimizers that train one network train all. Only the pass is shared: their active entries are written
into one dense tensor per layer, ``(members, out, in)``, and local reparameterization reads

    y_r = x_r M_rᵀ + b_r + sqrt(x_r² V_rᵀ) · ε        for members r = 1…R

On small networks these steps cost calls, not arithmetic, so R members cost about as much as one; ``member_steps`` takes
them in native code where it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels import perturb
from gossamer.layers import GaussianWeight, SparseWeight, WeightedKL
from gossamer.layers.gaussian import std_of
from gossamer.layers.modules import SparseLinear
from gossamer.likelihoods import Weighted
from gossamer.priors import normal_kl
from gossamer.types import Kind, Likelihood, Method, Penalty, Posterior

__all__ = ["Members", "OfMembers", "SumOverMembers", "WithoutFolds", "can_train_together", "for_members"]

MAX_DENSE = 2**18  # entries of all layers of all members that a pass writes out


def can_train_together(network: nn.Module) -> bool:
    """Whether a converted network has Gaussian weights with local noise only, and a budget for each of them."""
    layers = _linear(network)
    plain = any(isinstance(part, nn.Linear) for part in network.modules())
    return not plain and bool(layers) and all(map(_is_gaussian, (layer.weight for layer in layers)))


class Members(nn.Module):
    """Converted multilayer perceptrons of one shape side by side: ``(batch, in) -> (members, batch, out)``.

    Example:
        >>> import gossamer
        >>> from gossamer.models import mlp
        >>> networks = [gossamer.bayesianize(mlp(4, (8,), 2), density=0.5, std="gradient") for _ in range(3)]
        >>> members = Members(networks)
        >>> members(torch.randn(5, 4)).shape, torch.allclose(members.kl(), gossamer.kl(members))
        (torch.Size([3, 5, 2]), True)
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        # Layer by layer, the members of each in a row: the order of the vectors and of the dense tensors.
        self._layers = list(zip(*map(_linear, networks), strict=True))
        self.weights: list[Any] = [layer.weight for layers in self._layers for layer in layers]
        self.shapes: list[tuple[int, ...]] = [layers[0].weight.support.shape for layers in self._layers]
        self._shapes = [(len(networks), *shape) for shape in self.shapes]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._located: tuple[list[Tensor | None], list[int]] = ([], [])
        self._found = torch.empty(0, dtype=torch.int64), torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.n_dense > MAX_DENSE  # sparse products are then faster
        if wide or not all(map(_passes_as_usual, self.weights)):  # before a move, when dense gradients are collected
            return torch.stack([network(x) for network in self.networks])
        means, variances = self._dense()
        x = x.flatten(1).expand(len(self.networks), -1, -1)
        for number, (mean, variance, layers) in enumerate(zip(means, variances, self._layers, strict=True)):
            x = x.relu() if number else x
            bias = torch.stack([layer.bias for layer in layers]).unsqueeze(1)
            y = torch.baddbmm(bias, x, mean.mT)
            x = perturb(y, torch.bmm(x.square(), variance.mT), torch.randn_like(y))
        return self._with_noise(x)

    @property
    def n_dense(self) -> int:
        """Entries of all layers of all members, active or not."""
        return sum(self._sizes)

    def kl(self) -> Tensor:
        """KL(q ‖ prior), summed over all members."""
        mean, std = self._vectors()
        return normal_kl(mean, std, self._layout()[1])

    def _vectors(self) -> tuple[Tensor, Tensor]:
        """μ and σ of all active entries of all members."""
        weights = self.weights
        means = torch.cat([weight.mean for weight in weights])
        if all("raw_std" in weight.vectors for weight in weights):
            return means, std_of(torch.cat([weight.raw_std for weight in weights]))
        return means, torch.cat([weight.learnt_std for weight in weights])

    def _dense(self) -> tuple[list[Tensor], list[Tensor]]:
        """μ and σ² of each layer, ``(members, out, in)``, zero where nothing is active."""
        slot, total = self._layout()[0], self.n_dense
        mean, std = self._vectors()
        both = (vector.new_zeros(total).scatter(0, slot, vector) for vector in (mean, std.square()))
        first, second = (
            [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]
            for flat in both
        )
        return first, second

    def _layout(self) -> tuple[Tensor, Tensor]:
        """Where each active entry lies in the dense tensors of all layers, and its prior std; found after each move."""
        positions = [weight.support.position for weight in self.weights]
        versions = [-1 if position is None else position._version for position in positions]
        held, at = self._located
        if versions != at or any(one is not other for one, other in zip(positions, held, strict=True)):
            self._located, offset, slots, priors = (positions, versions), 0, [], []
            for weight in self.weights:
                n, position = math.prod(weight.support.shape), weight.support.position
                slots.append(offset + (torch.arange(n) if position is None else position.long()).to(weight.mean.device))
                priors.append(torch.full_like(weight.mean.detach(), weight.prior_std))
                offset += n
            self._found = torch.cat(slots), torch.cat(priors)
        return self._found

    def _with_noise(self, means: Tensor) -> Tensor:
        """The outputs, with the learnt noise of networks that have a constant one."""
        if not hasattr(self.networks[0], "raw_noise"):
            return means
        raw = torch.stack([network.raw_noise for network in self.networks])  # type: ignore[misc]
        return torch.cat([means, raw.unsqueeze(1).expand_as(means)], -1)


def for_members(method: Method) -> Method:
    """The method for :class:`Members` of networks that are converted already."""
    penalty = method.penalty
    if isinstance(penalty, WeightedKL):
        penalty = _KL(penalty.scale)
    return replace(method, prepare=lambda members: members, penalty=penalty)


@dataclass(frozen=True)
class SumOverMembers(Likelihood):
    """The sum of the members' losses, so that the gradient of each is what it is alone."""

    likelihood: Likelihood

    @property
    def kind(self) -> Kind:
        return self.likelihood.kind

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """``(members, batch, out), (batch, …)`` -> the sum over members of their mean losses."""
        n = len(output)
        return n * self.likelihood.loss(output.flatten(0, 1), y.repeat(n, *[1] * (y.dim() - 1)))

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_predictive(outputs, y)


@dataclass(frozen=True)
class WithoutFolds(Likelihood):
    """The same for members of which each ignores the rows of one fold: member r those of fold r.

    The last columns of the targets are the weight of a row and its fold. Of n members each counts the others' rows
    n/(n - 1) times, so that the mean weight is 1 for all of them.

    Attributes:
        likelihood: What reads the targets without these columns.
        n_folds: How many there are.
        member: The only member whose outputs are given; ``None`` where those of all are, side by side.
    """

    likelihood: Likelihood
    n_folds: int
    member: int | None = None

    @property
    def kind(self) -> Kind:
        return self.likelihood.kind

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """``(members, batch, out), (batch, targets + 2)``, or ``(batch, out)`` of one member -> the sum of losses."""
        weight = len(y) * self.parts(y)[1]
        targets = y[:, :-2].expand(len(weight), -1, -1)
        weighted = torch.cat([targets, weight.unsqueeze(-1)], -1).flatten(0, 1)
        return len(weight) * Weighted(self.likelihood).loss(output.reshape(len(weighted), -1), weighted)

    def parts(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Targets of the rows, and how much the log-likelihood of each counts for each member, ``(members, batch)``."""
        members = torch.arange(self.n_folds) if self.member is None else torch.tensor([self.member])
        known = y[:, -1] != members.to(y.device).unsqueeze(1)
        weight = y[:, -2] * known * (self.n_folds / (self.n_folds - 1) / len(y))
        return Weighted(self.likelihood).targets(y[:, :-1]), weight

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        return Weighted(self.likelihood).log_predictive(outputs, y[:, :-1])


class OfMembers(Posterior):
    """Draws of single networks from a posterior of :class:`Members`: as many of each member, in turn."""

    def __init__(self, posterior: Posterior, members: int) -> None:
        self.posterior, self.members = posterior, members
        self.model = posterior.model

    def draws(self, n: int) -> Iterator[nn.Module]:
        together = self.posterior.draws(-(-n // self.members))
        return islice((network for drawn in together for network in drawn.networks), n)  # type: ignore[union-attr]


@dataclass(frozen=True)
class _KL(Penalty):
    factor: Callable[[int], float]

    def scale(self, step: int) -> float:
        return self.factor(step)

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        return self.unscaled(model) * self.factor(step)

    def unscaled(self, model: nn.Module) -> Tensor:
        assert isinstance(model, Members)
        return model.kl()


def _linear(network: nn.Module) -> list[SparseLinear]:
    return [part for part in network.modules() if isinstance(part, SparseLinear)]


def _is_gaussian(weight: SparseWeight) -> bool:
    local = isinstance(weight, GaussianWeight) and weight.noise == "local" and weight.mode == "default"
    return local and not weight.support.shares_budget


def _passes_as_usual(weight: GaussianWeight) -> bool:
    return weight.probe is None and weight.sink is None and weight.learns and weight.is_noisy
