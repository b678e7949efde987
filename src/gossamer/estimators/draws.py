"""The plain network behind an estimator, and draws of it: networks of one shape, stored by their active weights.

An estimator always predicts with the same draws, so that its predictions are deterministic, do not depend on which rows
are predicted together, and are the same after saving and loading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer.kernels.dispatch import in_use
from gossamer.kernels.library import LIBRARY
from gossamer.kernels.native_members import Perceptrons
from gossamer.methods.mc_dropout import UnitMask
from gossamer.models import ConstantNoise, mlp
from gossamer.types import Posterior

MAX_CELLS = 2**19  # hidden units times rows and draws at a time: what stays in the caches
MOST_SPARSE = 0.6  # above this density dense products are faster


@dataclass(frozen=True)
class Architecture:
    """A multilayer perceptron with ReLU, and for regression one learnt noise std per target."""

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
        """Number of weights of all layers, without biases."""
        return sum(n_in * n_out for n_in, n_out in pairwise((self.n_inputs, *self.hidden, self.n_outputs)))

    @property
    def first_weight(self) -> str:
        """Name of the parameter that reads the inputs."""
        return "mean.1.weight" if self.constant_noise else "1.weight"


@dataclass(frozen=True)
class Draws:
    """Networks that read only ``columns`` of their training inputs; the other columns have no active weight.

    ``values[name]`` has shape ``(draws, n)``: the entries at the flat positions ``position[name]`` of that parameter.
    """

    architecture: Architecture
    columns: Tensor
    position: dict[str, Tensor]
    values: dict[str, Tensor]

    @classmethod
    def of(cls, posterior: Posterior, n_draws: int, architecture: Architecture) -> Draws:
        """``n_draws`` networks from a posterior, or as many as it has."""
        found: dict[str, list[tuple[Tensor, Tensor]]] = {}
        shapes = _shapes(_skeleton(architecture))
        for network in posterior.draws(n_draws):
            parameters = _plain_parameters(network, architecture)
            if {name: value.shape for name, value in parameters.items()} != shapes or list(network.buffers()):
                raise TypeError(
                    f"this method draws networks of another shape than it was given, {architecture}: an estimator "
                    "cannot keep its posterior; use gossamer.fit"
                )
            for name, parameter in parameters.items():
                flat = parameter.detach().cpu().reshape(-1)
                at = flat.nonzero().squeeze(1)
                found.setdefault(name, []).append((at, flat[at].clone()))
        position = {name: torch.cat([at for at, _ in items]).unique() for name, items in found.items()}
        values = {name: _aligned(items, position[name]) for name, items in found.items()}
        first = architecture.first_weight
        row, column = position[first] // architecture.n_inputs, position[first] % architecture.n_inputs
        columns = column.unique()
        if not len(columns):  # no input is connected: keep one, with weights of zero
            columns = torch.zeros(1, dtype=torch.long)
        position[first] = row * len(columns) + torch.searchsorted(columns, column)
        return cls(replace(architecture, n_inputs=len(columns)), columns, position, values)

    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the parameters of the network."""
        return _shapes(_skeleton(self.architecture))

    def take(self, chosen: slice) -> Draws:
        """Some of the networks, which read the columns that all of them read."""
        return replace(self, values={name: values[chosen] for name, values in self.values.items()})

    def __getstate__(self) -> dict[str, Any]:
        """Without what follows from the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def outputs(self, x: Any) -> Tensor:
        """Outputs of each network for the rows of ``x``, ``(rows, columns) -> (draws, rows, outputs)``, in float64."""
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
        sparse = self._sparse if LIBRARY and in_use() != "dense" else None
        outputs = self._forward(inputs) if sparse is None else sparse(inputs)
        if not self.architecture.constant_noise:
            return outputs
        noise = self.values["raw_noise"].double().unsqueeze(1)
        return torch.cat([outputs, noise.expand_as(outputs)], -1)

    def _forward(self, inputs: Tensor) -> Tensor:
        """The same by dense products, of all networks together."""
        (first, first_bias), *others = self._layers
        widest, parts = max(self.architecture.n_inputs, *self.architecture.hidden, 1), []
        for rows in inputs.split(max(1, MAX_CELLS // (widest * len(self)))):
            x = torch.addmm(first_bias.view(-1, 1), first.flatten(0, 1), rows.T).view(len(self), -1, len(rows))
            for weight, bias in others:
                x = torch.baddbmm(bias.unsqueeze(2), weight, x.relu_())
            parts.append(x)
        return torch.cat(parts, 2).transpose(1, 2)

    @cached_property
    def _sparse(self) -> Perceptrons | None:
        """The networks by their active weights, where that is faster."""
        weights = [values for name, values in self.values.items() if name.endswith("weight")]
        n_active = sum(int(values.count_nonzero()) for values in weights)
        is_sparse = n_active < MOST_SPARSE * len(self) * self.architecture.n_weights
        return Perceptrons(self._dense()) if is_sparse else None

    @cached_property
    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        return self._dense()

    def _dense(self) -> list[tuple[Tensor, Tensor]]:
        """Weight ``(draws, out, in)`` and bias ``(draws, out)`` of each layer."""
        dense = {}
        for name, shape in self.shapes().items():
            dense[name] = torch.zeros(len(self), *shape, dtype=torch.float64)
            dense[name].view(len(self), -1)[:, self.position[name]] = self.values[name].double()
        weights = [tensor for name, tensor in dense.items() if name.endswith("weight")]
        biases = [tensor for name, tensor in dense.items() if name.endswith("bias")]
        return list(zip(weights, biases, strict=True))

    def __iter__(self) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
        """A network without weights, and the weights of each draw."""
        skeleton = _skeleton(self.architecture)
        for i in range(len(self)):
            weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in _shapes(skeleton).items()}
            for name, dense in weights.items():
                dense.view(-1)[self.position[name]] = self.values[name][i].double()
            yield skeleton, weights


def _skeleton(architecture: Architecture) -> nn.Module:
    with torch.device("meta"):  # takes no memory and no random numbers
        return architecture.build()


def _plain_parameters(network: nn.Module, architecture: Architecture) -> dict[str, Tensor]:
    """Parameters by name. A unit that a draw of dropout drops is a column of zeros in the next weight."""
    if not any(isinstance(module, UnitMask) for module in network.modules()):
        return dict(network.named_parameters())
    network(torch.zeros(1, architecture.n_inputs, device=next(network.parameters()).device))  # draws the masks
    found: list[Tensor] = []
    mask: Tensor | None = None
    for module in network.modules():
        mask = module.mask if isinstance(module, UnitMask) else mask
        for name, parameter in module.named_parameters(recurse=False):
            if name == "weight" and mask is not None:
                found.append(parameter * mask)
                mask = None
            else:
                found.append(parameter)
    return dict(zip(_shapes(_skeleton(architecture)), found, strict=True))


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in network.named_parameters()}


def _aligned(items: list[tuple[Tensor, Tensor]], position: Tensor) -> Tensor:
    """Values of each draw at the positions that are active in any draw."""
    values = torch.zeros(len(items), len(position))
    for row, (at, value) in zip(values, items, strict=True):
        row[torch.searchsorted(position, at)] = value.float()
    return values
