"""``use("autotune")``: times the sparse kernel and the reference once for each layer and batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import reference
from gossamer.kernels.maps import Placement

_measured: dict[tuple[Any, ...], bool] = {}  # whether the sparse kernel is faster


def wins(sparse: Any, x: Tensor, mean: Tensor, std: Tensor | None, where: Placement) -> bool:
    """Whether ``sparse`` is faster than the reference, measured on the first input of each kind."""
    position, shape, weight_map = where
    assert position is not None
    share = math.floor(20 * len(position) / math.prod(shape))  # one measurement per 5 % of density
    kind = (tuple(x.shape), x.dtype, shape, weight_map, share, std is None)
    key = (*kind, sparse, torch.is_grad_enabled(), torch.get_num_threads())
    if key not in _measured:
        _measured[key] = _seconds(sparse, x, mean, std, where) < _seconds(reference, x, mean, std, where)
    return _measured[key]


def _seconds(kernel: Any, x: Tensor, mean: Tensor, std: Tensor | None, where: Placement) -> float:
    learns = torch.is_grad_enabled()
    leaves = [t if t is None else t.detach().requires_grad_(learns and t.is_floating_point()) for t in (x, mean, std)]

    def once() -> None:
        if std is None:
            outputs = [kernel.product(*leaves[:2], None, *where)]
        else:
            outputs = list(kernel.moments(*leaves, None, *where))
        if learns:
            inputs = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
            torch.autograd.grad(outputs, inputs, [y.detach() for y in outputs])

    return min(_timed(once) for _ in range(3))


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
