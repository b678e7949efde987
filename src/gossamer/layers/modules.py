"""Converted modules: their base class, linear layers, convolutions and embeddings.

To support another torch module, write a subclass of :class:`SparseModule` and list it in ``swap.py``.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.kernels import ConvMap, EmbeddingMap, LinearMap
from gossamer.layers.structure import replica
from gossamer.layers.support import Support
from gossamer.layers.weight import SparseWeight

# The dictionaries in which a module keeps the hooks of its passes and their flags.
HOOKS = [name for name in vars(nn.Module()) if "ward_" in name and "_hooks" in name]


class DenseWeight(NamedTuple):
    """A weight of a plain module that is about to be made sparse."""

    name: str  # dotted name inside the module
    tensor: nn.Parameter
    fan_in: int | None  # how many entries add up to one output; None where an output is one entry (an embedding)
    frozen: tuple[int, int] = (0, 0)  # flat positions that must stay zero
    transposed: bool = False  # whether the sparse weight is the transpose of the tensor

    @property
    def values(self) -> Tensor:
        """The given weight in the layout of the sparse one, detached."""
        tensor = self.tensor.detach()
        return tensor.t() if self.transposed else tensor


class SparseModule(nn.Module):
    """A converted module. ``template`` is the plain module it replaced, without its parameters.

    A subclass names the torch modules it replaces and the weights that become sparse, is built from a plain module and
    its new weights by their dotted names, and computes ``forward``. Other attributes of the plain module
    (``in_features``, ``batch_first``…) are read from the template.
    """

    replaces: ClassVar[tuple[type[nn.Module], ...]] = ()
    kind: ClassVar[str]  # the word by which a user can ask for all layers of this kind
    transposes: ClassVar[bool] = False  # whether the plain module stores the weight transposed
    takes_draws: ClassVar[bool] = True  # whether torch.vmap can map its forward over draws of the weights
    map: Any = None  # the :class:`WeightMap` of its weights; ``None`` where they become dense first
    template: nn.Module

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        # Not registered: it has no parameters, and must not show up among the modules or in the state_dict.
        template = replica(layer, dict.fromkeys(map(id, layer.parameters())), share=True)
        self.__dict__["template"] = template
        for hooks in HOOKS:  # they are called here, not there
            setattr(template, hooks, OrderedDict())
        # By this name torch.fx knows the modules that it need not trace into; pickle asks the class instead.
        self.__dict__["__module__"] = "torch.nn.gossamer"
        self.train(layer.training)
        for hooks in (*HOOKS, "_is_full_backward_hook"):  # the same dictionaries: handles still remove their hooks
            setattr(self, hooks, getattr(layer, hooks))

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weights of ``layer`` that become sparse."""
        raise NotImplementedError

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """Why ``layer`` cannot be converted, if it cannot."""
        return None

    def named_weights(self) -> dict[str, SparseWeight]:
        """The sparse weights by their dotted names in the plain module."""
        raise NotImplementedError

    def named_rest(self) -> dict[str, nn.Parameter]:
        """The other parameters (biases) by their dotted names in the plain module."""
        return {name: parameter for name, parameter in self._parameters.items() if parameter is not None}

    def to_plain(self, weights: Mapping[SparseWeight, nn.Parameter]) -> nn.Module:
        """The plain torch module with the given dense weights and copies of the other parameters."""
        plain = replica(self.template)
        for hooks in (*HOOKS, "_is_full_backward_hook"):
            setattr(plain, hooks, copy.copy(getattr(self, hooks)))
        for name, weight in self.named_weights().items():
            _set_parameter(plain, name, weights[weight])
        for name, parameter in self.named_rest().items():
            _set_parameter(plain, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
        return plain.train(self.training)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            template = self.__dict__.get("template")
            if template is None or name.startswith("_") or name in template._parameters or name in template._modules:
                raise
            return getattr(template, name)


class SparseLayer(SparseModule):
    """A module with one sparse weight, called ``weight``, and perhaps a bias: linear, convolution, embedding."""

    weight: SparseWeight
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer)
        self.weight = weights["weight"]
        self.register_parameter("bias", getattr(layer, "bias", None))

    @property
    def mean(self) -> nn.Parameter:
        """μ of the active entries, ``(n_active,)``."""
        return self.weight.mean

    @property
    def std(self) -> Tensor | None:
        """σ of the active entries, ``(n_active,)``. It is computed from the raw std and cannot be assigned."""
        return self.weight.std

    @property
    def support(self) -> Support:
        """Which entries are active."""
        return self.weight.support

    def dense_mean(self) -> Tensor:
        """The dense tensor of means, zeros where nothing is active."""
        return self.weight.dense_mean()

    def dense_std(self) -> Tensor:
        """The dense tensor of stds, zeros where nothing is active."""
        return self.weight.dense_std()

    def named_weights(self) -> dict[str, SparseWeight]:
        return {"weight": self.weight}

    def extra_repr(self) -> str:
        with torch.no_grad():
            plain = copy.copy(self.template)
            plain._parameters = {"weight": None, "bias": self.bias}
            return str(plain.extra_repr())


class SparseLinear(SparseLayer):
    """``y = x Wᵀ + b`` with a sparse W."""

    replaces: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)
    kind, map = "linear", LinearMap()

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; a row of it adds up to an output."""
        return [DenseWeight("weight", layer.weight, fan_in=layer.in_features)]

    def forward(self, x: Tensor, rows: tuple[int, int] | None = None) -> Tensor:
        """The outputs, or a range of them."""
        return self.weight.multiply(x, self.bias, self.map if rows is None else LinearMap(rows))


class SparseConv1D(SparseLinear):
    """The ``Conv1D`` of transformers (GPT-2): a linear layer that stores its weight as ``(in, out)``."""

    replaces, transposes = (), True

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; a column of it adds up to an output."""
        return [DenseWeight("weight", layer.weight, fan_in=layer.weight.shape[0], transposed=True)]

    def to_plain(self, weights: Mapping[SparseWeight, nn.Parameter]) -> nn.Module:
        """The plain layer; its weight is a view of the given one, so that both are drawn together."""
        plain, given = super().to_plain(weights), weights[self.weight]
        plain.weight = nn.Parameter(given.detach().t(), given.requires_grad)
        return plain


class SparseConv(SparseLayer):
    """A convolution with a sparse kernel."""

    replaces, kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d), "conv"

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer, weights)
        padding = layer.padding
        self.borders: tuple[int, ...] = ()
        self.pad_mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        if isinstance(padding, str) or layer.padding_mode != "zeros":
            borders = tuple(layer._reversed_padding_repeated_twice)  # from the last dimension on, as F.pad counts
            inside = layer.padding_mode == "zeros" and borders[0::2] == borders[1::2]
            # What the convolution cannot pad by itself is padded before it.
            self.borders = () if inside else borders
            padding = tuple(reversed(borders[0::2])) if inside else (0,) * len(layer.stride)
        self.map = ConvMap(layer.stride, padding, layer.dilation, layer.groups)

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; the kernels of one output channel add up to an output."""
        fan_in = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        return [DenseWeight("weight", layer.weight, fan_in=fan_in)]

    def forward(self, x: Tensor) -> Tensor:
        single = x.dim() == len(self.map.stride) + 1
        x = x.unsqueeze(0) if single else x
        if self.borders:
            x = F.pad(x, self.borders, mode=self.pad_mode)
        y = self.weight.multiply(x, self.bias, self.map)
        return y.squeeze(0) if single else y


class SparseConvTranspose(SparseLayer):
    """A transposed convolution with a sparse kernel."""

    replaces, kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "conv"

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; with a stride, only some taps of the kernel meet in an output."""
        taps = math.prod(layer.kernel_size) / math.prod(layer.stride)
        return [DenseWeight("weight", layer.weight, fan_in=max(1, round(layer.in_channels // layer.groups * taps)))]

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        plain: Any = self.template
        dims = len(plain.stride)
        output_padding = plain.output_padding
        if output_size is not None:
            sizes = plain.stride, plain.padding, plain.kernel_size, dims, plain.dilation
            output_padding = plain._output_padding(x, output_size, *sizes)
        geometry = plain.stride, plain.padding, plain.dilation, plain.groups
        weight_map = ConvMap(*geometry, transposed=True, output_padding=tuple(output_padding))
        single = x.dim() == dims + 1
        y = self.weight.multiply(x.unsqueeze(0) if single else x, self.bias, weight_map)
        return y.squeeze(0) if single else y


class SparseEmbedding(SparseLayer):
    """Rows of a sparse matrix. The padding row holds no active entry, ever, so padding stays exactly zero."""

    replaces, kind = (nn.Embedding,), "embedding"

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer, weights)
        padding_idx = -1 if layer.padding_idx is None else layer.padding_idx
        self.map = EmbeddingMap(layer.num_embeddings, padding_idx, layer.scale_grad_by_freq)

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; an output is one entry, so nothing adds up."""
        row, width = layer.padding_idx, layer.embedding_dim
        frozen = (0, 0) if row is None else (row * width, (row + 1) * width)
        return [DenseWeight("weight", layer.weight, fan_in=None, frozen=frozen)]

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """Options that a table of independent entries cannot honour."""
        if layer.max_norm is not None:
            return "max_norm rescales the weight in place"
        if layer.padding_idx is not None and bool(layer.weight[layer.padding_idx].any()):
            return "its padding row is not zero"
        return None

    def forward(self, x: Tensor) -> Tensor:
        """The rows named by the integer tensor ``x``, each with noise of its own."""
        return self.weight.multiply(x, None, self.map)


class Masked(nn.Module):
    """An activation times a mask of its units, m · f(x): what is masked is zero, whatever the input.

    Args:
        activation: f, a function of each element.
        mask: m, zeros and ones, one per unit or channel.
        dim: Where the units are: 1 for channels of images, -1 for features.
    """

    mask: Tensor

    def __init__(self, activation: nn.Module, mask: Tensor, dim: int = -1) -> None:
        super().__init__()
        self.activation, self.dim = activation, dim
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        shape = [1] * x.dim()
        shape[self.dim] = -1
        y: Tensor = self.activation(x)
        return y * self.mask.view(shape).to(y.dtype)

    def extra_repr(self) -> str:
        return f"{int(self.mask.detach().sum())} of {len(self.mask)} on, dim={self.dim}"


def _set_parameter(module: nn.Module, dotted: str, parameter: nn.Parameter) -> None:
    path, _, name = dotted.rpartition(".")
    setattr(module.get_submodule(path), name, parameter)
