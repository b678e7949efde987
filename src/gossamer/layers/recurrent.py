"""Recurrent layers, which run torch's own ``forward`` with weights that are drawn once per call.

Noise of its own at each time step would not be a draw of a network.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.layers.modules import DenseWeight, SparseModule
from gossamer.layers.weight import SparseWeight


class SparseRecurrent(SparseModule):
    """``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` with sparse weights, any number of layers and directions.

    The dense draws live inside a checkpointed call: the backward pass forms them again instead of keeping them.
    """

    replaces, kind, takes_draws = (nn.RNN, nn.GRU, nn.LSTM), "recurrent", False

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer)
        for name, parameter in layer.named_parameters(recurse=False):
            if name in weights:
                self.add_module(name, weights[name])
            else:
                self.register_parameter(name, parameter)
        self._names = [name for name, _ in layer.named_parameters(recurse=False)]

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        return [
            DenseWeight(name, parameter, fan_in=parameter.shape[1])
            for name, parameter in layer.named_parameters()
            if name.startswith("weight")
        ]

    def named_weights(self) -> dict[str, SparseWeight]:
        return dict(self._modules)  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # As arguments, so that what is formed again has the numbers of the forward pass, also inside functional_call.
        sources = [getattr(self, name) for name in self._names]
        values = [
            source.this_pass(drawn=True).values if isinstance(source, SparseWeight) else source for source in sources
        ]
        # Neither the compiler nor torch.func supports a checkpoint; the compiler drops and recomputes as it likes.
        traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if torch.is_grad_enabled() and not traced:
            return checkpoint(self._run, values, args, kwargs, use_reentrant=False)
        return self._run(values, args, kwargs)

    def _run(self, values: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plain: Any = copy.copy(self.template)  # a copy per call, so that threads do not share it
        plain.training = self.training
        tensors = dict(zip(self._names, values, strict=True))
        for name, weight in self.named_weights().items():
            tensors[name] = weight.placed(tensors[name], weight.probe)
        plain._flat_weights = [tensors[name] for name in plain._flat_weights_names]
        return plain.forward(*args, **kwargs)
