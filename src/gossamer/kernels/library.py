"""The shared library of the native kernels, loaded by ctypes, and the plans that it works from.

A plan holds the active positions of a layer in two orders: one for the forward pass, one for the backward pass. Native
code trusts its arguments: ``native`` and ``native_members`` check what they give it, and all calls are theirs.
"""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEVELS = ("v4", "v3", "generic")  # the newest processors first
VERSION = 10  # of the signatures below; a library left over from another version is ignored
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
    "draws": (_INT, [_POINTER, _LONG, _LONG, _INT, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _INT]),
    "sample": (None, [_LONG, _LONG, *[_POINTER] * 4, _INT]),
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
    "perceptrons": (_INT, [_INT, _POINTER, _POINTER, _LONG, _POINTER, _LONG, _POINTER, _INT]),
    "shrunk_curvature": (None, [_LONG, *[_POINTER] * 4]),
    "std_of_curvature": (None, [_LONG, *[_POINTER] * 3, _FLOAT, _FLOAT, _POINTER]),
    "move_means": (None, [_LONG, *[_POINTER] * 4, _FLOAT, _FLOAT]),
    "top_mask": (_INT, [_POINTER, _INT, _LONG, _LONG, _POINTER]),
    "look_through": (
        _LONG,
        [_POINTER, _LONG, _LONG, _POINTER, _INT, _LONG, _POINTER, _LONG, _LONG, _FLOAT, _POINTER, _POINTER],
    ),
    "merge": (None, [_POINTER, _LONG, _POINTER, _LONG, _POINTER, _POINTER]),
    "locate": (None, [_POINTER, _LONG, _POINTER, _LONG, _POINTER, _POINTER]),
    "places": (_LONG, [_POINTER, _LONG, _POINTER]),
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


def normals(seed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The noise that :func:`forward` draws for outputs of this shape."""
    noise = torch.empty(shape)
    LIBRARY["normals"](int(seed) & 0xFFFFFFFFFFFFFFFF, noise.numel(), noise.data_ptr())
    return noise


def no_memory(what: str) -> MemoryError:
    """The error of native code that found no memory."""
    return MemoryError(f"not enough memory for {what}: give fewer examples at a time, or free memory")
