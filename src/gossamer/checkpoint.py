"""Checkpoints without pickle: tensors in a safetensors file, everything else as JSON in its header.

A folder keeps the two newest. ``latest.json`` names them with their checksums and is replaced last, in one move, so a
crash at any moment leaves a whole checkpoint to continue from.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from gossamer.record import RecordError, write_atomically

__all__ = ["load", "save"]

FORMAT = 1
_TREE = "__tree__"


def save(folder: Path, state: dict[str, Any], step: int) -> Path:
    """Write ``state`` (dicts, lists, tuples, tensors, numbers, strings, None) as the checkpoint of ``step``.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp())
        >>> path = save(folder, {"weights": torch.ones(2), "betas": (0.9, 0.999)}, step=7)
        >>> path.name, load(folder)["betas"]
        ('step-7.safetensors', (0.9, 0.999))
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot make {folder}: {error.strerror}; free the path or give another --out") from error
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors)
    data = save_tensors(tensors, metadata={_TREE: json.dumps(tree), "format": str(FORMAT)})
    path = folder / f"step-{step}.safetensors"
    write_atomically(path, data)
    entry = {"file": path.name, "step": step, "sha256": hashlib.sha256(data).hexdigest()}
    entries = [entry, *(old for old in _entries(folder) if old["file"] != path.name)][:2]
    write_atomically(folder / "latest.json", json.dumps({"format": FORMAT, "checkpoints": entries}, indent=1))
    for other in folder.glob("step-*.safetensors"):
        if other.name not in {kept["file"] for kept in entries}:
            with suppress(OSError):
                other.unlink()
    return path


def load(folder: Path) -> dict[str, Any]:
    """The newest checkpoint of the folder; a damaged one is an error that says what is still whole."""
    entries = [entry for entry in _entries(folder) if (folder / entry["file"]).exists()]
    if not entries:
        raise RecordError(f"{folder} holds no checkpoint: the run stopped before its first one; start it again")
    path = folder / entries[0]["file"]
    data = _read(path)
    if hashlib.sha256(data).hexdigest() != entries[0]["sha256"]:
        older = f"; {entries[1]['file']} is kept: delete {path.name} to continue from it" if entries[1:] else ""
        raise RecordError(f"{path} is damaged (its checksum does not match){older or '; start the run again'}")
    return _unpack(path, data)


def _entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / "latest.json"
    if not path.exists():
        return []
    try:
        index = json.loads(_read(path))
        number, entries = index["format"], [dict(entry) for entry in index["checkpoints"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is broken: delete {folder} and start the run again") from error
    if number > FORMAT:
        raise RecordError(
            f"{path} has format {number}, this version of gossamer reads up to {FORMAT}: upgrade gossamer"
        )
    return entries


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error


def _unpack(path: Path, data: bytes) -> dict[str, Any]:
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        tree, tensors = json.loads(header["__metadata__"][_TREE]), load_tensors(data)
    except (ValueError, KeyError, SafetensorError) as error:
        raise RecordError(f"{path} is not a checkpoint of gossamer: delete it and start the run again") from error
    state: dict[str, Any] = _decode(tree, tensors)
    return state


def _encode(node: Any, tensors: dict[str, Tensor]) -> Any:
    """A JSON tree in which every tensor is a number, its key in ``tensors``."""
    if isinstance(node, Tensor):
        key = str(len(tensors))
        tensors[key] = node.detach().cpu().contiguous().clone()  # safetensors takes no views of shared memory
        return {"tensor": key}
    if isinstance(node, dict):  # pairs: the keys of an optimizer's state are integers
        return {"dict": [[key, _encode(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_encode(value, tensors) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise TypeError(f"a checkpoint holds tensors, numbers, strings and containers of them, not {type(node).__name__}")


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in content}
    if kind in ("list", "tuple"):
        items = [_decode(value, tensors) for value in content]
        return items if kind == "list" else tuple(items)
    return content
