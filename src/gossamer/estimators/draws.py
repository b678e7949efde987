"""Draws from a posterior, kept: every method leaves networks of one shape, of which only the active weights are stored.

An estimator predicts with the same draws each time it is asked, so its answers are the same each time, do not depend on
which rows are asked for together, and come back from a file as they went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from gossamer.estimators.network import Architecture
from gossamer.types import Posterior

__all__ = ["Draws"]

MAX_CELLS = 2**22  # hidden units times rows at a time: what a pass keeps in memory


@dataclass(frozen=True)
class Draws:
    """Networks that read only ``columns`` of the inputs they were trained on; the others have no active weight.

    ``values[name]`` has shape ``(draws, n)``: the entries at the flat positions ``position[name]`` of that parameter.
    """

    architecture: Architecture
    columns: Tensor
    position: dict[str, Tensor]
    values: dict[str, Tensor]

    @classmethod
    def of(cls, posterior: Posterior, n_draws: int, architecture: Architecture) -> Draws:
        """``n_draws`` networks from a posterior, fewer where it has fewer."""
        found: dict[str, list[tuple[Tensor, Tensor]]] = {}
        shapes = {name: parameter.shape for name, parameter in _skeleton(architecture).named_parameters()}
        for network in posterior.draws(n_draws):
            parameters = {name: parameter.detach().cpu() for name, parameter in network.named_parameters()}
            if {name: parameter.shape for name, parameter in parameters.items()} != shapes or list(network.buffers()):
                raise TypeError(
                    f"this method draws networks that are not of the shape that it was given, {architecture}: its "
                    "posterior cannot be kept by an estimator; use gossamer.fit"
                )
            for name, parameter in parameters.items():
                flat = parameter.reshape(-1)
                at = flat.nonzero().squeeze(1)
                found.setdefault(name, []).append((at, flat[at].clone()))
        position = {name: torch.cat([at for at, _ in items]).unique() for name, items in found.items()}
        values = {name: _aligned(items, position[name]) for name, items in found.items()}
        return cls._without_idle_columns(architecture, position, values)

    @classmethod
    def _without_idle_columns(
        cls, architecture: Architecture, position: dict[str, Tensor], values: dict[str, Tensor]
    ) -> Draws:
        first, n = architecture.first_weight, architecture.n_inputs
        row, column = position[first] // n, position[first] % n
        columns = column.unique()
        if not len(columns):  # no input has a way in: keep one, whose weights are all zero
            columns = torch.zeros(1, dtype=torch.long)
        position = position | {first: row * len(columns) + torch.searchsorted(columns, column)}
        kept = Architecture(len(columns), architecture.hidden, architecture.n_outputs, architecture.constant_noise)
        return cls(kept, columns, position, values)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def outputs(self, x: Any) -> Tensor:
        """What each network says about the rows of ``x``, ``(rows, columns) -> (draws, rows, outputs)``, in float64."""
        inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64))
        widest = max(self.architecture.n_inputs, *self.architecture.hidden, 1)
        parts = inputs.split(max(1, MAX_CELLS // widest))
        with torch.no_grad():
            return torch.stack(
                [torch.cat([network(part) for part in parts]) for network in (_Network(*item) for item in self)]
            )

    def __iter__(self) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
        """A network without weights, and the weights of each draw."""
        skeleton = _skeleton(self.architecture)
        shapes = {name: parameter.shape for name, parameter in skeleton.named_parameters()}
        for i in range(len(self)):
            weights = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
            for name, dense in weights.items():
                dense.view(-1)[self.position[name]] = self.values[name][i].double()
            yield skeleton, weights

    def is_finite(self) -> bool:
        """Whether every weight is a number."""
        return all(bool(value.isfinite().all()) for value in self.values.values())

    def state_dict(self) -> dict[str, Any]:
        """Everything, as a checkpoint takes it."""
        return {
            "architecture": asdict(self.architecture),
            "columns": self.columns,
            "position": self.position,
            "values": self.values,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Draws:
        """What :meth:`state_dict` gave."""
        return cls(Architecture(**state["architecture"]), state["columns"], state["position"], state["values"])


class _Network:
    """A network with weights that are not its own."""

    def __init__(self, skeleton: nn.Module, weights: dict[str, Tensor]) -> None:
        self.skeleton, self.weights = skeleton, weights

    def __call__(self, x: Tensor) -> Tensor:
        output: Tensor = functional_call(self.skeleton, self.weights, (x,))
        return output


def _skeleton(architecture: Architecture) -> nn.Module:
    with torch.device("meta"):  # no memory, and no random numbers taken from the user
        return architecture.build()


def _aligned(items: list[tuple[Tensor, Tensor]], position: Tensor) -> Tensor:
    """Values of each draw at the positions that any of them has."""
    values = torch.zeros(len(items), len(position))
    for row, (at, value) in zip(values, items, strict=True):
        row[torch.searchsorted(position, at)] = value.float()
    return values
