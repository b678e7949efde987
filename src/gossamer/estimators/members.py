"""Members of an ensemble, trained side by side as one network.

The members stay converted networks of their own, so that each has its active positions, its budget and its moments, and
the rules and optimizers that train one network train all. On small networks a step costs calls, not arithmetic, so
``member_steps`` takes one step of all members in native code, where it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from gossamer.layers import GaussianWeight, SparseWeight
from gossamer.layers.modules import SparseLinear
from gossamer.likelihoods import Weighted
from gossamer.types import Kind, Likelihood, Posterior

__all__ = ["Members", "OfMembers", "SumOverMembers", "WithoutFolds", "can_train_together"]


def can_train_together(network: nn.Module) -> bool:
    """Whether a converted network has Gaussian weights with local noise only, and a budget for each of them."""
    layers = _linear(network)
    plain = any(isinstance(part, nn.Linear) for part in network.modules())
    return not plain and bool(layers) and all(map(_is_gaussian, (layer.weight for layer in layers)))


class Members(nn.Module):
    """Converted multilayer perceptrons of one shape side by side: ``(batch, in) -> (members, batch, out)``."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks])

    @property
    def layers(self) -> list[tuple[SparseLinear, ...]]:
        """Layer by layer, the members of each."""
        return list(zip(*map(_linear, self.networks), strict=True))


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


def _linear(network: nn.Module) -> list[SparseLinear]:
    return [part for part in network.modules() if isinstance(part, SparseLinear)]


def _is_gaussian(weight: SparseWeight) -> bool:
    local = isinstance(weight, GaussianWeight) and weight.noise == "local" and weight.mode == "default"
    return local and not weight.support.shares_budget
