"""Which kernel computes a product: a sparse one, whose cost follows the active entries, or the dense reference.

The sparse one is the native kernel. Where that is not built, torch's own sparse matrices serve linear layers.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from gossamer.kernels import csr, library, native, reference
from gossamer.kernels.maps import LinearMap, Placement, WeightMap

__all__ = ["Kernel", "in_use", "moments", "noisy_product", "product", "use"]

Kernel = Literal["auto", "sparse", "dense", "autotune"]

# Densities up to which a kernel was measured to win (make bench). For a handful of examples a linear layer is
# bound by reading its weights, and the indices with them.
MOST_DENSE = 0.35
MOST_DENSE_OF_FEW = 0.2
FEW = 8
# The same for torch's sparse matrices against two dense products, in training, batches of 1 to 512: at 20 % they gain
# or lose a tenth, and the calls around them eat the gain of a layer smaller than this.
MOST_DENSE_CSR = 0.15
LEAST_CSR = 2**15

_setting: Kernel = "auto"
_measured: dict[tuple[Any, ...], bool] = {}  # what autotune found: whether the sparse kernel is faster
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
        kernel: ``"auto"`` chooses by device, density, shape and batch, ``"sparse"`` takes the sparse kernel wherever it
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


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b`` by the kernel in use; see :func:`gossamer.kernels.reference.product`."""
    return _kernel(x, mean, None, where).product(x, mean, bias, *where)


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance by the kernel in use; see :func:`gossamer.kernels.reference.moments`."""
    return _kernel(x, mean, std, where).moments(x, mean, std, bias, *where)


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw by the kernel in use; see :func:`gossamer.kernels.reference.noisy_product`."""
    return _kernel(x, mean, std, where).noisy_product(x, mean, std, bias, *where, floor=floor)


class _Functions(Protocol):
    """What a kernel is: a module with these three functions."""

    @property
    def product(self) -> Callable[..., Tensor]: ...
    @property
    def moments(self) -> Callable[..., tuple[Tensor, Tensor]]: ...
    @property
    def noisy_product(self) -> Callable[..., Tensor]: ...


def _kernel(x: Tensor, mean: Tensor, std: Tensor | None, where: Placement) -> _Functions:
    """The kernel that is asked; a sparse one hands what it cannot compute to the reference."""
    position, shape, weight_map = where
    if _setting == "dense" or position is None or x.device.type != "cpu":
        return reference
    if not library.LIBRARY:
        _say_once()
    sparse = native if library.LIBRARY else csr
    if _setting == "sparse":
        return sparse
    if _setting == "autotune" and not torch.compiler.is_compiling():
        return sparse if sparse.takes(x, mean, *where) and _is_faster(sparse, x, mean, std, where) else reference
    return sparse if len(position) <= _most_dense(x, shape, weight_map, sparse is csr) * math.prod(shape) else reference


def _most_dense(x: Tensor, shape: tuple[int, ...], weight_map: WeightMap, by_csr: bool) -> float:
    if by_csr:
        return MOST_DENSE_CSR if math.prod(shape) >= LEAST_CSR else 0.0
    few = isinstance(weight_map, LinearMap) and x.numel() < FEW * shape[1]
    return MOST_DENSE_OF_FEW if few else MOST_DENSE


def _say_once() -> None:
    global _said
    if not _said and not torch.compiler.is_compiling():
        _said = True
        logging.getLogger("gossamer").warning(
            "gossamer's native kernels are not built: sparse linear layers run on torch's sparse matrices, all others "
            "as dense ones (pip install gossamer where there is a C++ compiler, or python setup.py build_ext --inplace)"
        )


def _is_faster(sparse: _Functions, x: Tensor, mean: Tensor, std: Tensor | None, where: Placement) -> bool:
    """Times both kernels on this input, the first time that one of its kind comes by."""
    position, shape, weight_map = where
    assert position is not None
    share = math.floor(20 * len(position) / math.prod(shape))  # remembered for each twentieth of density
    kind = (tuple(x.shape), x.dtype, shape, weight_map, share, std is None)
    key = (*kind, sparse is csr, torch.is_grad_enabled(), torch.get_num_threads())
    if key not in _measured:
        _measured[key] = _seconds(sparse, x, mean, std, where) < _seconds(reference, x, mean, std, where)
    return _measured[key]


def _seconds(kernel: _Functions, x: Tensor, mean: Tensor, std: Tensor | None, where: Placement) -> float:
    learns = torch.is_grad_enabled()
    leaves = [None if t is None else t.detach().requires_grad_(learns) for t in (x, mean, std)]

    def once() -> None:
        if std is None:
            outputs = [kernel.product(*leaves[:2], None, *where)]
        else:
            outputs = list(kernel.moments(*leaves, None, *where))
        if learns:
            torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf is not None], [y.detach() for y in outputs])

    return min(_timed(once) for _ in range(3))


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
