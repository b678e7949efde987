"""The reference kernel: scatter the active vector into a temporary dense weight, multiply, free it.

It runs on any device, and the other kernels are tested against it. The backward pass forms the dense weight again
instead of keeping it, so between forward and backward a layer holds only its input, the active vectors and two tensors
of the output's shape (variance and noise).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

from gossamer.kernels.maps import Placement, Shape, WeightMap

# A variance up to this counts as zero, so that the noise and its gradient stay finite in float32 and in bfloat16, which
# has the same range of exponents.
VARIANCE_FLOOR = 1e-30


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
    if probe is not None:
        dense: Tensor = _Scatter.apply(values, probe, position, shape)
        return dense
    if position is None:
        return values.view(shape)
    check_length("values", values, position.shape[-1])
    size = 1
    for extent in shape:
        size *= extent
    return values.new_zeros(size).scatter(0, position.long(), values).view(shape)


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
    y: Tensor = _Product.apply(x, mean.to(dtype), _cast(bias, dtype), *where)
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


class _Scatter(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, probe: Tensor, position: Tensor | None, shape: Shape) -> Tensor:
        return scatter(values, position, shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (position,) = ctx.saved_tensors
        return gather(grads[0], position), grads[0], None, None


class _Product(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(  # every argument by name: torch.compile does not trace *where
        x: Tensor, mean: Tensor, bias: Tensor | None, position: Tensor | None, shape: Shape, weight_map: WeightMap
    ) -> Tensor:
        return weight_map(x, scatter(mean, position, shape), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, mean, bias, position, ctx.shape, ctx.weight_map = inputs
        ctx.bias_size = 0 if bias is None else len(bias)
        ctx.save_for_backward(x, mean, position)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, position = ctx.saved_tensors
        for_input, for_mean, for_bias = ctx.needs_input_grad[:3]
        weight_map, shape, grad = ctx.weight_map, ctx.shape, grads[0]
        return (
            weight_map.input_gradient(grad, x, scatter(mean, position, shape)) if for_input else None,
            gather(weight_map.weight_gradient(grad, x, shape), position) if for_mean else None,
            weight_map.sum_to_bias(grad, ctx.bias_size) if for_bias else None,
            None,
            None,
            None,
        )


class _Moments(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        mean: Tensor,
        std: Tensor,
        bias: Tensor | None,
        position: Tensor | None,
        shape: Shape,
        weight_map: WeightMap,
    ) -> tuple[Tensor, Tensor]:
        m = weight_map(x, scatter(mean, position, shape), bias)
        v = weight_map(_squared(weight_map, x, std), scatter(std * std, position, shape))
        return m, v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, mean, std, bias, position, ctx.shape, ctx.weight_map = inputs
        ctx.bias_size = 0 if bias is None else len(bias)
        ctx.save_for_backward(x, mean, std, position)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, std, position = ctx.saved_tensors
        grad_m, grad_v = grads[0], 2 * grads[1]  # the squares of x and of std both bring a factor 2
        for_input, for_mean, for_std, for_bias = ctx.needs_input_grad[:4]
        weight_map, shape = ctx.weight_map, ctx.shape
        squared = _squared(weight_map, x, std)
        grad_x = None
        if for_input:
            grad_x = weight_map.input_gradient(grad_m, x, scatter(mean, position, shape))
            grad_squared = weight_map.input_gradient(grad_v, squared, scatter(std * std, position, shape))
            grad_x = torch.addcmul(grad_x, x, grad_squared.to(x.dtype))  # d x² = 2 x dx
        return (
            grad_x,
            gather(weight_map.weight_gradient(grad_m, x, shape), position) if for_mean else None,
            std * gather(weight_map.weight_gradient(grad_v, squared, shape), position) if for_std else None,
            weight_map.sum_to_bias(grad_m, ctx.bias_size) if for_bias else None,
            None,
            None,
            None,
        )


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
