"""Modules that run their own ``forward`` with weights that are drawn once per call.

Recurrent layers need it: noise of its own at each time step would not be a draw of a network. Convolutions that
standardise their weight and experts whose weights are one tensor are no maps linear in a stored weight, so their noise
cannot be drawn output by output either.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.layers.modules import DenseWeight, SparseModule
from gossamer.layers.weight import SparseWeight


class SparseDrawn(SparseModule):
    """A module that computes as the plain one does, with a draw of its weights.

    The dense draws live inside a checkpointed call: the backward pass forms them again instead of keeping them.
    """

    takes_draws = False

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer)
        for name, parameter in layer.named_parameters(recurse=False):
            if name in weights:
                self.add_module(name, weights[name])
            else:
                self.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer, persistent=name not in layer._non_persistent_buffers_set)
        self._names = [name for name, _ in layer.named_parameters(recurse=False)]

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """Only what the module holds itself can be drawn for it."""
        inside = any(child is not layer and [*child.parameters(), *child.buffers()] for child in layer.modules())
        return "it has modules with parameters or buffers of their own" if inside else None

    def named_weights(self) -> dict[str, SparseWeight]:
        return dict(self._modules)  # type: ignore[arg-type]

    def to_plain(self, weights: Mapping[SparseWeight, nn.Parameter]) -> nn.Module:
        plain = super().to_plain(weights)
        plain._buffers.update({name: None if b is None else b.clone() for name, b in self._buffers.items()})
        return plain

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
        self._place(plain, tensors)
        return plain.forward(*args, **kwargs)

    def _place(self, plain: Any, tensors: dict[str, Tensor]) -> None:
        """Give the plain module what it computes with."""
        plain._parameters, plain._buffers = tensors, dict(self._buffers)


class SparseRecurrent(SparseDrawn):
    """``nn.RNN``, ``nn.GRU`` or ``nn.LSTM`` with sparse weights, any number of layers and directions."""

    replaces, kind = (nn.RNN, nn.GRU, nn.LSTM), "recurrent"

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        return [
            DenseWeight(name, parameter, fan_in=parameter.shape[1])
            for name, parameter in layer.named_parameters()
            if name.startswith("weight")
        ]

    def _place(self, plain: Any, tensors: dict[str, Tensor]) -> None:
        plain._flat_weights = [tensors[name] for name in plain._flat_weights_names]


class SparseStdConv(SparseDrawn):
    """A convolution whose kernel is standardised at each call: timm's ``StdConv2d``, ``ScaledStdConv2d`` and relatives.

    The stored kernel is sparse. The standardised one is not where the mean of an output channel is not zero: zeros take
    part in the mean, as they do for the plain layer with the same kernel.
    """

    kind = "conv"

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        return [DenseWeight("weight", layer.weight, fan_in=math.prod(layer.weight.shape[1:]))]


class SparseExperts(SparseDrawn):
    """A mixture of experts with one tensor ``(experts, …, …)`` per projection, as transformers stores it."""

    kind = "experts"

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """Every projection; transformers may store them transposed."""
        fan_in = 1 if getattr(layer, "is_transposed", False) else 2
        matrices = [(name, tensor) for name, tensor in layer.named_parameters(recurse=False) if tensor.dim() == 3]
        return [DenseWeight(name, tensor, fan_in=tensor.shape[fan_in]) for name, tensor in matrices]
