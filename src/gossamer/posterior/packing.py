"""The state of a network without its zeros: what a snapshot takes in memory and in a checkpoint."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["pack", "packed_bytes", "unpack"]

Packed = dict[str, Any]
"""A tensor by name, or the ``position`` and ``value`` of its entries that are not zero with its ``shape``."""


def pack(model: nn.Module) -> Packed:
    """A copy of the state of ``model`` on the CPU; a tensor with enough exact zeros keeps the other entries only.

    Example:
        >>> layer = nn.Linear(100, 10, bias=False)
        >>> with torch.no_grad():
        ...     _ = layer.weight.mul_(torch.arange(1000).view(10, 100) % 20 == 0)
        >>> packed = pack(layer)
        >>> len(packed["weight"]["value"]), packed_bytes(packed), torch.equal(unpack(packed)["weight"], layer.weight)
        (50, 400, True)
    """
    return {name: _pack(entry) for name, entry in model.state_dict().items()}


def unpack(packed: Packed) -> dict[str, Any]:
    """The state again, for ``load_state_dict``."""
    return {name: _unpack(entry) for name, entry in packed.items()}


def packed_bytes(packed: Packed) -> int:
    """What it takes."""
    tensors = [part for entry in packed.values() for part in (entry.values() if isinstance(entry, dict) else [entry])]
    return sum(part.numel() * part.element_size() for part in tensors if isinstance(part, Tensor))


def _pack(entry: Any) -> Any:
    if not isinstance(entry, Tensor):  # what a module keeps by get_extra_state
        return {"other": copy.deepcopy(entry)}
    tensor = entry.detach().cpu()
    flat = tensor.reshape(-1)
    n = flat.numel()
    index_type = torch.int32 if n <= torch.iinfo(torch.int32).max else torch.int64
    position = flat.nonzero().squeeze(1)  # zeros of either sign come back as 0.0
    if len(position) * (tensor.element_size() + index_type.itemsize) >= n * tensor.element_size():
        return tensor.clone()
    return {"shape": list(tensor.shape), "position": position.to(index_type), "value": flat[position]}


def _unpack(entry: Any) -> Any:
    if isinstance(entry, Tensor):
        return entry
    if "other" in entry:
        return entry["other"]
    shape, value = entry["shape"], entry["value"]
    flat = torch.zeros(math.prod(shape), dtype=value.dtype)
    flat[entry["position"].long()] = value
    return flat.view(shape)
