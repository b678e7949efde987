"""A sparse weight as a dense tensor: a copy to compute with, and what code written for tensors may read of it.

The copy is for devices that multiply dense matrices fastest. The active vectors stay what is trained and stored:
``gossamer.capture`` writes them into the copy after each step and gathers their gradients from those of the copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from gossamer.kernels import LinearMap, WeightMap, fused, perturb

__all__ = ["DenseCopy", "ReadAsTensor"]

# What can be read off a sparse weight as off a tensor; all else of a tensor is refused by name.
VIEWS = ("T", "H", "mT", "mH")
METHODS = (
    "t", "transpose", "permute", "view", "reshape", "flatten", "squeeze", "unsqueeze",
    "expand", "repeat", "chunk", "split", "unbind", "narrow", "select", "index_select", "gather", "diagonal",
    "clone", "detach", "contiguous", "tolist", "numpy", "item", "norm", "abs", "square", "sqrt", "pow",
    "exp", "log", "neg", "sign", "sum", "prod", "var", "max", "min", "amax", "amin", "argmax", "argmin",
    "any", "all", "clamp", "round", "mul", "add", "sub", "div", "matmul", "mm", "mv", "bmm", "count_nonzero",
    "nonzero", "isfinite", "isnan", "isinf", "topk", "sort", "quantile", "median", "softmax", "sigmoid",
    "tanh", "type_as", "stride", "is_contiguous",
)  # fmt: skip
OPERATORS = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__matmul__", "__rmatmul__", "__pow__", "__neg__", "__abs__", "__getitem__"),
)


class DenseCopy:
    """Dense leaves in the precision of the arithmetic: means, and variances σ² where the weight has any.

    Args:
        mean: Mean of every entry, zero where it is not active; or a draw, for a weight that trains with drawn weights.
        variance: Variance of every entry; ``None`` for a weight without a distribution, and for a draw.

    Example:
        >>> from gossamer.kernels import LinearMap
        >>> copied = DenseCopy(torch.eye(2), torch.zeros(2, 2))
        >>> copied.multiply(torch.tensor([[1.0, 2.0]]), None, LinearMap())
        tensor([[1., 2.]])
        >>> copied.outputs
        [torch.Size([1, 2])]
    """

    def __init__(self, mean: Tensor, variance: Tensor | None = None) -> None:
        self.mean, self.variance = mean, variance
        self.noise: Tensor | None = (
            None  # noise for outputs of its shape that was drawn elsewhere; otherwise it is drawn here
        )
        self.outputs: list[torch.Size] = []  # shapes of the noisy products so far, to draw their noise in advance
        self.inputs: list[tuple[torch.Size, WeightMap]] = []  # and of their inputs, to plan them
        self.plan, self.planned = fused.Plan(), torch.Size()  # of the fused kernels, for inputs of this shape
        self.seed: Tensor | None = None  # of the noise that they draw
        self.layer = 0

    @property
    def leaves(self) -> list[Tensor]:
        """What autograd gives gradients to."""
        return [self.mean] if self.variance is None else [self.mean, self.variance]

    def drawn(self, noisy: bool) -> Tensor:
        """One draw of the weight, or its means."""
        if self.variance is None or not noisy:
            return self.mean
        tiny = torch.finfo(self.variance.dtype).tiny  # at zero, the root has no gradient
        return torch.addcmul(self.mean, self.variance.clamp_min(tiny).sqrt(), torch.randn_like(self.mean))

    def multiply(
        self, x: Tensor, bias: Tensor | None, weight_map: WeightMap, *, noisy: bool = True, floor: float | None = None
    ) -> Tensor:
        """The map with fresh noise for each output, or at the means."""
        dtype = self.mean.dtype
        x = x.to(dtype) if x.is_floating_point() else x
        bias = None if bias is None else bias.to(dtype)
        if noisy and self.variance is not None and self.plan.forward is not None and x.shape == self.planned:
            weights, (noise, seed, layer) = (self.mean, self.variance, bias), (self.noise, self.seed, self.layer)
            return fused.noisy_product(
                x, *weights, weight_map, plan=self.plan, noise=noise, seed=seed, layer=layer, floor=floor
            )
        m = weight_map(x, self.mean, bias)
        if self.variance is None or not noisy:
            return m
        if not torch.compiler.is_compiling():
            self.outputs.append(m.shape)
            self.inputs.append((x.shape, weight_map))
        drawn = self.noise is not None and self.noise.shape == m.shape
        noise = self.noise if drawn and self.noise is not None else torch.randn_like(m)
        return perturb(m, weight_map(weight_map.square(x), self.variance), noise, floor)


class ReadAsTensor:
    """Lets code that takes a weight for a tensor read it: its shape, its methods, functions of torch.

    A method or function gets a draw of the dense weight (:meth:`drawn`). Nothing can be written.
    """

    mean: torch.nn.Parameter

    @property
    def shape(self) -> torch.Size:
        """Shape of the dense weight."""
        raise NotImplementedError

    def drawn(self) -> Tensor:
        """One draw of the dense weight."""
        raise NotImplementedError

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The product with an input."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of dimensions of the dense weight."""
        return len(self.shape)

    @property
    def requires_grad(self) -> bool:
        """Whether the active entries are trained."""
        return self.mean.requires_grad

    def dim(self) -> int:
        """Number of dimensions of the dense weight."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Shape of the dense weight, or its length along a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Number of entries of the dense weight."""
        return self.shape.numel()

    def check_readable(self, name: str) -> None:
        """Raise an error that helps, for an attribute of tensors that a sparse weight does not have."""
        if hasattr(Tensor, name) and not name.startswith("_"):
            raise AttributeError(
                f"a sparse weight has no {name!r}: it can be read as a tensor, not written to. Its numbers are in the "
                "parameters of the layer's weight (weight.mean), and weight.dense_mean() is the dense tensor"
            )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Having this also keeps torch's transformer layers from their fused paths, which read dense weights.
        kwargs = kwargs or {}
        if function is F.linear:
            return _linear(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or kwargs.get("out") is not None:
            raise TypeError(
                f"{name} would write to a {cls.__name__}, which can only be read as a tensor: write to its parameters "
                "(weight.mean), or change the plain model before its conversion"
            )
        draws: dict[ReadAsTensor, Tensor] = {}  # one draw per call, also where a weight is given twice

        def dense(item: Any) -> Any:
            return draws.setdefault(item, item.drawn()) if isinstance(item, ReadAsTensor) else item

        return function(*tree_map(dense, args), **tree_map(dense, kwargs))


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """``F.linear`` with a sparse weight, as its layer computes it."""
    x = input
    if isinstance(weight, ReadAsTensor) and isinstance(x, Tensor) and (bias is None or isinstance(bias, Tensor)):
        return weight.multiply(x, bias, LinearMap())
    x, weight, bias = (item.drawn() if isinstance(item, ReadAsTensor) else item for item in (x, weight, bias))
    return F.linear(x, weight, bias)


def _view(name: str) -> Any:
    def read(self: ReadAsTensor) -> Tensor:
        view: Tensor = getattr(self.drawn(), name)
        return view

    return read


def _method(name: str) -> Any:
    def apply(self: ReadAsTensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.drawn(), name)(*args, **kwargs)

    return apply


for _name in (*METHODS, *OPERATORS):
    setattr(ReadAsTensor, _name, _method(_name))
for _name in VIEWS:
    setattr(ReadAsTensor, _name, property(_view(_name)))
