"""A weight made by hand, with whatever dense gradient one wants; a small network; a criterion that remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer.layers import GaussianWeight, Support, sparse_weights
from gossamer.layers.modules import SparseLinear
from gossamer.schedules import constant
from gossamer.sparsity.criteria import GradientCriterion
from gossamer.types import WeightStats

BY_GRADIENT = partial(gossamer.bayesianize, std="gradient")
POSITION = (0, 2, 5, 7, 8, 11)
MEAN = (6.0, -1.0, 5.0, 2.0, -4.0, 3.0)
STD = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# From the largest: 10, 1, 2, 4, 7, 9, 8, 5, 3, 0, 11, 6.
GRADIENT = (0.1, -0.9, 0.8, 0.2, -0.7, 0.3, 0.0, 0.6, -0.4, 0.5, 1.0, 0.05)


@dataclass
class HandMade:
    """A linear layer 4 -> 3 and a loss that is linear in its weight, so that the noise has no say in the gradient."""

    layer: SparseLinear
    gradient: Tensor = field(default_factory=lambda: torch.tensor(GRADIENT).view(3, 4))

    def loss(self) -> Tensor:
        return (self.layer(torch.eye(4)) * self.gradient.T).sum()

    def active(self) -> list[int]:
        return self.layer.support.position.tolist()

    def by_position(self, vector: Tensor) -> dict[int, float]:
        return dict(zip(self.active(), vector.tolist(), strict=True))


def hand_made_layer(mode: str = "default") -> SparseLinear:
    support = Support((3, 4), torch.tensor(POSITION))
    weight = GaussianWeight(support, torch.tensor(MEAN), torch.tensor(STD), prior_std=1.0, mode=mode)
    return SparseLinear(nn.Linear(4, 3, bias=False), {"weight": weight})


@pytest.fixture
def hand_made() -> HandMade:
    return HandMade(hand_made_layer())


@pytest.fixture
def hand_made_reference() -> HandMade:
    return HandMade(hand_made_layer("reference"))


@pytest.fixture
def hand_made_points() -> HandMade:
    layer = gossamer.sparsify(nn.Linear(4, 3, bias=False), density=0.5)
    layer.support.position.copy_(torch.tensor(POSITION))
    layer.mean.data.copy_(torch.tensor(MEAN))
    return HandMade(layer)


@dataclass(frozen=True)
class Spy(GradientCriterion):
    """A gradient criterion that keeps what it saw."""

    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, stats: WeightStats) -> Tensor:
        self.seen.append(stats.grad.clone())
        return super().__call__(stats)


@pytest.fixture
def spy():
    return lambda **options: Spy("spy", **options)


@pytest.fixture
def mlp():
    def build(convert=BY_GRADIENT, dtype=torch.float32):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 4)).to(dtype)
        return convert(plain, density=0.3)

    return build


@pytest.fixture
def make():
    """An optimizer, if none is given, and a subspace that moves 40 % at every third of 40 steps."""

    def build(model, optimizer=None, **options):
        optimizer = optimizer or torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9)
        options = {"total_steps": 40, "update_period": 3, "replacement_rate": constant(0.4), "until": 1.0} | options
        return optimizer, gossamer.Subspace(model, optimizer, **options)

    return build


@pytest.fixture
def positions():
    return lambda model: {name: w.support.position.tolist() for name, w in sparse_weights(model).items()}
