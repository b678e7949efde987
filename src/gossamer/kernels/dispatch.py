"""Chooses the kernel of a product: a sparse one, whose cost follows the active entries, or the dense reference.

The sparse kernel of embeddings is a lookup, that of linear layers and convolutions native code. Where that is not
built, the reference serves.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from gossamer.kernels import library, lookup, native, reference
from gossamer.kernels.maps import EmbeddingMap, LinearMap, Placement

Kernel = Literal["auto", "sparse", "dense", "autotune"]

# Densities up to which the sparse kernel was measured to win (make bench). With only a few examples a linear layer
# spends its time reading weights, and the sparse kernel has to read indices as well.
MOST_DENSE = 0.35
MOST_DENSE_OF_FEW = 0.2
FEW = 8
LEAST_LOOKUP = 2**18  # entries of a table; for a smaller one, forming it is faster than searching for its rows

MOST_ABOUT_TO = 64

_setting: Kernel = "auto"
_warned = False
_asked: list[_Setting] = []  # what is in force, the newest last
_one_at_a_time = threading.Lock()


class _Setting(contextlib.AbstractContextManager[None]):
    """One call of :func:`use`; as a block it ends, and with it all that was asked for inside of it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.is_block = kernel, False
        with _one_at_a_time:
            # A call outside of all blocks replaces those before it; some may be about to become blocks of threads.
            kept = _asked if any(earlier.is_block for earlier in _asked) else _asked[-MOST_ABOUT_TO:]
            _put_in_force([*kept, self])

    def __enter__(self) -> None:
        self.is_block = True
        if self not in _asked:  # another thread has asked for something between the call and this line
            with _one_at_a_time:
                _put_in_force([*_asked, self])

    def __exit__(self, *_: object) -> None:
        with _one_at_a_time:
            at = _asked.index(self)
            _put_in_force(_asked[:at] + [later for later in _asked[at:] if later.is_block and later is not self])


def _put_in_force(settings: list[_Setting]) -> None:
    global _setting
    _asked[:] = settings
    _setting = settings[-1].kernel if settings else "auto"


def use(kernel: Kernel) -> contextlib.AbstractContextManager[None]:
    """Choose the kernel of all sparse weights from here on, or within a ``with`` block.

    It holds for all threads. Where their blocks overlap, the one that began last counts until it ends.

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
    return _Setting(kernel)


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
    """A kernel: a module with these functions."""

    @property
    def product(self) -> Callable[..., Tensor]: ...
    @property
    def moments(self) -> Callable[..., tuple[Tensor, Tensor]]: ...
    @property
    def noisy_product(self) -> Callable[..., Tensor]: ...


def _kernel(x: Tensor, mean: Tensor, std: Tensor | None, where: Placement) -> _Functions:
    """The kernel to call; a sparse one passes what it cannot compute on to the reference."""
    position, shape, weight_map = where
    embeds = isinstance(weight_map, EmbeddingMap)
    if _setting == "dense" or position is None or not (x.is_cpu or embeds):
        return reference
    exports = torch.compiler.is_exporting()
    if exports and torch.onnx.is_in_onnx_export():  # ONNX has no operators of ours
        return reference
    if not (library.LIBRARY or embeds):
        _warn_once()
        return reference
    sparse = lookup if embeds else native
    if _setting == "sparse":
        return sparse
    if _setting == "autotune" and not torch.compiler.is_compiling():
        from gossamer.kernels import autotune

        return sparse if sparse.takes(x, mean, *where) and autotune.wins(sparse, x, mean, std, where) else reference
    size = math.prod(shape)
    density = len(position) / size if size else 1.0
    if embeds:
        return sparse if density <= MOST_DENSE and size >= LEAST_LOOKUP else reference
    if density > MOST_DENSE_OF_FEW and isinstance(weight_map, LinearMap) and not exports:
        # Not while exporting: a program for batches of any size must not be chosen by the size of one.
        return sparse if density <= MOST_DENSE and x.numel() >= FEW * shape[1] else reference
    return sparse if density <= MOST_DENSE else reference


def _warn_once() -> None:
    global _warned
    if not _warned and not torch.compiler.is_compiling():
        _warned = True
        logging.getLogger("gossamer").warning(
            "gossamer's native kernels are not built: sparse layers take the time of dense ones (to build them, "
            "pip install gossamer where there is a C++ compiler, or python setup.py build_ext --inplace)"
        )
