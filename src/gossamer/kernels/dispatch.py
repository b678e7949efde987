"""Which kernel computes a product: the native one, whose cost follows the active entries, or the dense reference."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gossamer.kernels import library, native, reference
from gossamer.kernels.maps import LinearMap, WeightMap

__all__ = ["Kernel", "in_use", "moments", "noisy_product", "product", "use"]

Kernel = Literal["auto", "sparse", "dense", "autotune"]

# Densities up to which the native kernel was measured to win (gossamer bench cpu). For a handful of examples a linear
# layer is bound by reading its weights, and the indices with them.
MOST_DENSE = 0.35
MOST_DENSE_OF_FEW = 0.2
FEW = 8

_setting: Kernel = "auto"
_measured: dict[tuple[Any, ...], bool] = {}  # what autotune found: whether the native kernel is faster
_said = False


class _Setting(contextlib.AbstractContextManager[None]):
    def __init__(self, before: Kernel) -> None:
        self.before = before

    def __exit__(self, *_: object) -> None:
        _set(self.before)


def _set(kernel: Kernel) -> None:
    global _setting
    _setting = kernel


def use(kernel: Kernel) -> contextlib.AbstractContextManager[None]:
    """Choose the kernel of all sparse weights from here on, or within a ``with`` block.

    Args:
        kernel: ``"auto"`` chooses by device, density, shape and batch, ``"sparse"`` takes the native kernel wherever it
            can compute the product, ``"dense"`` never, ``"autotune"`` times both once for each layer and batch.

    Example:
        >>> with use("dense"):
        ...     in_use()
        'dense'
        >>> in_use()
        'auto'
    """
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel must be one of {', '.join(map(repr, get_args(Kernel)))}; got {kernel!r}")
    before = _setting
    _set(kernel)
    return _Setting(before)


def in_use() -> Kernel:
    """The setting that :func:`use` made."""
    return _setting


def product(
    x: Tensor,
    mean: Tensor,
    bias: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
    probe: Tensor | None = None,
) -> Tensor:
    """``W x + b`` by the kernel in use; see :func:`gossamer.kernels.reference.product`."""
    arguments = (x, mean, bias, position, shape, weight_map, probe)
    y: Tensor = _kernel(x, mean, None, position, shape, weight_map).product(*arguments)
    return y


def moments(
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    bias: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
    probe: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance by the kernel in use; see :func:`gossamer.kernels.reference.moments`."""
    arguments = (x, mean, std, bias, position, shape, weight_map, probe)
    m, v = _kernel(x, mean, std, position, shape, weight_map).moments(*arguments)
    return m, v


def noisy_product(
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    bias: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
    probe: Tensor | None = None,
    floor: float | None = None,
) -> Tensor:
    """One draw by the kernel in use; see :func:`gossamer.kernels.reference.noisy_product`."""
    arguments = (x, mean, std, bias, position, shape, weight_map, probe, floor)
    y: Tensor = _kernel(x, mean, std, position, shape, weight_map).noisy_product(*arguments)
    return y


def _kernel(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
) -> Any:
    if _setting == "dense" or position is None or x.device.type != "cpu":
        return reference
    if not library.LIBRARY:
        _say_once()
        return reference
    if not native.takes(x, mean, position, shape, weight_map):
        return reference
    if _setting == "sparse":
        return native
    if _setting == "autotune" and not torch.compiler.is_compiling():
        return native if _is_faster(x, mean, std, position, shape, weight_map) else reference
    few = isinstance(weight_map, LinearMap) and x.numel() < FEW * shape[1]
    return native if len(position) <= (MOST_DENSE_OF_FEW if few else MOST_DENSE) * math.prod(shape) else reference


def _say_once() -> None:
    global _said
    if not _said and not torch.compiler.is_compiling():
        _said = True
        logging.getLogger("gossamer").warning(
            "gossamer's native kernels are not built: sparse layers run as dense ones "
            "(pip install gossamer where there is a C++ compiler, or python setup.py build_ext --inplace)"
        )


def _is_faster(
    x: Tensor, mean: Tensor, std: Tensor | None, position: Tensor, shape: tuple[int, ...], weight_map: WeightMap
) -> bool:
    """Times both kernels on this input, the first time that one of its kind comes by."""
    share = math.floor(20 * len(position) / math.prod(shape))  # remembered for each twentieth of density
    key = (tuple(x.shape), shape, weight_map, share, std is None, torch.is_grad_enabled(), torch.get_num_threads())
    if key not in _measured:
        _measured[key] = _seconds(native, x, mean, std, position, shape, weight_map) < _seconds(
            reference, x, mean, std, position, shape, weight_map
        )
    return _measured[key]


def _seconds(
    kernel: Any,
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    position: Tensor,
    shape: tuple[int, ...],
    weight_map: WeightMap,
) -> float:
    learns = torch.is_grad_enabled()
    leaves = [None if t is None else t.detach().requires_grad_(learns) for t in (x, mean, std)]

    def once() -> None:
        if std is None:
            outputs = [kernel.product(*leaves[:2], None, position, shape, weight_map)]
        else:
            outputs = list(kernel.moments(*leaves, None, position, shape, weight_map))
        if learns:
            torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf is not None], [y.detach() for y in outputs])

    return min(_timed(once) for _ in range(3))


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
