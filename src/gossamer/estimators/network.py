"""The plain network behind an estimator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from gossamer.models import mlp

__all__ = ["Architecture", "ConstantNoise"]


@dataclass(frozen=True)
class Architecture:
    """A multilayer perceptron with ReLU; for numbers with a noise std of each target, learnt as one number.

    Example:
        >>> Architecture(4, (8,), 2, constant_noise=True).build()(torch.zeros(3, 4)).shape
        torch.Size([3, 4])
    """

    n_inputs: int
    hidden: tuple[int, ...]
    n_outputs: int
    constant_noise: bool = False

    def build(self) -> nn.Module:
        """The network, with fresh weights."""
        network = mlp(self.n_inputs, self.hidden, self.n_outputs)
        return ConstantNoise(network, self.n_outputs) if self.constant_noise else network

    @property
    def n_weights(self) -> int:
        """Of all layers, biases not counted."""
        return sum(n_in * n_out for n_in, n_out in pairwise((self.n_inputs, *self.hidden, self.n_outputs)))

    @property
    def first_weight(self) -> str:
        """Name of the parameter that reads the inputs."""
        return "mean.1.weight" if self.constant_noise else "1.weight"


class ConstantNoise(nn.Module):
    """A network of means beside a noise std that does not depend on the input, as ``Gaussian()`` takes them.

    Example:
        >>> ConstantNoise(nn.Linear(4, 1), 1)(torch.zeros(3, 4))[:, 1].sigmoid().shape
        torch.Size([3])
    """

    def __init__(self, mean: nn.Module, n_targets: int) -> None:
        super().__init__()
        self.mean = mean
        self.raw_noise = nn.Parameter(torch.full((n_targets,), math.log(math.e - 1)))  # softplus of it is 1

    def forward(self, x: Tensor) -> Tensor:
        """Means and raw noise stds, ``(batch, 2 · targets)``."""
        mean: Tensor = self.mean(x)
        return torch.cat([mean, self.raw_noise.expand_as(mean)], -1)
