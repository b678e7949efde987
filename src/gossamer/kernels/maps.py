"""Maps (x, W) -> y that are linear in W, with their gradients.

Linear layers, convolutions of any dimension (also transposed) and embeddings are all of this kind, so one formula of
local reparameterization serves them all: mean ``W_mean · x``, variance ``W_std² · x²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, ...]
Rows = tuple[int, int]  # the first, and one past the last


class WeightMap(Protocol):
    """A product of an input and a weight that is linear in the weight."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, plus the bias."""
        ...

    def square(self, x: Tensor) -> Tensor:
        """The input of the variance: x² elementwise, or the indices themselves."""
        ...

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """Gradient with respect to the input; ``None`` for an input of indices."""
        ...

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        """Gradient with respect to the dense weight of this ``shape``, or to one of its :meth:`row_ranges`."""
        ...

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        """The rows (along the first dimension) that take part, in ranges of one to ``most`` rows."""
        ...

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Gradient with respect to a bias of ``size`` elements."""
        ...


Placement = tuple[Tensor | None, Shape, WeightMap]
"""Where the entries of an active vector belong: their positions in the weight, its shape, and the map it is used in.

Kernels take the three as their last arguments, ``*where``.
"""


@dataclass(frozen=True)
class LinearMap:
    """``x Wᵀ`` for x of shape ``(…, in)`` and W of shape ``(out, in)``; with ``rows``, only these outputs."""

    rows: Rows | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, plus the bias."""
        y = F.linear(x, self.part(weight), None if bias is None else self.part(bias))
        return y if x.dim() == 2 else no_view(y)  # torch returns a view for sequences

    def square(self, x: Tensor) -> Tensor:
        """x²."""
        return x * x

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """``grad W``."""
        return grad @ self.part(weight)

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        """``gradᵀ x``."""
        first, last = self.rows or (0, shape[0])
        if rows is not None:
            return _as_matrix(grad[..., rows[0] - first : rows[1] - first]).T @ _as_matrix(x)
        whole = _as_matrix(grad).T @ _as_matrix(x)
        return whole if self.rows is None else F.pad(whole, (0, 0, first, shape[0] - last))

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        """Any range of the rows."""
        return _ranges(*(self.rows or (0, shape[0])), most)

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Sum over all dimensions but the last."""
        total = _as_matrix(grad).sum(0)
        return total if self.rows is None else F.pad(total, (self.rows[0], size - self.rows[1]))

    def part(self, tensor: Tensor) -> Tensor:
        """The rows that take part."""
        return tensor if self.rows is None else tensor[self.rows[0] : self.rows[1]]


@dataclass(frozen=True)
class ConvMap:
    """Convolution, also transposed, of ``(batch, in, *space)`` with W of shape ``(out, in / groups, *kernel)``."""

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1
    transposed: bool = False
    output_padding: Shape = ()

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution, plus the bias."""
        return torch.convolution(x, weight, bias, *self._options(), self.groups)

    def square(self, x: Tensor) -> Tensor:
        """x²."""
        return x * x

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """By torch's own backward function."""
        return self._backward(grad, x, weight, self.groups, 0)

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        """By torch's own backward function, on the channels that these rows connect."""
        low, high = rows or (0, shape[0])
        like = x.new_empty(()).expand(high - low, *shape[1:])  # only the shape of the weight matters
        groups = self.groups
        if rows is not None:
            # The rows of a weight are output channels (input channels if it is transposed). On the other side, all
            # channels of the same groups take part.
            per_group = shape[0] // groups
            first, groups = low // per_group, -(-(high - low) // per_group)
            own, other = (x, grad) if self.transposed else (grad, x)
            width = other.shape[1] // self.groups
            own, other = own[:, low:high], other[:, first * width : (first + groups) * width]
            x, grad = (own, other) if self.transposed else (other, own)
        return self._backward(grad, x, like, groups, 1)

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        """Ranges of whole groups, or within one group."""
        per_group = shape[0] // self.groups
        if most >= per_group:
            return _ranges(0, shape[0], most // per_group * per_group)
        return [part for low in range(0, shape[0], per_group) for part in _ranges(low, low + per_group, most)]

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Sum over all dimensions but the channels."""
        return grad.sum((0, *range(2, grad.dim())))

    def _backward(self, grad: Tensor, x: Tensor, weight: Tensor, groups: int, which: int) -> Tensor:
        wanted = [which == 0, which == 1, False]
        backward = torch.ops.aten.convolution_backward.default
        gradient: Tensor = backward(grad, x, weight, None, *self._options(), groups, wanted)[which]
        return gradient

    def _options(self) -> tuple[Shape, Shape, Shape, bool, Shape]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding or (0,) * len(self.stride)


@dataclass(frozen=True)
class EmbeddingMap:
    """Rows of W of shape ``(words, features)``, picked by an integer tensor of any shape."""

    n_rows: int
    padding_idx: int = -1
    scale_grad_by_freq: bool = False

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The rows."""
        return F.embedding(x, weight)

    def square(self, x: Tensor) -> Tensor:
        """The indices themselves: the variance of a row is the row of variances."""
        return x

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> None:
        """Indices have no gradient."""

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        """For each row of W, the sum of the gradients wherever it was picked."""
        low, high = rows or (0, self.n_rows)
        padding = self.padding_idx - low if low <= self.padding_idx < high else -1
        if rows is not None:
            picked = (x >= low) & (x < high)
            grad, x = grad[picked], x[picked] - low
        backward = torch.ops.aten.embedding_dense_backward
        gradient: Tensor = backward(grad, x, high - low, padding, self.scale_grad_by_freq)
        return gradient

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        """Any range of the words."""
        return _ranges(0, shape[0], most)

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Embeddings have no bias."""
        raise NotImplementedError("an embedding has no bias")


def no_view(y: Tensor) -> Tensor:
    """``y`` as a tensor that may be overwritten in place; nothing else may use the tensor that it is a view of."""
    same: Tensor = torch.ops.aten._unsafe_view.default(y, y.shape)
    return same


def _as_matrix(x: Tensor) -> Tensor:
    """``(…, features) -> (rows, features)``."""
    return x.reshape(-1, x.shape[-1])


def _ranges(first: int, last: int, most: int) -> list[Rows]:
    step = max(1, most)
    return [(low, min(low + step, last)) for low in range(first, last, step)]
