"""Recurrent layers with sparse weights, drawn once a call: the same network reads the whole sequence."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.layers.module import DenseWeight, SparseModule
from gossamer.layers.weight import SparseWeight

__all__ = ["SparseRecurrent"]


class SparseRecurrent(SparseModule):
    """``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` with sparse weights, any number of layers and directions.

    Noise of its own at each time step would not be a draw of a network, so the weights themselves are drawn. The dense
    draws live inside a checkpointed call: they are formed again in the backward pass, not kept until then.

    Example:
        >>> import gossamer
        >>> layer = gossamer.bayesianize(nn.LSTM(4, 8, num_layers=2, bidirectional=True), density=0.25)
        >>> y, (h, c) = layer(torch.zeros(5, 3, 4))
        >>> y.shape, h.shape
        (torch.Size([5, 3, 16]), torch.Size([4, 3, 8]))
    """

    replaces = (nn.RNN, nn.GRU, nn.LSTM)

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer)
        self.weights = nn.ModuleDict(dict(weights))
        for name, parameter in layer.named_parameters():
            if name not in weights:
                self.register_parameter(name, parameter)

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The matrices from the input, the state and (with ``proj_size``) to the projected state."""
        return [
            DenseWeight(name, parameter, fan_in=parameter.shape[1])
            for name, parameter in layer.named_parameters()
            if name.startswith("weight")
        ]

    def named_weights(self) -> dict[str, SparseWeight]:
        """The matrices by their names in the plain layer."""
        return dict(self.weights.items())  # type: ignore[arg-type]

    def forward(self, x: Any, hx: Any = None) -> Any:
        """As the plain layer: a tensor or a packed sequence, and an optional first state."""
        weights = self.named_weights().items()
        values = {name: weight.sample() if weight.noisy else weight.mean for name, weight in weights}
        # As arguments, what is formed again has the numbers of the forward pass, also inside functional_call.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return checkpoint(self._run, x, hx, values, self.named_rest(), use_reentrant=False)
        return self._run(x, hx, values, self.named_rest())

    def _run(self, x: Any, hx: Any, values: Mapping[str, Tensor], rest: Mapping[str, Tensor]) -> Any:
        flat = {name: _dense(weight, values[name]) for name, weight in self.named_weights().items()} | dict(rest)
        names: list[str] = self.template._flat_weights_names  # type: ignore[assignment]
        plain: Any = copy.copy(self.template)  # its own, so that threads do not meet in it
        plain.training = self.training
        plain._flat_weights = [flat[name] for name in names]
        return plain.forward(x, hx)


def _dense(weight: SparseWeight, values: Tensor) -> Tensor:
    """The dense weight for a draw of its active entries, through the probe when there is one."""
    dense = weight.support.scatter(values)
    return dense if weight.probe is None else dense + weight.probe
