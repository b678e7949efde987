"""The native kernels as functions of tensors: a shared library loaded by ctypes, and the plans it works from.

A plan holds the active positions in two orders: one for the forward pass, one for the backward pass. Native code trusts
its arguments, so this file checks every length, precision, device and number, as ``native_members`` does for its own
functions; all calls come through these two.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEVELS = ("v4", "v3", "generic")  # the newest processors first
VERSION = 5  # of the signatures below; a library left over from another version is ignored
MOST_PLANS = 4  # kept for one tensor of positions: a layer may see images of several sizes
PRECISIONS = (torch.float32, torch.bfloat16)  # of activations; sums and weights are float32
LARGEST = 2**31 - 1  # native code indexes with 32-bit numbers

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "version": (_INT, []),
    "runs_here": (_INT, []),
    "plan": (_POINTER, [_POINTER, _LONG, _LONG, _POINTER, _INT]),
    "no_memory": (_POINTER, []),
    "free": (None, [_POINTER]),
    "bytes": (_LONG, [_POINTER]),
    "forward": (
        _INT,
        [_POINTER, _LONG, _INT, *[_POINTER] * 4, ctypes.c_uint64, _FLOAT, _INT, _POINTER, _POINTER, _INT],
    ),
    "backward": (_INT, [_POINTER, _LONG, _INT, *[_POINTER] * 3, _INT, *[_POINTER] * 5, _INT]),
    "normals": (None, [ctypes.c_uint64, _LONG, _POINTER]),
    "members": (_POINTER, [*[_POINTER] * 4, _FLOAT]),
    "members_free": (None, [_POINTER]),
    "members_place": (_INT, [_POINTER, _POINTER, _INT]),
    "members_gradients": (
        _INT,
        [_POINTER, _POINTER, _LONG, _POINTER, _INT, ctypes.c_uint64, _INT, _FLOAT, _POINTER, _INT],
    ),
    "members_dense": (None, [_POINTER, _LONG, _POINTER]),
    "members_adam": (None, [_POINTER, _POINTER]),
}


def _load() -> tuple[str | None, dict[str, Callable[..., Any]]]:
    """Name and functions of the library built for the newest level that this processor supports."""
    for level in LEVELS:
        for path in sorted(Path(__file__).parent.glob(f"_cpu_{level}.*")):
            if path.suffix in (".so", ".pyd", ".dylib") and (functions := _functions_of(path)):
                return level, functions
    return None, {}


def _functions_of(path: Path) -> dict[str, Callable[..., Any]]:
    """The functions of a library; none of one for other processors, or left over from another version."""
    try:
        loaded = ctypes.CDLL(str(path))
        functions = {name: getattr(loaded, f"gossamer_{name}") for name in _SIGNATURES}
    except (OSError, AttributeError):  # built for another system, or by another version
        return {}
    for name, (result, arguments) in _SIGNATURES.items():
        functions[name].restype, functions[name].argtypes = result, arguments
    return functions if functions["version"]() == VERSION and functions["runs_here"]() else {}


LIBRARY_NAME, LIBRARY = _load()


# ---------------------------------------------------------------------- plans

_memcmp = (ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)).memcmp
_memcmp.restype, _memcmp.argtypes = _INT, [_POINTER, _POINTER, ctypes.c_size_t]


class NativePlan:
    """Geometry (``native.geometry``) and active positions of a layer, in memory of the library."""

    def __init__(self, position: Tensor, numbers: tuple[int, ...], batch: int) -> None:
        self.address: int | None = None
        self.free = LIBRARY["free"]
        _check_geometry(numbers)
        if position.dtype not in (torch.int32, torch.int64) or position.dim() != 1:
            raise ValueError(
                f"positions must be a vector of int32 or int64; got {position.dtype} of shape {tuple(position.shape)}"
            )
        self.numbers, self.n_active = numbers, len(position)
        self.input_size = numbers[1] * math.prod(numbers[3:6])  # of one example
        self.output_size = numbers[2] * math.prod(numbers[6:9])
        listed, is_wide = (ctypes.c_int32 * len(numbers))(*numbers), position.dtype == torch.int64
        self.address = LIBRARY["plan"](listed, batch, self.n_active, position.data_ptr(), is_wide)
        if self.address is not None and self.address == LIBRARY["no_memory"]():
            self.address = None
            raise no_memory(f"the plan of a layer with {self.n_active} active weights")
        if not self.address:
            raise ValueError(
                "the positions are not sorted or lie outside the weight, or the layer is too large for the native "
                "kernels (gossamer.kernels.use('dense') computes it without them)"
            )

    def __del__(self) -> None:
        self.free(self.address)


def _check_geometry(numbers: tuple[int, ...]) -> None:
    """Raise unless these numbers describe a convolution that native code can index."""
    if len(numbers) != 23 or not all(-LARGEST <= n <= LARGEST for n in numbers):
        raise ValueError(f"a geometry is 23 numbers of 32 bits; got {numbers}")
    groups, inputs, outputs = numbers[:3]
    extent, out, kernel, stride, padding, dilation = (numbers[i : i + 3] for i in range(3, 21, 3))
    first, rows = numbers[21:]
    if min(*numbers[:15], *dilation) < 1 or min(padding) < 0:
        raise ValueError(
            f"groups, channels, extents, stride and dilation must be positive, padding not negative: {numbers}"
        )
    if inputs % groups or outputs % groups:
        raise ValueError(f"{inputs} input and {outputs} output channels cannot be divided into {groups} groups")
    for i in range(3):
        span = extent[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        if span < 0 or span // stride[i] + 1 != out[i]:
            raise ValueError(f"an output of extents {out} does not belong to this input and kernel: {numbers}")
    if first < 0 or first + outputs > rows:
        raise ValueError(f"rows {first} to {first + outputs} are not rows of a weight that has {rows}")
    # Planes have borders of zeros and one part for each step of the stride.
    bordered = math.prod(extent[i] + 2 * padding[i] + 2 * stride[i] for i in range(3))
    if max(bordered * inputs, math.prod(stride) * inputs, math.prod(kernel) * inputs * rows // LARGEST) > LARGEST:
        raise ValueError("the layer is too large for the native kernels: gossamer.kernels.use('dense') computes it")


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


def plan(position: Tensor, numbers: tuple[int, ...], batch: int) -> NativePlan:
    """The plan for the positions as they are now and a batch of this size."""
    if not position.is_cpu:
        raise ValueError(
            f"the input is on the CPU but the weight is on {position.device}: move both to one device, "
            "for example model.to(x.device)"
        )
    position = position.contiguous()
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


def plan_bytes(position: Tensor) -> int:
    """Memory of the plans that are kept for these positions."""
    return sum(LIBRARY["bytes"](plan.address) for plan in plans_of(position))


# ---------------------------------------------------------------------- calls


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
    x, mean = x.contiguous(), _vector("mean", mean, plan.n_active)
    std = None if std is None else _vector("std", std, plan.n_active)
    bias = None if bias is None else _vector("bias", bias, plan.numbers[2])
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
    if LIBRARY["forward"](*head, x.data_ptr(), *weights, *noise, *outputs, torch.get_num_threads()):
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
    x, mean = x.contiguous(), _vector("mean", mean, plan.n_active)
    dy = _gradient(dy, x, batch * plan.output_size)
    if std is not None:
        std = _vector("std", std, plan.n_active)
        if dv is None:
            raise ValueError("a weight with a std needs the gradient of its variance")
        dv = _gradient(dv, x, batch * plan.output_size)
    dx = x.new_empty(x.shape if for_input else 0)
    dmean, dstd = torch.empty_like(mean), mean.new_empty(0 if std is None else mean.shape)
    if batch == 0:
        return dx, dmean.zero_(), dstd.zero_()
    grads = (dy.data_ptr(), None if std is None or dv is None else dv.data_ptr(), is_factor)
    weights = (mean.data_ptr(), None if std is None else std.data_ptr() or dy.data_ptr())
    head, outputs = (plan.address, batch, x.dtype is torch.bfloat16), (dmean.data_ptr(), dstd.data_ptr() or None)
    to_input = dx.data_ptr() if for_input else None
    if LIBRARY["backward"](*head, x.data_ptr(), *grads, *weights, to_input, *outputs, torch.get_num_threads()):
        raise no_memory(f"the gradients of {batch} examples")
    return dx, dmean, dstd


def normals(seed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The noise that :func:`forward` draws for outputs of this shape."""
    noise = torch.empty(shape)
    LIBRARY["normals"](int(seed) & 0xFFFFFFFFFFFFFFFF, noise.numel(), noise.data_ptr())
    return noise


def no_memory(what: str) -> MemoryError:
    """The error of native code that found no memory."""
    return MemoryError(f"not enough memory for {what}: give fewer examples at a time, or free memory")


def _batch(plan: NativePlan, x: Tensor) -> int:
    """The number of examples in ``x``."""
    batch, rest = divmod(x.numel(), plan.input_size)
    if rest or x.dtype not in PRECISIONS or not x.is_cpu:
        raise ValueError(
            f"native kernels take float32 or bfloat16 inputs on the CPU, {plan.input_size} numbers per example; "
            f"got {x.dtype} of shape {tuple(x.shape)} on {x.device}"
        )
    return batch


def _vector(name: str, tensor: Tensor, size: int) -> Tensor:
    """``tensor``, contiguous; raises unless it is a float32 vector of this size on the CPU."""
    if tensor.dtype is torch.float32 and tensor.is_cpu and tensor.numel() == size:
        return tensor.contiguous()
    if not tensor.is_cpu:
        raise ValueError(
            f"the input is on the CPU but {name} is on {tensor.device}: move both to one device, "
            "for example model.to(x.device)"
        )
    if tensor.numel() != size:
        wanted = f"the layer has {size} outputs" if name == "bias" else f"{size} positions are active"
        raise ValueError(f"{name} has {tensor.numel()} entries but {wanted}: give one entry for each")
    raise ValueError(f"{name} is {tensor.dtype}, but native kernels take float32: convert it with .float()")


def _gradient(tensor: Tensor, x: Tensor, size: int) -> Tensor:
    """``tensor``, contiguous; raises unless it has this size and is like ``x``."""
    if tensor.dtype is x.dtype and tensor.is_cpu and tensor.numel() == size:
        return tensor.contiguous()
    raise ValueError(
        f"a gradient of {size} outputs must be {x.dtype} on the CPU; "
        f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
    )
