"""What a sparse weight is to code that takes it for a tensor: a draw, or its means, and the dense gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gossamer.kernels import LinearMap, WeightMap
from gossamer.layers.support import Support

if TYPE_CHECKING:
    from gossamer.layers.delta import Rest
    from gossamer.layers.fixed import DenseCopy
    from gossamer.layers.weight import Pass

# What can be read off a sparse weight as off a tensor: the answer is that of a draw. All else of a tensor is refused.
READABLE = frozenset((
    "T", "H", "mT", "mH", "t", "transpose", "permute", "view", "reshape", "flatten", "squeeze", "unsqueeze",
    "expand", "repeat", "chunk", "split", "unbind", "narrow", "select", "index_select", "gather", "diagonal",
    "clone", "detach", "contiguous", "tolist", "numpy", "item", "norm", "abs", "square", "sqrt", "pow",
    "exp", "log", "neg", "sign", "sum", "prod", "var", "max", "min", "amax", "amin", "argmax", "argmin",
    "any", "all", "clamp", "round", "mul", "add", "sub", "div", "matmul", "mm", "mv", "bmm", "count_nonzero",
    "nonzero", "isfinite", "isnan", "isinf", "topk", "sort", "quantile", "median", "softmax", "sigmoid",
    "tanh", "type_as", "stride", "is_contiguous",
))  # fmt: skip
OF_SHAPE = ("shape", "ndim", "dim", "size", "numel")  # as of the dense tensor
OF_ENTRIES = ("dtype", "device", "requires_grad", "is_cuda", "is_floating_point", "is_complex", "element_size")
OPERATORS = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__",
    "__matmul__", "__rmatmul__", "__pow__", "__neg__", "__abs__", "__getitem__",
)  # fmt: skip


class TensorView(nn.Module, ABC):
    """The dense tensor of a weight, which can be read and not written.

    ``rest`` is what the entries are that are not active, unless these are zero.
    """

    rest: Rest | None = None
    dense_copy: DenseCopy | None
    probe: Tensor | None
    support: Support
    mean: nn.Parameter

    @property
    @abstractmethod
    def std(self) -> Tensor | None:
        """σ of the active entries; ``None`` for a weight without a distribution."""

    def learnt_std(self, factor: float = 1.0) -> Tensor | None:
        """σ as training knows it, its variance times a ``factor``: ``std`` has the calibration."""
        return self.std

    @property
    @abstractmethod
    def is_noisy(self) -> bool:
        """Whether the pass at hand draws noise."""

    def expected(self) -> Tensor:
        """E w of the active entries: what a network at its means computes with."""
        return self.mean

    @abstractmethod
    def this_pass(self, *, drawn: bool = False) -> Pass:
        """What the pass at hand computes with; ``drawn`` weights also where its outputs could have the noise."""

    @abstractmethod
    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The map applied to ``x`` and this weight, with this weight's noise or at its means."""

    def drawn(self) -> Tensor:
        """One draw of the dense weight, differentiable; the means where a pass uses these.

        Code that takes the weight for a tensor gets one: ``weight.t()``, ``x @ weight``, ``weight.norm()`` each make a
        draw of their own. ``F.linear(x, weight, bias)`` computes as the layer does. ``weight.mean`` and ``weight.std``
        are not methods but the vectors of the active entries. Nothing can be written.
        """
        if self.dense_copy is not None:
            return self.dense_copy.drawn(self.is_noisy)
        return self.placed(self.this_pass(drawn=True).values, self.probe)

    def placed(self, values: Tensor, probe: Tensor | None = None) -> Tensor:
        """The dense weight with these values of its active entries, differentiable."""
        dense = self.support.scatter(values, probe)
        return dense if self.rest is None else self.rest.plus(dense)

    def dense_mean(self) -> Tensor:
        """The dense tensor of means."""
        return self.placed(self.expected())

    def dense_std(self) -> Tensor:
        """The dense tensor of stds, zeros where nothing is active (everywhere, for a weight without a distribution)."""
        return self.support.scatter(torch.zeros_like(self.mean) if self.std is None else self.std)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Having this also keeps torch's transformer layers from their fused paths, which read dense weights.
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or kwargs.get("out") is not None:
            raise TypeError(
                f"{name} would write to a {cls.__name__}, which can only be read as a tensor: write to its parameters "
                "(weight.mean), or change the plain model before its conversion"
            )
        if function is F.linear:
            x, weight, bias = _linear_arguments(*args, **kwargs)
            if isinstance(weight, TensorView) and not isinstance(x, TensorView):
                return weight.multiply(x, bias, LinearMap())
        draws: dict[TensorView, Tensor] = {}  # one draw per call, also where a weight is given twice

        def dense(item: Any) -> Any:
            return draws.setdefault(item, item.drawn()) if isinstance(item, TensorView) else item

        return function(*tree_map(dense, args), **tree_map(dense, kwargs))


def read(weight: TensorView, name: str) -> Any:
    """What a weight is asked for as a tensor; an error that says what it is where it cannot be read."""
    if name in OF_ENTRIES:
        return getattr(weight.mean, name)
    if name in OF_SHAPE:
        return getattr(weight.mean.detach().new_empty(()).expand(weight.support.shape), name)
    if name in READABLE:
        return getattr(weight.drawn(), name)
    if hasattr(Tensor, name) and not name.startswith("_"):
        raise AttributeError(
            f"a sparse weight has no {name!r}: it can be read as a tensor, not written to. Its numbers are in the "
            "parameters of the layer's weight (weight.mean), and weight.dense_mean() is the dense tensor"
        )
    return nn.Module.__getattr__(weight, name)


def _linear_arguments(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    return input, weight, bias


for _name in OPERATORS:  # Python looks for these in the class only
    setattr(TensorView, _name, lambda self, *args, name=_name: getattr(self.drawn(), name)(*args))
