"""Maps (x, W) -> y that are linear in W, and the reference kernel, which computes them by temporary dense weights.

Linear layers, convolutions of any dimension (also transposed) and embeddings are all of this kind, so one formula of
local reparameterization serves them all: mean ``W_mean · x``, variance ``W_std² · x²``. The kernel runs on any device,
and the others are tested against it: scatter the active vector into a dense weight, multiply, free it. The backward
pass forms the dense weight again instead of keeping it, so between forward and backward a layer holds only its input,
the active vectors and two tensors of the output's shape (variance and noise).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

Shape = tuple[int, ...]
Rows = tuple[int, int]  # the first, and one past the last

# A variance up to this counts as zero, so that the noise and its gradient stay finite in float32 and in bfloat16, which
# has the same range of exponents.
VARIANCE_FLOOR = 1e-30


class WeightMap:
    """A product of an input and a weight that is linear in the weight."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The product, plus the bias."""
        raise NotImplementedError

    def square(self, x: Tensor) -> Tensor:
        """The input of the variance: x² elementwise, or the indices themselves."""
        return x * x

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """Gradient with respect to the input; ``None`` for an input of indices."""
        raise NotImplementedError

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        """Gradient with respect to the dense weight of this ``shape``, or to one of its :meth:`row_ranges`."""
        raise NotImplementedError

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        """The rows (along the first dimension) that take part, in ranges of one to ``most`` rows."""
        return _ranges(0, shape[0], most)

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        """Gradient with respect to a bias of ``size`` elements."""
        raise NotImplementedError(f"a {type(self).__name__} has no bias")


Placement = tuple[Tensor | None, Shape, WeightMap]
"""Where the entries of an active vector belong: their positions in the weight, its shape, and the map it is used in.

Kernels take the three as their last arguments, ``*where``.
"""


@dataclass(frozen=True)
class LinearMap(WeightMap):
    """``x Wᵀ`` for x of shape ``(…, in)`` and W of shape ``(out, in)``; with ``rows``, only these outputs."""

    rows: Rows | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = F.linear(x, self.part(weight), None if bias is None else self.part(bias))
        return y if x.dim() == 2 else no_view(y)  # torch returns a view for sequences

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return grad @ self.part(weight)

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        first, last = self.rows or (0, shape[0])
        if rows is not None:
            return _as_matrix(grad[..., rows[0] - first : rows[1] - first]).T @ _as_matrix(x)
        whole = _as_matrix(grad).T @ _as_matrix(x)
        return whole if self.rows is None else F.pad(whole, (0, 0, first, shape[0] - last))

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        return _ranges(*(self.rows or (0, shape[0])), most)

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        total = _as_matrix(grad).sum(0)
        return total if self.rows is None else F.pad(total, (self.rows[0], size - self.rows[1]))

    def part(self, tensor: Tensor) -> Tensor:
        """The rows that take part."""
        return tensor if self.rows is None else tensor[self.rows[0] : self.rows[1]]


@dataclass(frozen=True)
class ConvMap(WeightMap):
    """Convolution, also transposed, of ``(batch, in, *space)`` with W of shape ``(out, in / groups, *kernel)``."""

    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1
    transposed: bool = False
    output_padding: Shape = ()

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.convolution(x, weight, bias, *self._options(), self.groups)

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return self._backward(grad, x, weight, 0)

    def weight_gradient(self, grad: Tensor, x: Tensor, shape: Shape, rows: Rows | None = None) -> Tensor:
        if rows is None:
            rows = (0, shape[0])
        elif self.transposed:
            x = x[:, slice(*rows)]
        else:
            grad = grad[:, slice(*rows)]
        like = x.new_empty(()).expand(rows[1] - rows[0], *shape[1:])  # only the shape of the weight matters
        return self._backward(grad, x, like, 1)

    def row_ranges(self, shape: Shape, most: int) -> list[Rows]:
        """The rows in ranges, output channels or, transposed, input channels; those of several groups together."""
        return _ranges(0, shape[0], most if self.groups == 1 else shape[0])

    def sum_to_bias(self, grad: Tensor, size: int) -> Tensor:
        return grad.sum((0, *range(2, grad.dim())))

    def _backward(self, grad: Tensor, x: Tensor, weight: Tensor, which: int) -> Tensor:
        wanted = [which == 0, which == 1, False]
        backward = torch.ops.aten.convolution_backward.default
        gradient: Tensor = backward(grad, x, weight, None, *self._options(), self.groups, wanted)[which]
        return gradient

    def _options(self) -> tuple[Shape, Shape, Shape, bool, Shape]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding or (0,) * len(self.stride)


@dataclass(frozen=True)
class EmbeddingMap(WeightMap):
    """Rows of W of shape ``(words, features)``, picked by an integer tensor of any shape."""

    n_rows: int
    padding_idx: int = -1
    scale_grad_by_freq: bool = False

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.embedding(x, weight)

    def square(self, x: Tensor) -> Tensor:
        return x

    def input_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> None:
        pass

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


class Function(torch.autograd.Function):
    """``torch.autograd.Function`` with ``setup_context`` that costs a third as much to call.

    At each call torch inspects the signature of ``forward`` in Python to fill in default arguments, which takes twice
    as long as the rest of a call on a small tensor. So ``forward`` must have no defaults here.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.forward.__defaults__ or cls.forward.__kwdefaults__:
            raise TypeError(f"{cls.__name__}.forward must have no defaults: give every argument in the call")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Call it as torch does. Compilers recognise this method by its name and do not run it."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[no-untyped-call]
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(args))  # type: ignore[misc]


def scatter(values: Tensor, position: Tensor | None, shape: Shape, probe: Tensor | None = None) -> Tensor:
    """The dense tensor with ``values`` at the flat ``position`` and exact zeros elsewhere.

    A ``probe`` is a dense tensor of zeros that receives the whole gradient, as in :func:`gossamer.kernels.watch`.
    """
    if position is None:
        dense = values.view(shape)
    else:
        check_length("values", values, position.shape[-1])
        dense = values.new_zeros(math.prod(shape)).scatter(0, position.long(), values).view(shape)
    return (
        dense if probe is None or torch.compiler.is_exporting() else dense + probe
    )  # an exported program only predicts


def gather(dense: Tensor, position: Tensor | None) -> Tensor:
    """The entries of ``dense`` at the flat ``position``: the adjoint of :func:`scatter`."""
    flat = dense.reshape(-1)
    return flat if position is None else flat.index_select(0, position)


def check_length(name: str, vector: Tensor | None, n_active: int) -> None:
    """Raise unless ``vector`` has one entry per active position (torch's scatter ignores any more)."""
    if vector is not None and vector.shape[-1] != n_active:
        n = vector.shape[-1]
        raise ValueError(f"{name} has {n} entries but {n_active} positions are active: give one entry for each")


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b`` in the precision of ``x``, or of ``mean`` if x holds indices."""
    dtype = x.dtype if x.is_floating_point() else mean.dtype
    y: Tensor = _Moments.apply(x, mean.to(dtype), None, _cast(bias, dtype), *where)[0]
    return y


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean ``W_mean x + b`` and variance ``W_std² x²`` of ``W x + b`` for independent Gaussian entries of W.

    The variance of a float16 input is computed in float32: squares of ordinary stds underflow float16.
    """
    dtype = x.dtype if x.is_floating_point() else mean.dtype
    wide = torch.float32 if dtype == torch.float16 else dtype
    m, v = _Moments.apply(x, mean.to(dtype), std.to(wide), _cast(bias, dtype), *where)
    return m, v


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw of ``W x + b`` with independent noise for each output (local reparameterization)."""
    m, v = moments(x, mean, std, bias, *where)
    return perturb(m, v, torch.randn_like(m), floor)


def perturb(mean: Tensor, variance: Tensor, noise: Tensor, floor: float | None = None) -> Tensor:
    """``mean + sqrt(variance) · noise`` with finite gradients; with a ``floor``, std is ``sqrt(variance + floor)``."""
    if floor is not None:
        return mean + (variance + floor).sqrt().to(mean.dtype) * noise
    y: Tensor = _Perturb.apply(mean, variance, noise)
    return y


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


class _Moments(Function):
    """Mean and variance of a product; without a std, the mean alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # every argument by name: torch.compile does not trace *where
        x: Tensor,
        mean: Tensor,
        std: Tensor | None,
        bias: Tensor | None,
        position: Tensor | None,
        shape: Shape,
        weight_map: WeightMap,
    ) -> tuple[Tensor, Tensor | None]:
        m = weight_map(x, scatter(mean, position, shape), bias)
        if std is None:
            return m, None
        return m, weight_map(_squared(weight_map, x, std), scatter(std * std, position, shape))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> None:
        x, mean, std, bias, position, ctx.shape, ctx.weight_map = inputs
        ctx.bias_size = 0 if bias is None else len(bias)
        ctx.save_for_backward(x, mean, std, position)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, std, position = ctx.saved_tensors
        for_input, for_mean, for_std, for_bias = ctx.needs_input_grad[:4]
        weight_map, shape, grad_m = ctx.weight_map, ctx.shape, grads[0]
        grad_x: Tensor | None = None
        if for_input:
            grad_x = weight_map.input_gradient(grad_m, x, scatter(mean, position, shape))
        grad_std = None
        if std is not None:
            squared, grad_v = _squared(weight_map, x, std), 2 * grads[1]  # the squares of x and of std bring a factor 2
            if grad_x is not None:
                grad_squared = weight_map.input_gradient(grad_v, squared, scatter(std * std, position, shape))
                grad_x = torch.addcmul(grad_x, x, grad_squared.to(x.dtype))  # d x² = 2 x dx
            if for_std:
                grad_std = std * gather(weight_map.weight_gradient(grad_v, squared, shape), position)
        grad_mean = gather(weight_map.weight_gradient(grad_m, x, shape), position) if for_mean else None
        grad_bias = weight_map.sum_to_bias(grad_m, ctx.bias_size) if for_bias else None
        return grad_x, grad_mean, grad_std, grad_bias, None, None, None


def _squared(weight_map: WeightMap, x: Tensor, std: Tensor) -> Tensor:
    return weight_map.square(x.to(std.dtype) if x.is_floating_point() else x)


class _Perturb(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
        std = F.threshold(variance, VARIANCE_FLOOR, 0.0).sqrt_()
        return torch.addcmul(mean, std.to(mean.dtype), noise)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        variance, noise = ctx.saved_tensors
        inverse_std = variance.clamp_min(VARIANCE_FLOOR).rsqrt_()
        slope = (noise * inverse_std).masked_fill_(variance <= VARIANCE_FLOOR, 0)
        return grads[0], (grads[0] * slope).mul_(0.5), None
