"""Calls of functions and methods, as people write them in ``forward``, by what they do to channels."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

__all__ = ["averages_pixels", "drops_out", "flattens", "n_pixel_dims", "only_counts_rows", "pools"]

MAX_POOLS: tuple[Any, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVERAGE_POOLS: tuple[Any, ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
ADAPTIVE_POOLS: tuple[Any, ...] = (
    F.adaptive_avg_pool1d,
    F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d,
    F.adaptive_max_pool1d,
    F.adaptive_max_pool2d,
    F.adaptive_max_pool3d,
)
DROPOUTS: tuple[Any, ...] = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


def n_pixel_dims(model: nn.Module) -> int | None:
    """Of images inside ``model``: the dimensions of its convolutions; ``None`` where they differ, or there are none.

    >>> n_pixel_dims(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()))
    2
    """
    kinds: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
    found = {kinds[type(module)] for module in model.modules() if type(module) in kinds}
    return found.pop() if len(found) == 1 else None


def pools(node: fx.Node) -> bool:
    """Whether it pools pixels, channel by channel; averages with padding, which change constants, are left out."""
    if node.target in MAX_POOLS or node.target in ADAPTIVE_POOLS:
        return not node.kwargs.get("return_indices") and not any(item is True for item in node.args)
    return node.target in AVERAGE_POOLS and len(node.args) <= 3 and set(node.kwargs) <= {"kernel_size", "stride"}


def averages_pixels(node: fx.Node, n_dims: int | None) -> bool:
    """Whether it is the mean over all pixels, which leaves a number a channel: ``x.mean((2, 3))``."""
    if n_dims is None or node.target not in (torch.mean, "mean") or not set(node.kwargs) <= {"dim"}:
        return False
    dims = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
    chosen = dims if isinstance(dims, list | tuple) else (dims,)
    if not all(isinstance(dim, int) for dim in chosen):
        return False
    return {int(dim) % (n_dims + 2) for dim in chosen} == set(range(2, n_dims + 2))


def flattens(node: fx.Node) -> bool:
    """Whether it makes a row of each example: ``torch.flatten(x, 1)``, ``x.view(x.size(0), -1)``."""
    if node.target in ("view", "reshape"):
        shape = node.args[1:]
        return len(shape) == 2 and _is(shape[1], -1) and isinstance(shape[0], fx.Node) and _is_row_count(shape[0])
    is_call = node.target in (torch.flatten, "flatten") and len(node.all_input_nodes) == 1
    rest = (*node.args[1:], node.kwargs.get("start_dim"), node.kwargs.get("end_dim"))
    return is_call and [item for item in rest if item is not None] in ([1], [1, -1])


def drops_out(node: fx.Node) -> bool:
    """Whether it is dropout, which does nothing in evaluation mode."""
    return node.target in DROPOUTS


def only_counts_rows(node: fx.Node) -> bool:
    """Whether it asks for the number of examples alone, and so reads no channel."""
    if node.target is getattr and node.args[1:] == ("shape",):
        return all(_is_row_count(user) for user in node.users)
    return _is_row_count(node)


def _is_row_count(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "size" and _is(node.args[1] if len(node.args) == 2 else node.kwargs.get("dim"), 0)
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return node.args[0].target is getattr and _is(node.args[1], 0)


def _is(item: Any, number: int) -> bool:
    return isinstance(item, int) and item == number
