"""The native kernels as functions of tensors: a shared library loaded by ctypes, and the plans it works by.

A plan holds the active positions in the two orders that the two passes need, and is derived from them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.position_cache import Derived

__all__ = [
    "LIBRARY",
    "LIBRARY_NAME",
    "backward",
    "forward",
    "input_gradients",
    "normals",
    "outputs",
    "plan_bytes",
]

LEVELS = ("v4", "v3", "generic")  # the newest processors first
VERSION = 2  # of the functions' signatures: a library left over from another version is not called
MOST_PLANS = 4  # kept for one tensor of positions: a layer may see images of several sizes

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


class _Plan:
    """The address of a plan, which is freed with this object."""

    def __init__(self, position: Tensor, numbers: tuple[int, ...], batch: int) -> None:
        self.address: int | None = None
        self.free = LIBRARY["free"]
        listed = (ctypes.c_int32 * len(numbers))(*numbers)
        wide = position.dtype == torch.int64
        self.address = LIBRARY["plan"](listed, batch, len(position), position.data_ptr(), wide)
        if not self.address:
            raise ValueError(
                "the positions are not sorted or lie outside the weight, "
                "or the layer is too large for the native kernels"
            )

    def __del__(self) -> None:
        self.free(self.address)


_plans = Derived[_Plan](most=MOST_PLANS)


def _plan(position: Tensor, numbers: tuple[int, ...], batch: int) -> _Plan:
    key = (numbers, _batch_kind(numbers, batch))
    return _plans.get(position, key, lambda: _Plan(position, numbers, batch))


def _batch_kind(numbers: tuple[int, ...], batch: int) -> int:
    """What a plan depends on besides the shapes: how many examples lie side by side."""
    if max(numbers[3:9]) == 1:  # one pixel in, one pixel out
        return 8 if batch <= 8 else 16 if batch <= 16 else 32
    return 8 if batch >= 8 else 1


def plan_bytes(position: Tensor) -> int:
    """Memory of the plans that are kept for these positions."""
    return sum(LIBRARY["bytes"](plan.address) for plan in _plans.of(position))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def forward(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    position: Tensor,
    seed: Tensor | None,
    numbers: Sequence[int],
    floor: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Output and what the backward pass needs of it; with ``std`` but no ``seed``, mean and variance.

    ``numbers`` are those of :func:`gossamer.kernels.native.geometry`.
    """
    y, r = outputs(x, std, seed, numbers, keep)
    if y.numel():
        x, mean, position = x.contiguous(), mean.contiguous(), position.contiguous()
        std = None if std is None else std.contiguous()
        bias = None if bias is None else bias.contiguous()
        key = 0 if seed is None else int(seed) & 0xFFFFFFFFFFFFFFFF
        plan = _plan(position, tuple(numbers), len(x))
        LIBRARY["forward"](
            plan.address,
            len(x),
            x.dtype == torch.bfloat16,
            x.data_ptr(),
            mean.data_ptr(),
            None if std is None else std.data_ptr() or y.data_ptr(),  # that of an empty tensor is zero: no std
            _address(bias),
            key,
            floor,
            seed is not None,
            y.data_ptr(),
            r.data_ptr() if r.numel() else None,
            torch.get_num_threads(),
        )
    return y, r


def outputs(
    x: Tensor, std: Tensor | None, seed: Tensor | None, numbers: Sequence[int], keep: bool
) -> tuple[Tensor, Tensor]:
    """Memory for what :func:`forward` returns."""
    y = x.new_empty((x.shape[0], numbers[2], *numbers[6:9]))
    return y, torch.empty_like(y) if std is not None and (keep or seed is None) else x.new_empty(0)


def backward(
    x: Tensor,
    dy: Tensor,
    dv: Tensor | None,
    is_factor: bool,
    mean: Tensor,
    std: Tensor | None,
    position: Tensor,
    numbers: Sequence[int],
    for_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input (empty unless asked for), means and stds (empty without a std).

    ``dv`` is the variance's gradient, or, as a factor of ``dy``, what :func:`forward` kept.
    """
    dx, dmean, dstd = input_gradients(x, mean, std, for_input)
    if dy.numel() and x.numel():
        x, dy, mean, position = x.contiguous(), dy.contiguous(), mean.contiguous(), position.contiguous()
        std, dv = (None if t is None else t.contiguous() for t in (std, dv))
        plan = _plan(position, tuple(numbers), len(x))
        LIBRARY["backward"](
            plan.address,
            len(x),
            x.dtype == torch.bfloat16,
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
        return dx, dmean, dstd
    return dx.zero_(), dmean.zero_(), dstd.zero_()


def input_gradients(x: Tensor, mean: Tensor, std: Tensor | None, for_input: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what :func:`backward` returns."""
    dx = x.new_empty(x.shape if for_input else 0)
    return dx, mean.new_empty(mean.shape), mean.new_empty(0 if std is None else mean.shape)


def normals(seed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The noise that :func:`forward` draws for outputs of this shape."""
    noise = torch.empty(shape)
    LIBRARY["normals"](int(seed) & 0xFFFFFFFFFFFFFFFF, noise.numel(), noise.data_ptr())
    return noise
