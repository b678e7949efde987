"""One safetensors file for a tree of tensors and plain values: no pickle, so reading a file cannot run code.

Tensors are named by their places in the tree; everything else is JSON in the header. Sorted whole numbers, such as the
positions of active weights, are stored as their differences, in the integers that take the fewest bytes: the largest
number of a width stands for a part of a difference that is wider. A checksum tells a damaged file from an intact one.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gossamer.files.atomic import RecordError, write_atomically
from gossamer.files.schema import Entries, read_bytes

__all__ = ["OTHER_NETWORK", "from_bytes", "read", "tensor", "to_bytes", "write"]

OTHER_NETWORK = "give gossamer.load the network that was saved, built by the same code with the same sizes"

# 1: no checksum, positions as they are; 2: each difference in one integer, wide enough for all, every tensor is named
FORMAT = 3
READERS = {  # kind of file -> who reads it
    "gossamer estimator": "SparseBayesClassifier.load or SparseBayesRegressor.load",
    "gossamer network": "gossamer.load",
}
WIDTHS = (torch.uint8, torch.uint16, torch.int32, torch.int64)  # of differences
SORTED = {  # kind of entry -> type of the positions
    "sorted int32": torch.int32,
    "sorted int64": torch.int64,
    "int32": torch.int32,  # the last two in format 2
    "int64": torch.int64,
}
_TREE = "__tree__"


def to_bytes(tree: dict[str, Any]) -> bytes:
    """``tree`` (dicts, lists, tuples, tensors, numbers, strings, None) as the content of a safetensors file.

    Example:
        >>> from_bytes(to_bytes({"weights": torch.ones(2), "betas": (0.9, 0.999)}))["betas"]
        (0.9, 0.999)
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(tree, tensors, ""))
    notes = {_TREE: text, "format": str(FORMAT), "crc32": str(_checksum(FORMAT, text, tensors))}
    return save_tensors(tensors, metadata=notes)


def from_bytes(data: bytes) -> dict[str, Any]:
    """What :func:`to_bytes` was given; ``ValueError`` for anything else."""
    try:
        length = int.from_bytes(data[:8], "little")
        notes = json.loads(data[8 : 8 + length])["__metadata__"]
        tensors = load_tensors(data)
        number, text = int(notes["format"]), notes[_TREE]
        if number > 1 and int(notes["crc32"]) != _checksum(number, text, tensors):
            raise ValueError("the checksum does not match")
        tree: dict[str, Any] = _decode(json.loads(text), tensors, "")
        if not isinstance(tree, dict):
            raise TypeError("the tree is not a dictionary")
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError, SafetensorError) as error:
        raise ValueError(f"these bytes are not what gossamer wrote ({str(error)[:100]})") from error
    return tree


def write(path: Path, kind: str, number: int, content: dict[str, Any]) -> None:
    """Write a file of a kind in its format ``number``; it appears whole or not at all."""
    from gossamer import __version__  # which is not known yet when this file is imported

    data = to_bytes({"kind": kind, "format": number, "gossamer": __version__, **content})
    try:
        write_atomically(path, data)
    except RecordError as error:
        raise OSError(f"{path} could not be written: {error.__cause__}") from error


def read(path: Path, kind: str, number: int) -> Entries:
    """The content of a file of a kind, up to format ``number``."""
    try:
        content = from_bytes(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path} is damaged, or not a {kind}: {error.args[0]}; write or copy it again") from error
    entries = Entries(path, content)
    found = entries.get("kind", str) if "kind" in content else "gossamer checkpoint"
    if found != kind:
        reader = READERS.get(found, "gossamer.lab.load_run(folder of the run)")
        raise ValueError(f"{path} holds a {found}, not a {kind}: read it with {reader}")
    if (given := entries.get("format", int)) > number:
        version = entries.get("gossamer", str)
        raise ValueError(f"{path} has format {given} (gossamer {version:.20}): upgrade gossamer to read it")
    return entries


def tensor(
    entries: Entries, key: str, like: Tensor | None, *, rows: bool = False, least: float | None = None
) -> Tensor:
    """The entry ``key``: finite numbers of the shape of ``like``, or several rows of that shape, from ``least`` on."""
    if like is None:
        raise entries.error(key, "is not a parameter of the network", OTHER_NETWORK)
    values = entries.get(key, Tensor)
    shape = values.shape[1:] if rows else values.shape
    if shape != like.shape or (rows and not values.dim()) or not values.is_floating_point():
        raise entries.error(key, f"has the shape {tuple(values.shape)}, the network {tuple(like.shape)}", OTHER_NETWORK)
    if not bool(values.isfinite().all()) or (least is not None and bool((values < least).any())):
        raise entries.error(key, "must be finite numbers" + ("" if least is None else f" from {least:g}"))
    return values.to(like)


def _checksum(number: int, text: str, tensors: dict[str, Tensor]) -> int:
    """Of all that the file says, whatever the order of its tensors."""
    total = zlib.crc32(text.encode(), number)
    for name in sorted(tensors):
        tensor = tensors[name]
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        if tensor.numel():
            total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, total)
    return total


def _encode(node: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """A JSON tree in which every tensor is a name, its key in ``tensors``, or ``None`` where that is its place."""
    if isinstance(node, Tensor):
        values = node.detach().cpu().contiguous().clone()  # safetensors rejects views of shared memory
        steps = _steps(values)
        key = path if path not in tensors else f"{path} {len(tensors)}"
        tensors[key] = values if steps is None else steps
        kind = "tensor" if steps is None else f"sorted {values.dtype}".replace("torch.", "")
        return {kind: None if key == path else key}
    if isinstance(node, dict):  # pairs: the keys of an optimizer's state are integers
        for key in node:
            if not isinstance(key, str | int):
                raise TypeError(f"the keys in a file are strings and whole numbers, not {type(key).__name__}")
        return {"dict": [[key, _encode(value, tensors, _place(path, key))] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        kind = "tuple" if isinstance(node, tuple) else "list"
        return {kind: [_encode(value, tensors, f"{path}/{i}") for i, value in enumerate(node)]}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise TypeError(f"a file holds tensors, numbers, strings and containers of them, not {type(node).__name__}")


def _decode(node: Any, tensors: dict[str, Tensor], path: str) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor" or kind in SORTED:
        tensor = tensors[path if content is None else content]
        return _from_steps(tensor, SORTED[kind], skips=kind.startswith("sorted")) if kind in SORTED else tensor
    if kind == "dict":
        return {key: _decode(value, tensors, _place(path, key)) for key, value in content}
    if kind in ("list", "tuple"):
        items = [_decode(value, tensors, f"{path}/{i}") for i, value in enumerate(content)]
        return items if kind == "list" else tuple(items)
    if kind != "value":
        raise ValueError(f"unknown kind of entry {kind!r:.20}")
    return content


def _place(path: str, key: str | int) -> str:
    return f"{path}/{key}" if path else str(key)


def _steps(values: Tensor) -> Tensor | None:
    """Differences of sorted positions in the width of the fewest bytes, the first from zero; ``None`` for others."""
    if values.dtype not in (torch.int32, torch.int64) or values.dim() != 1 or not len(values) or int(values[0]) < 0:
        return None
    steps = values.long().diff(prepend=values.new_zeros(1, dtype=torch.int64))
    if len(values) > 1 and int(steps[1:].min()) < 1:
        return None
    width = min(WIDTHS, key=lambda width: width.itemsize * int((steps // torch.iinfo(width).max + 1).sum()))
    most = torch.iinfo(width).max
    ends = (steps // most + 1).cumsum(0) - 1
    parts = steps.new_full((int(ends[-1]) + 1,), most)
    parts[ends] = steps % most
    return parts.to(width)


def _from_steps(steps: Tensor, dtype: torch.dtype, *, skips: bool) -> Tensor:
    """The positions again; of format 3, where the largest number of a width is a part of the next difference."""
    if steps.dtype not in WIDTHS or steps.dim() != 1:
        raise ValueError("differences of positions must be a vector of whole numbers")
    parts = steps.long()
    values = parts.cumsum(0)
    values = values[parts != torch.iinfo(steps.dtype).max] if skips else values
    if bool((values < 0).any()) or bool((values > torch.iinfo(dtype).max).any()):
        raise ValueError("positions do not fit their type")
    return values.to(dtype)
