"""The native kernels as functions of tensors: a shared library loaded by ctypes, and the plans it works by.

A plan holds the active positions in the two orders that the two passes need. It is a cache: it belongs to a tensor of
positions as it is now, is made when first needed, made again when the positions have changed, and freed with them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["LIBRARY", "LIBRARY_NAME", "backward", "forward", "normals", "plan_bytes"]

LEVELS = ("v4", "v3", "generic")  # the newest processors first
VERSION = 1  # of the functions' signatures: a library left over from another version is not called
MOST_PLANS = 4  # kept for one tensor of positions: a layer may see images of several sizes

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "version": (_INT, []),
    "runs_here": (_INT, []),
    "plan": (_POINTER, [_POINTER, _LONG, _LONG, _POINTER, _INT]),
    "free": (None, [_POINTER]),
    "bytes": (_LONG, [_POINTER]),
    "forward": (None, [_POINTER, _LONG, *[_POINTER] * 4, ctypes.c_uint64, _FLOAT, _INT, _POINTER, _POINTER, _INT]),
    "backward": (None, [_POINTER, _LONG, *[_POINTER] * 3, _INT, *[_POINTER] * 5, _INT]),
    "normals": (None, [ctypes.c_uint64, _LONG, _POINTER]),
}


class _Library(NamedTuple):
    name: str
    functions: dict[str, Callable[..., Any]]


def _load() -> _Library | None:
    """The library for the newest kind of processor that this one is."""
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


class _Plans:
    """The plans of one tensor of positions."""

    def __init__(self, position: Tensor) -> None:
        address = position.data_ptr()
        self.position = weakref.ref(position, lambda _: _forget(address, self))
        self.version = position._version
        self.size = len(position)
        self.plans: dict[tuple[Any, ...], int] = {}
        self.free_one = LIBRARY["free"]

    def serves(self, position: Tensor) -> bool:
        """Whether this is the same memory, not written to since: its owner lives, so it cannot be somebody else's."""
        owner = self.position()
        alive = owner is not None and owner.data_ptr() == position.data_ptr()
        return alive and self.version == position._version and self.size == len(position)

    def get(self, position: Tensor, numbers: tuple[int, ...], batch: int) -> int:
        key = (numbers, _batch_kind(numbers, batch))
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) == MOST_PLANS:
                self.free_one(self.plans.pop(next(iter(self.plans))))
            plan = self.plans[key] = _make(position, numbers, batch)
        return plan

    def free(self) -> None:
        for plan in self.plans.values():
            self.free_one(plan)
        self.plans.clear()


_plans: dict[int, _Plans] = {}  # by the address of the positions


def _forget(address: int, plans: _Plans) -> None:
    if _plans.get(address) is plans:
        del _plans[address]
    plans.free()


def _batch_kind(numbers: tuple[int, ...], batch: int) -> int:
    """What a plan depends on besides the shapes: how many examples lie side by side."""
    if max(numbers[3:9]) == 1:  # one pixel in, one pixel out
        return 8 if batch <= 8 else 16 if batch <= 16 else 32
    return 8 if batch >= 8 else 1


def _make(position: Tensor, numbers: tuple[int, ...], batch: int) -> int:
    listed = (ctypes.c_int32 * len(numbers))(*numbers)
    wide = position.dtype == torch.int64
    plan: int | None = LIBRARY["plan"](listed, batch, len(position), position.data_ptr(), wide)
    if not plan:
        raise ValueError("the positions lie outside the weight, or the layer is too large for the native kernels")
    return plan


class _Borrowed:
    """A plan for the time of a call."""

    def __init__(self, position: Tensor, numbers: tuple[int, ...], batch: int) -> None:
        self.own = position.is_inference()  # such a tensor does not say when it is written to
        if self.own:
            self.plan = _make(position, numbers, batch)
            return
        plans = _plans.get(position.data_ptr())
        if plans is None or not plans.serves(position):
            if plans is not None:
                plans.free()
            plans = _plans[position.data_ptr()] = _Plans(position)
        self.plan = plans.get(position, numbers, batch)

    def release(self) -> None:
        if self.own:
            LIBRARY["free"](self.plan)


def plan_bytes(position: Tensor) -> int:
    """Memory of the plans that are kept for these positions."""
    plans = _plans.get(position.data_ptr())
    return 0 if plans is None else sum(LIBRARY["bytes"](plan) for plan in plans.plans.values())


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def forward(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    position: Tensor,
    seed: Tensor | None,
    numbers: tuple[int, ...],
    floor: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Output and what the backward pass needs of it; with ``std`` but no ``seed``, mean and variance.

    ``numbers`` are groups, inputs, outputs, then in, out, kernel, stride, padding and dilation along three dimensions.
    """
    batch, n_outputs = x.shape[0], numbers[2]
    y = x.new_empty((batch, n_outputs, *numbers[6:9]))
    saves = std is not None and (keep or seed is None)
    r = torch.empty_like(y) if saves else x.new_empty(0)
    if y.numel():
        x, mean, position = x.contiguous(), mean.contiguous(), position.contiguous()
        std = None if std is None else std.contiguous()
        bias = None if bias is None else bias.contiguous()
        key = 0 if seed is None else int(seed) & 0xFFFFFFFFFFFFFFFF
        borrowed = _Borrowed(position, numbers, batch)
        LIBRARY["forward"](
            borrowed.plan,
            batch,
            x.data_ptr(),
            mean.data_ptr(),
            None if std is None else std.data_ptr() or y.data_ptr(),  # that of an empty tensor is zero: no std
            _address(bias),
            key,
            floor,
            seed is not None,
            y.data_ptr(),
            r.data_ptr() if saves else None,
            torch.get_num_threads(),
        )
        borrowed.release()
    return y, r


def backward(
    x: Tensor,
    dy: Tensor,
    dv: Tensor | None,
    is_factor: bool,
    mean: Tensor,
    std: Tensor | None,
    position: Tensor,
    numbers: tuple[int, ...],
    for_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input (empty unless asked for), means and stds (empty without a std).

    ``dv`` is the variance's gradient, or, as a factor of ``dy``, what :func:`forward` kept.
    """
    batch = x.shape[0]
    dx = x.new_empty(x.shape if for_input else 0)
    dmean, dstd = torch.empty_like(mean), mean.new_empty(0 if std is None else mean.shape)
    if dy.numel() and x.numel():
        x, dy, mean, position = x.contiguous(), dy.contiguous(), mean.contiguous(), position.contiguous()
        std, dv = (None if t is None else t.contiguous() for t in (std, dv))
        borrowed = _Borrowed(position, numbers, batch)
        LIBRARY["backward"](
            borrowed.plan,
            batch,
            x.data_ptr(),
            dy.data_ptr(),
            _address(dv),
            is_factor,
            mean.data_ptr(),
            None if std is None else std.data_ptr() or dy.data_ptr(),
            dx.data_ptr() if for_input else None,
            dmean.data_ptr(),
            _address(dstd) if std is not None else None,
            torch.get_num_threads(),
        )
        borrowed.release()
        return dx, dmean, dstd
    return dx.zero_(), dmean.zero_(), dstd.zero_()


def normals(seed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The noise that :func:`forward` draws for outputs of this shape."""
    noise = torch.empty(shape)
    LIBRARY["normals"](int(seed) & 0xFFFFFFFFFFFFFFFF, noise.numel(), noise.data_ptr())
    return noise
