"""Recurrent layers with sparse weights, drawn once a call: the same network reads the whole sequence."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.layers.modules import DenseWeight, SparseModule
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
        for name, parameter in layer.named_parameters():
            if name in weights:
                self.add_module(name, weights[name])
            else:
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
        return dict(self._modules)  # type: ignore[arg-type]

    def forward(self, x: Any, hx: Any = None) -> Any:
        """As the plain layer: a tensor or a packed sequence, and an optional first state."""
        names: list[str] = self.template._flat_weights_names  # type: ignore[assignment]
        # As arguments, so that what is formed again has the numbers of the forward pass, also inside functional_call.
        values = [_values(getattr(self, name)) for name in names]
        # Neither the compiler nor torch.func can do with a checkpoint; the first drops and recomputes as it likes.
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if torch.is_grad_enabled() and not traced:
            return checkpoint(self._run, x, hx, values, use_reentrant=False)
        return self._run(x, hx, values)

    def _run(self, x: Any, hx: Any, values: list[Tensor]) -> Any:
        plain: Any = copy.copy(self.template)  # its own, so that threads do not meet in it
        plain.training = self.training
        sources = [getattr(self, name) for name in plain._flat_weights_names]
        plain._flat_weights = [_dense(source, given) for source, given in zip(sources, values, strict=True)]
        return plain.forward(x, hx)


def _values(source: SparseWeight | Tensor) -> Tensor:
    """A draw of the active entries of a weight; a bias is itself."""
    if isinstance(source, Tensor):
        return source
    return source.sample() if source.is_noisy else source.mean


def _dense(source: SparseWeight | Tensor, values: Tensor) -> Tensor:
    """The dense weight for a draw of its active entries, through the probe when there is one; a bias is itself."""
    return values if isinstance(source, Tensor) else source.support.scatter(values, source.probe)
