"""The native kernel: the products of ``reference`` on a CPU, at a cost that follows the active entries.

Activations are float32 or bfloat16, weights and sums float32. What it cannot compute (other precisions and devices,
dense or transposed weights, embeddings, empty inputs, torch.func) goes to the reference kernel, so the functions here
accept everything that the reference accepts.

In eager mode an autograd function calls the library, at a fifth of the cost of a call through torch's dispatcher. Under
torch.compile, torch.export and dispatch modes the same functions are operators of the namespace ``gossamer``.

Native code trusts its arguments, so every length, precision, device and number is checked here.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels import library, reference
from gossamer.kernels.library import NativePlan, no_memory
from gossamer.kernels.reference import ConvMap, LinearMap, Placement

Geometry = tuple[int, ...]

PRECISIONS = (torch.float32, torch.bfloat16)  # of activations; sums and weights are float32
MOST_PLANS = 4  # kept for one tensor of positions: a layer may see images of several sizes


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b``, as :func:`reference.product`."""
    found = _compute(x, mean, None, bias, where)
    return reference.product(x, mean, bias, *where) if found is None else found[0]


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``W x + b``, as :func:`reference.moments`."""
    found = _compute(x, mean, std, bias, where)
    return reference.moments(x, mean, std, bias, *where) if found is None else found


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw of ``W x + b`` in one pass; the noise is a function of a seed from torch's generator."""
    found = _compute(x, mean, std, bias, where, is_noisy=True, floor=floor or 0.0)
    return reference.noisy_product(x, mean, std, bias, *where, floor=floor) if found is None else found[0]


def explicit(where: Placement) -> Placement:
    """The placement with positions, also where all entries are active."""
    position, shape, weight_map = where
    if position is None:
        size = math.prod(shape)
        position = torch.arange(size, dtype=torch.int32) if torch.compiler.is_compiling() else _all(size)
    return position, shape, weight_map


@functools.cache
def _all(size: int) -> Tensor:
    return torch.arange(size, dtype=torch.int32)


_PLAIN = {Tensor, nn.Parameter, type(None)}  # a subclass may have no memory of its own


def takes(
    x: Tensor, mean: Tensor, *where: *Placement, std: Tensor | None = None, bias: Tensor | None = None
) -> Geometry | None:
    """The geometry of a product that the native kernel can compute, otherwise ``None``."""
    position, shape, weight_map = where
    if position is None or not library.LIBRARY or not x.is_cpu:
        return None
    if x.dtype not in PRECISIONS or mean.dtype is not torch.float32:
        return None
    if std is not None and std.dtype is not torch.float32:
        return None
    if not torch.compiler.is_compiling():
        plain = {type(x), type(mean), type(std), type(bias), type(position)} <= _PLAIN
        if not plain or torch._C._are_functorch_transforms_active() or not x.numel():
            return None
    if isinstance(weight_map, LinearMap):
        fits = shape[1] > 0 and x.dim() >= 1 and x.shape[-1] == shape[1]
        return geometry(x, shape, weight_map) if fits else None
    if isinstance(weight_map, ConvMap) and not weight_map.transposed and x.dim() == len(shape):
        numbers = geometry(x, shape, weight_map)
        return numbers if x.shape[1] == shape[1] * weight_map.groups and min(numbers[3:9]) >= 1 else None
    return None


def geometry(x: Tensor, shape: tuple[int, ...], weight_map: LinearMap | ConvMap) -> Geometry:
    """The 23 numbers that native code reads.

    Groups, inputs, outputs; extents of input, output and kernel, stride, padding and dilation, three each; the first
    row of the weight that takes part, and how many rows it has.
    """
    known = _geometry.__wrapped__ if torch.compiler.is_compiling() else _geometry
    return known(() if isinstance(weight_map, LinearMap) else x.shape[1:], shape, weight_map)


@functools.lru_cache(maxsize=1024)
def _geometry(example: tuple[int, ...], shape: tuple[int, ...], weight_map: LinearMap | ConvMap) -> Geometry:
    if isinstance(weight_map, LinearMap):
        first, last = weight_map.rows or (0, shape[0])
        return (1, shape[1], last - first, *(1,) * 12, 0, 0, 0, 1, 1, 1, first, shape[0])
    missing = 5 - len(shape)

    def three(values: Sequence[int], neutral: int = 1) -> tuple[int, ...]:
        return (neutral,) * missing + tuple(values)

    extent, kernel = three(example[1:]), three(shape[2:])
    stride, dilation = three(weight_map.stride), three(weight_map.dilation)
    padding = three(weight_map.padding, 0)
    out = tuple(
        (extent[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 if extent[i] else -1
        for i in range(3)
    )
    channels = (weight_map.groups, example[0], shape[0])
    return (*channels, *extent, *out, *kernel, *stride, *padding, *dilation, 0, shape[0])


def output_shape(x: Tensor, where: Placement, numbers: Geometry) -> tuple[int, ...]:
    """Shape of the product of one weight with ``x``."""
    _, shape, weight_map = where
    if isinstance(weight_map, LinearMap):
        return (*x.shape[:-1], numbers[2])
    return (x.shape[0], shape[0], *numbers[6:9][5 - len(shape) :])


def _compute(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    where: Placement,
    is_noisy: bool = False,
    floor: float = 0.0,
) -> tuple[Tensor, Tensor] | None:
    """One product, or mean and variance where a std brings no noise; ``None`` where the reference must compute it."""
    where = explicit(where)
    numbers = takes(x, mean, *where, std=std, bias=bias)
    if numbers is None:
        return None
    position, _, weight_map = where
    assert position is not None
    seed = torch.randint(0, 2**62, (1,), dtype=torch.int64, device=x.device) if is_noisy else None
    out = output_shape(x, where, numbers)
    if bias is not None and isinstance(weight_map, LinearMap):
        bias = weight_map.part(bias)
    if bias is not None and bias.dtype is not torch.float32:
        bias = bias.float()
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, mean, std, bias))
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1], 1, 1, 1) if isinstance(weight_map, LinearMap) else x
        y, r = torch.ops.gossamer.forward(flat, mean, std, bias, position, seed, list(numbers), floor, keep)
        return y.view(out), r.view(out) if std is not None and (keep or seed is None) else r
    plan = plan_of(position, numbers, x.numel() // (numbers[1] * math.prod(numbers[3:6])))
    if keep:
        y, r = _Native.apply(x, mean, std, bias, seed, plan, floor, out)
        return y, r
    return forward(plan, x, mean, std, bias, seed, floor, False, out)


def forward(
    plan: NativePlan,
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    floor: float,
    keep: bool,
    shape: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """The output in this ``shape`` and what the backward pass needs of it; with no ``seed``, mean and variance."""
    batch = _batch(plan, x)
    x, mean = in_memory(x), vector("mean", mean, plan.n_active)
    std = None if std is None else vector("std", std, plan.n_active)
    bias = None if bias is None else vector("bias", bias, plan.numbers[2])
    y = x.new_empty(shape)
    if y.numel() != batch * plan.output_size:
        raise ValueError(f"{batch} examples have {batch * plan.output_size} outputs, which is not the shape {shape}")
    r = torch.empty_like(y) if std is not None and (keep or seed is None) else x.new_empty(0)
    if batch == 0:
        return y, r
    # A null pointer means no std, but is also the address of an empty one.
    std_address = None if std is None else std.data_ptr() or y.data_ptr()
    weights = (mean.data_ptr(), std_address, None if bias is None else bias.data_ptr())
    noise = (0 if seed is None else int(seed) & 0xFFFFFFFFFFFFFFFF, floor, seed is not None)
    head, outputs = (plan.address, batch, x.dtype is torch.bfloat16), (y.data_ptr(), r.data_ptr() or None)
    if library.LIBRARY["forward"](*head, x.data_ptr(), *weights, *noise, *outputs, torch.get_num_threads()):
        raise no_memory(f"the product of {batch} examples")
    return y, r


def backward(
    plan: NativePlan,
    x: Tensor,
    dy: Tensor,
    dv: Tensor | None,
    is_factor: bool,
    mean: Tensor,
    std: Tensor | None,
    for_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input (empty unless asked for), means and stds (empty without a std).

    ``dv`` is the variance's gradient; if ``is_factor``, what :func:`forward` kept, which times ``dy`` gives it.
    """
    batch = _batch(plan, x)
    x, mean = in_memory(x), vector("mean", mean, plan.n_active)
    dy = vector("the gradient", dy, batch * plan.output_size, x.dtype)
    if std is not None:
        std = vector("std", std, plan.n_active)
        if dv is None:
            raise ValueError("a weight with a std needs the gradient of its variance")
        dv = vector("the gradient", dv, batch * plan.output_size, x.dtype)
    dx = x.new_empty(x.shape if for_input else 0)
    dmean, dstd = torch.empty_like(mean), mean.new_empty(0 if std is None else mean.shape)
    if batch == 0:
        return dx, dmean.zero_(), dstd.zero_()
    grads = (dy.data_ptr(), None if std is None or dv is None else dv.data_ptr(), is_factor)
    weights = (mean.data_ptr(), None if std is None else std.data_ptr() or dy.data_ptr())
    head, outputs = (plan.address, batch, x.dtype is torch.bfloat16), (dmean.data_ptr(), dstd.data_ptr() or None)
    to_input = dx.data_ptr() if for_input else None
    if library.LIBRARY["backward"](*head, x.data_ptr(), *grads, *weights, to_input, *outputs, torch.get_num_threads()):
        raise no_memory(f"the gradients of {batch} examples")
    return dx, dmean, dstd


def _batch(plan: NativePlan, x: Tensor) -> int:
    """The number of examples in ``x``."""
    batch, rest = divmod(x.numel(), plan.input_size)
    if rest or x.dtype not in PRECISIONS or not x.is_cpu:
        raise ValueError(
            f"native kernels take float32 or bfloat16 inputs on the CPU, {plan.input_size} numbers per example; "
            f"got {x.dtype} of shape {tuple(x.shape)} on {x.device}"
        )
    return batch


def vector(name: str, tensor: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """``tensor`` in memory; raises unless it has this size and type and is on the CPU."""
    if tensor.dtype is dtype and tensor.is_cpu and tensor.numel() == size:
        return in_memory(tensor)
    if not tensor.is_cpu:
        raise ValueError(
            f"the input is on the CPU but {name} is on {tensor.device}: move both to one device, "
            "for example model.to(x.device)"
        )
    if tensor.numel() != size:
        wanted = f"{size} positions are active" if name in ("mean", "std", "values") else f"there are {size} outputs"
        raise ValueError(f"{name} has {tensor.numel()} entries but {wanted}: give one entry for each")
    raise ValueError(f"{name} is {tensor.dtype}, but native kernels take {dtype} here: convert it")


def in_memory(tensor: Tensor) -> Tensor:
    """``tensor`` as native code reads it: contiguous, and a lazy negative (``is_neg``) with its sign."""
    tensor = tensor.resolve_neg().contiguous()
    if not tensor.data_ptr() and tensor.numel():
        raise RuntimeError(f"the memory of a tensor of shape {tuple(tensor.shape)} was freed (by storage.resize_(0))")
    return tensor


def gradients(ctx: Any, dy: Tensor | None, dv: Tensor | None, run: Any) -> tuple[Tensor | None, ...]:
    """Gradients of x, mean, std and bias; ``run`` is the function or operator that computes the first three."""
    x, mean, std, bias, seed, r = ctx.saved_tensors[:6]
    for_input, for_mean, for_std, for_bias = ctx.needs_input_grad[:4]
    if dy is None and dv is None:
        return None, None, None, None
    batched = dy is not None and torch._C._functorch.is_legacy_batchedtensor(dy)  # by torch.autograd's vectorize=True
    if torch.is_grad_enabled() or batched:
        raise RuntimeError(
            "the native kernels have no second derivatives (create_graph=True) and no vectorized gradients: compute "
            "what is differentiated so within gossamer.kernels.use('dense')"
        )
    if dy is None:
        assert dv is not None
        dy = torch.zeros_like(dv)
    noisy = seed is not None
    if std is not None and not noisy and dv is None:
        dv = torch.zeros_like(dy)
    dx = dmean = dstd = None
    if for_input or for_mean or for_std:
        second = r if noisy else dv
        dx, dmean, dstd = run(x, dy, None if std is None else second, noisy, mean, std, for_input)
    return (
        dx if for_input else None,
        dmean if for_mean else None,
        dstd if for_std else None,
        dy.reshape(-1, len(bias), math.prod(ctx.numbers[6:9])).sum((0, 2), dtype=bias.dtype) if for_bias else None,
    )


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        x, mean, std, bias, seed, plan, floor, out = inputs
        y, r = forward(plan, x, mean, std, bias, seed, floor, True, out)
        separate = std is not None and seed is None
        ctx.save_for_backward(x, mean, std, bias, seed, None if separate else r)
        ctx.plan, ctx.numbers = plan, plan.numbers
        ctx.set_materialize_grads(False)
        if not separate:
            ctx.mark_non_differentiable(r)
        return y, r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
            return backward(ctx.plan, *arguments)

        return (*gradients(ctx, grads[0], grads[1], run), None, None, None, None)


_memcmp = (ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)).memcmp
_memcmp.restype, _memcmp.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class _Entry:
    """A copy of the positions of one tensor, and the plans made from it."""

    def __init__(self, position: Tensor, entries: dict[int, _Entry]) -> None:
        self.position = position.clone()
        self.copy = self.position.data_ptr()
        self.plans: dict[tuple[tuple[int, ...], int], NativePlan] = {}
        own, address = weakref.ref(self), position.data_ptr()  # not self: a cycle would wait for the garbage collector

        def forget(_: object) -> None:
            if entries.get(address) is own():
                entries.pop(address, None)

        self.owner = weakref.ref(position, forget)

    def matches(self, position: Tensor, address: int) -> bool:
        """Whether the positions are still those that were copied."""
        n_bytes = position.nbytes
        same = position.dtype is self.position.dtype and n_bytes == self.position.nbytes
        return same and _memcmp(address, self.copy, n_bytes) == 0


# By the address of the positions. An entry is dropped with its tensor. A hit compares the positions with a copy: that
# takes a hundredth of the time of a product, and unlike a tensor's version counter it notices every write, also those
# of ``position.data.copy_()`` and ``torch.distributed``.
_plans: dict[int, _Entry] = {}
_one_at_a_time = threading.Lock()  # threads that predict by one network look for the same plans


def plan_of(position: Tensor, numbers: tuple[int, ...], batch: int) -> NativePlan:
    """The plan for the positions as they are now and a batch of this size."""
    if not position.is_cpu:
        raise ValueError(
            f"the input is on the CPU but the weight is on {position.device}: move both to one device, "
            "for example model.to(x.device)"
        )
    position = in_memory(position)
    address = position.data_ptr()
    with _one_at_a_time:
        entry = _plans.get(address)
        if entry is None or not entry.matches(position, address):
            entry = _plans[address] = _Entry(position, _plans)
        key = (numbers, _side_by_side(numbers, batch))
        found = entry.plans.get(key)
        if found is None:
            found = NativePlan(entry.position, numbers, batch)
            if len(entry.plans) >= MOST_PLANS:
                del entry.plans[next(iter(entry.plans))]  # the oldest
            entry.plans[key] = found
        return found


def plans_of(position: Tensor) -> list[NativePlan]:
    """All plans that are kept for these positions."""
    address = position.data_ptr()
    entry = _plans.get(address)
    return list(entry.plans.values()) if entry is not None and entry.matches(position, address) else []


def _side_by_side(numbers: tuple[int, ...], batch: int) -> int:
    """Number of examples that a plan lays side by side: all it takes from the batch."""
    if max(numbers[3:9]) == 1:  # one pixel in, one pixel out
        return 8 if batch <= 8 else 16 if batch <= 16 else 32
    return 8 if batch >= 8 else 1
