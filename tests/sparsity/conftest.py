"""A weight of twelve entries, six of them active, whose dense gradient is whatever one wants."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer.layers import GaussianWeight, Support
from gossamer.layers.linear import SparseLinear

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
