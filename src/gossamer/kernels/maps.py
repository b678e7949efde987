"""Maps (x, W) -> y that are linear in W, with their adjoints.

Linear layers, convolutions of any dimension (transposed ones too) and embeddings are all of this kind, so one
local-reparameterization formula serves them: mean ``W_mean · x``, variance ``W_std² · x²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ConvMap", "EmbeddingMap", "LinearMap", "WeightMap"]


class WeightMap(Protocol):
    """A product of an input and a weight, linear in the weight."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, plus the bias."""
        ...

    def square(self, x: Tensor) -> Tensor:
        """The input of the variance: x² entry by entry (what an index selects needs no square)."""
        ...

    def adjoint(
        self, grad: Tensor, x: Tensor, weight: Tensor, *, for_input: bool, for_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients with respect to the input and the dense weight, those that are asked for."""
        ...

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Gradient with respect to a bias of ``size`` elements."""
        ...


@dataclass(frozen=True)
class LinearMap:
    """``x Wᵀ`` for x of shape ``(…, in)`` and W of shape ``(out, in)``, or the outputs in the range ``rows`` of it."""

    rows: tuple[int, int] | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, plus the bias."""
        return F.linear(x, self._part(weight), None if bias is None else self._part(bias))

    def square(self, x: Tensor) -> Tensor:
        """x²."""
        return x * x

    def adjoint(
        self, grad: Tensor, x: Tensor, weight: Tensor, *, for_input: bool, for_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """``grad W`` and ``gradᵀ x``."""
        grad_input = grad @ self._part(weight) if for_input else None
        if not for_weight:
            return grad_input, None
        grad_weight = _rows(grad).T @ _rows(x)
        if self.rows is not None:
            above, below = self.rows[0], weight.shape[0] - self.rows[1]
            grad_weight = F.pad(grad_weight, (0, 0, above, below))
        return grad_input, grad_weight

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Sum over everything but the output units."""
        total = _rows(grad).sum(0)
        return total if self.rows is None else F.pad(total, (self.rows[0], size - self.rows[1]))

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor if self.rows is None else tensor[self.rows[0] : self.rows[1]]


def _rows(x: Tensor) -> Tensor:
    """``(…, features) -> (rows, features)``."""
    return x.reshape(-1, x.shape[-1])


@dataclass(frozen=True)
class ConvMap:
    """Convolution of ``(batch, in, *space)`` with W of shape ``(out, in / groups, *kernel)``; or the transposed one."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution, plus the bias."""
        return torch.convolution(x, weight, bias, *self._options())

    def square(self, x: Tensor) -> Tensor:
        """x²."""
        return x * x

    def adjoint(
        self, grad: Tensor, x: Tensor, weight: Tensor, *, for_input: bool, for_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Both gradients by the one function that autograd itself uses."""
        grad_input, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, x, weight, None, *self._options(), [for_input, for_weight, False]
        )
        return grad_input, grad_weight

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Sum over everything but the output channels."""
        return grad.sum((0, *range(2, grad.dim())))

    def _options(
        self,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, tuple[int, ...], int]:
        output_padding = self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, output_padding, self.groups


@dataclass(frozen=True)
class EmbeddingMap:
    """Rows of W of shape ``(words, features)`` picked by an integer tensor of any shape."""

    n_rows: int
    padding_idx: int = -1
    scale_grad_by_freq: bool = False

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The rows."""
        return F.embedding(x, weight)

    def square(self, x: Tensor) -> Tensor:
        """The indices themselves: the variance of a row is the row of variances."""
        return x

    def adjoint(
        self, grad: Tensor, x: Tensor, weight: Tensor, *, for_input: bool, for_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Nothing for the indices; the rows' gradients, summed where a row was picked."""
        if not for_weight:
            return None, None
        grad_weight = torch.ops.aten.embedding_dense_backward(
            grad, x, self.n_rows, self.padding_idx, self.scale_grad_by_freq
        )
        return None, grad_weight

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Embeddings have no bias."""
        raise NotImplementedError("an embedding has no bias")
