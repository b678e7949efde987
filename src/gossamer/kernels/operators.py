"""The native kernel as operators ``gossamer::forward`` and ``gossamer::backward``, for tracing (compile, export).

They are registered one by one on a library: ``torch.library.custom_op`` would double the time of ``import gossamer``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import native
from gossamer.kernels.library import NativePlan

_LIBRARY = torch.library.Library("gossamer", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_LIBRARY.define(
    "forward(Tensor x, Tensor mean, Tensor? std, Tensor? bias, Tensor position, Tensor? seed, "
    "SymInt[] numbers, float floor, bool keep) -> (Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.define(
    "backward(Tensor x, Tensor dy, Tensor? dv, bool is_factor, Tensor mean, Tensor? std, Tensor position, "
    "SymInt[] numbers, bool for_input) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)


def _plan(x: Tensor, position: Tensor, numbers: Sequence[int]) -> NativePlan:
    extent = tuple(numbers[3:6])
    fits = 3 <= x.dim() <= 5 and extent[: 5 - x.dim()] == (1,) * (5 - x.dim())
    if not fits or tuple(x.shape[1:]) != (numbers[1], *extent[5 - x.dim() :]):
        raise ValueError(
            f"the input has shape {tuple(x.shape)}, which does not belong to the geometry {tuple(numbers)}"
        )
    return native.plan_of(position, tuple(numbers), x.shape[0])


def _forward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    mean, std, bias, position, seed, numbers, floor, keep = rest
    plan, shape = _plan(x, position, numbers), (x.shape[0], numbers[2], *numbers[6:9])
    return native.forward(plan, x, mean, std, bias, seed, floor, keep, shape)


def _backward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dy, dv, is_factor, mean, std, position, numbers, for_input = rest
    return native.backward(_plan(x, position, numbers), x, dy, dv, is_factor, mean, std, for_input)


def _check_devices(x: Tensor, *others: Tensor | None) -> None:
    """Raise unless all tensors are where ``x`` is: a call with one on the meta device runs the functions below."""
    for tensor in others:
        if tensor is not None and tensor.device != x.device:
            raise ValueError(
                f"the input is on {x.device} but a tensor of the weight is on {tensor.device}: move both to one"
            )


def _fake_forward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    mean, std, bias, position, seed, numbers, _, keep = rest
    _check_devices(x, mean, std, bias, position, seed)
    y = x.new_empty((x.shape[0], numbers[2], *numbers[6:9]))
    return y, torch.empty_like(y) if std is not None and (keep or seed is None) else x.new_empty(0)


def _fake_backward(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dy, dv, _, mean, std, position, _, for_input = rest
    _check_devices(x, dy, dv, mean, std, position)
    dx = x.new_empty(x.shape if for_input else 0)
    return dx, torch.empty_like(mean), mean.new_empty(0 if std is None else mean.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mean, std, bias, position, seed, numbers, _, _ = inputs
    separate = std is not None and seed is None
    ctx.save_for_backward(x, mean, std, bias, seed, None if separate else output[1], position)
    ctx.numbers = tuple(numbers)


def _differentiate(ctx: Any, dy: Tensor, dv: Tensor) -> tuple[Any, ...]:
    position, numbers = ctx.saved_tensors[6], list(ctx.numbers)

    def run(*arguments: Any) -> Any:
        *before, for_input = arguments
        return torch.ops.gossamer.backward(*before, position, numbers, for_input)

    return (*native.gradients(ctx, dy, dv, run), None, None, None, None, None)


_LIBRARY.impl("forward", _forward, "CPU")
_LIBRARY.impl("backward", _backward, "CPU")
torch.library.register_fake("gossamer::forward", _fake_forward, lib=_LIBRARY)
torch.library.register_fake("gossamer::backward", _fake_backward, lib=_LIBRARY)
torch.library.register_autograd("gossamer::forward", _differentiate, setup_context=_setup, lib=_LIBRARY)
