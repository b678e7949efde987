"""The native kernels as functions of tensors: a shared library loaded by ctypes, and the plans it works from.

A plan holds the active positions in the two orders that the two passes read them in. Native code trusts its arguments,
so every length, precision, device and number is checked in this file, where all calls end: eager ones and operators.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

__all__ = [
    "LIBRARY",
    "LIBRARY_NAME",
    "NativePlan",
    "PositionCache",
    "backward",
    "forward",
    "normals",
    "plan",
    "plan_bytes",
]

LEVELS = ("v4", "v3", "generic")  # the newest processors first
VERSION = 2  # of the functions' signatures: a library left over from another version is not called
MOST_PLANS = 4  # kept for one tensor of positions: a layer may see images of several sizes
PRECISIONS = (torch.float32, torch.bfloat16)  # of activations; sums and weights are float32
_LARGEST = 2**31 - 1  # native code indexes with 32-bit numbers

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "version": (_INT, []),
    "runs_here": (_INT, []),
    "plan": (_POINTER, [_POINTER, _LONG, _LONG, _POINTER, _INT]),
    "free": (None, [_POINTER]),
    "bytes": (_LONG, [_POINTER]),
    "forward": (
        None,
        [_POINTER, _LONG, _INT, *[_POINTER] * 4, ctypes.c_uint64, _FLOAT, _INT, _POINTER, _POINTER, _INT],
    ),
    "backward": (None, [_POINTER, _LONG, _INT, *[_POINTER] * 3, _INT, *[_POINTER] * 5, _INT]),
    "normals": (None, [ctypes.c_uint64, _LONG, _POINTER]),
}


class _Library(NamedTuple):
    name: str
    functions: dict[str, Callable[..., Any]]


def _load() -> _Library | None:
    """The library built for the newest level that this processor supports."""
    for level in LEVELS:
        for path in sorted(Path(__file__).parent.glob(f"_cpu_{level}.*")):
            if path.suffix not in (".so", ".pyd", ".dylib"):
                continue
            try:
                loaded = ctypes.CDLL(str(path))
                functions = {name: getattr(loaded, f"gossamer_{name}") for name in _SIGNATURES}
            except (OSError, AttributeError):  # built for another system, or by another version
                continue
            for name, (result, arguments) in _SIGNATURES.items():
                functions[name].restype, functions[name].argtypes = result, arguments
            if functions["version"]() == VERSION and functions["runs_here"]():
                return _Library(level, functions)
    return None


_loaded = _load()
LIBRARY_NAME = None if _loaded is None else _loaded.name
LIBRARY: dict[str, Callable[..., Any]] = {} if _loaded is None else _loaded.functions


# ---------------------------------------------------------------------- plans

Value = TypeVar("Value")
_memcmp = (ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)).memcmp
_memcmp.restype, _memcmp.argtypes = _INT, [_POINTER, _POINTER, ctypes.c_size_t]


class PositionCache(Generic[Value]):
    """Values derived from positions: up to ``most`` for each tensor (the oldest goes first), dropped with the tensor.

    A hit compares the positions with a copy. That takes a hundredth of the time of a product, and unlike a tensor's
    version counter it notices every write, also those of ``position.data.copy_()`` and ``torch.distributed``.

    Example:
        >>> counts, position = PositionCache[int](most=2), torch.tensor([1, 4, 5])
        >>> counts.get(position, "even", lambda position: int((position % 2 == 0).sum()))
        1
        >>> counts.get(position, "even", lambda position: 1 / 0)
        1
        >>> position.data[0] = 2
        >>> counts.get(position, "even", lambda position: int((position % 2 == 0).sum()))
        2
        >>> len(counts)
        1
        >>> del position
        >>> len(counts)
        0
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[int, _Entry[Value]] = {}  # by the address of the positions

    def get(self, position: Tensor, key: Hashable, make: Callable[[Tensor], Value]) -> Value:
        """The value for this key and the contiguous ``position`` as it is now; ``make`` gets a copy that stays."""
        address = position.data_ptr()
        entry = self._entries.get(address)
        if entry is None or not entry.holds(position, address):
            entry = self._entries[address] = _Entry(position, self._entries)
        value = entry.values.get(key)
        if value is None:
            value = make(entry.position)
            if len(entry.values) >= self.most:
                del entry.values[next(iter(entry.values))]
            entry.values[key] = value
        return value

    def of(self, position: Tensor) -> list[Value]:
        """All values that are kept for these positions."""
        address = position.data_ptr()
        entry = self._entries.get(address)
        return list(entry.values.values()) if entry is not None and entry.holds(position, address) else []

    def __len__(self) -> int:
        """Number of tensors for which something is kept."""
        return len(self._entries)


class _Entry(Generic[Value]):
    def __init__(self, position: Tensor, entries: dict[int, _Entry[Value]]) -> None:
        self.position = position.clone()
        self.copy = self.position.data_ptr()
        self.values: dict[Hashable, Value] = {}
        own, address = weakref.ref(self), position.data_ptr()  # not self: a cycle would wait for the garbage collector

        def forget(_: object) -> None:
            if entries.get(address) is own():
                entries.pop(address, None)

        self.owner = weakref.ref(position, forget)

    def holds(self, position: Tensor, address: int) -> bool:
        """Whether the copy has the same contents."""
        n_bytes = position.nbytes
        same = position.dtype is self.position.dtype and n_bytes == self.position.nbytes
        return same and _memcmp(address, self.copy, n_bytes) == 0


class NativePlan:
    """Geometry and active positions of a layer as native code reads them; the memory is freed with this object.

    ``numbers`` are those of :func:`gossamer.kernels.native.geometry`.
    """

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
        listed = (ctypes.c_int32 * len(numbers))(*numbers)
        wide = position.dtype == torch.int64
        self.address = LIBRARY["plan"](listed, batch, self.n_active, position.data_ptr(), wide)
        if not self.address:
            raise ValueError(
                "the positions are not sorted or lie outside the weight, or the layer is too large for the native "
                "kernels (gossamer.kernels.use('dense') computes it without them)"
            )

    def __del__(self) -> None:
        self.free(self.address)


def _check_geometry(numbers: tuple[int, ...]) -> None:
    """Raise unless these numbers describe a convolution that native code can index."""
    if len(numbers) != 23 or not all(-_LARGEST <= n <= _LARGEST for n in numbers):
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
    if max(bordered * inputs, math.prod(stride) * inputs, math.prod(kernel) * inputs * rows // _LARGEST) > _LARGEST:
        raise ValueError("the layer is too large for the native kernels: gossamer.kernels.use('dense') computes it")


_plans = PositionCache[NativePlan](most=MOST_PLANS)


def plan(position: Tensor, numbers: tuple[int, ...], batch: int) -> NativePlan:
    """The plan for these positions as they are now, and for so many examples."""
    if not position.is_cpu:
        raise ValueError(
            f"the input is on the CPU but the weight is on {position.device}: move both to one device, "
            "for example model.to(x.device)"
        )
    key = (numbers, _side_by_side(numbers, batch))
    return _plans.get(position.contiguous(), key, lambda position: NativePlan(position, numbers, batch))


def _side_by_side(numbers: tuple[int, ...], batch: int) -> int:
    """How many examples a plan lays side by side: all that it depends on besides the geometry."""
    if max(numbers[3:9]) == 1:  # one pixel in, one pixel out
        return 8 if batch <= 8 else 16 if batch <= 16 else 32
    return 8 if batch >= 8 else 1


def plan_bytes(position: Tensor) -> int:
    """Memory of the plans that are kept for these positions."""
    return sum(LIBRARY["bytes"](plan.address) for plan in _plans.of(position))


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
    """The output in this ``shape`` and what the backward pass needs of it.

    With ``std`` but no ``seed``, mean and variance.
    """
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
    LIBRARY["forward"](
        plan.address,
        batch,
        x.dtype is torch.bfloat16,
        x.data_ptr(),
        mean.data_ptr(),
        None
        if std is None
        else std.data_ptr() or y.data_ptr(),  # null means no std, and is the address of an empty one
        None if bias is None else bias.data_ptr(),
        0 if seed is None else int(seed) & 0xFFFFFFFFFFFFFFFF,
        floor,
        seed is not None,
        y.data_ptr(),
        r.data_ptr() or None,
        torch.get_num_threads(),
    )
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

    ``dv`` is the variance's gradient, or, as a factor of ``dy``, what :func:`forward` kept.
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
    LIBRARY["backward"](
        plan.address,
        batch,
        x.dtype is torch.bfloat16,
        x.data_ptr(),
        dy.data_ptr(),
        None if std is None or dv is None else dv.data_ptr(),
        is_factor,
        mean.data_ptr(),
        None if std is None else std.data_ptr() or dy.data_ptr(),
        dx.data_ptr() if for_input else None,
        dmean.data_ptr(),
        dstd.data_ptr() or None,
        torch.get_num_threads(),
    )
    return dx, dmean, dstd


def normals(seed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The noise that :func:`forward` draws for outputs of this shape."""
    noise = torch.empty(shape)
    LIBRARY["normals"](int(seed) & 0xFFFFFFFFFFFFFFFF, noise.numel(), noise.data_ptr())
    return noise


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
    """``tensor`` without gaps, if it is a float32 vector of this size on the CPU."""
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
    if tensor.dtype is x.dtype and tensor.is_cpu and tensor.numel() == size:
        return tensor.contiguous()
    raise ValueError(
        f"a gradient of {size} outputs must be {x.dtype} on the CPU; "
        f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}"
    )
