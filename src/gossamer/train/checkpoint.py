"""Checkpoints of a training, files of :mod:`gossamer.files.container`.

A folder keeps the two newest. ``latest.json`` names them with their checksums and is replaced last, atomically: a crash
at any moment leaves an intact checkpoint to continue from.
"""

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from gossamer.files.atomic import RecordError, read_bytes, read_file, unwritable, write_atomically
from gossamer.files.container import from_bytes, to_bytes
from gossamer.files.schema import Count

__all__ = ["exists", "load", "save"]

FORMAT = 1
N_KEPT = 2


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
        folder.mkdir(exist_ok=True)  # without its parents: a run folder that was removed stays removed
    except OSError as error:
        raise unwritable(folder, error) from error
    data = to_bytes(state)
    known = _index(folder)
    older = [entry for entry in known if entry.step != step]
    if older != known:  # this step is saved again, and its old checksum will be wrong
        _write_index(folder, older)
    path = folder / f"step-{step}.safetensors"
    write_atomically(path, data)
    kept = [_Entry(path.name, step, hashlib.sha256(data).hexdigest()), *older][:N_KEPT]
    try:
        _write_index(folder, kept)
    except RecordError:  # the disk is full: free what the new file takes
        path.unlink(missing_ok=True)
        raise
    _remove_others(folder, {entry.file for entry in kept})
    return path


def load(folder: Path) -> dict[str, Any]:
    """The newest checkpoint of the folder; the error for a damaged one says which one is still intact."""
    entries = [entry for entry in _index(folder) if (folder / entry.file).exists()]
    if not entries:
        raise RecordError(f"{folder} holds no checkpoint: {_start_again(folder)}")
    path = folder / entries[0].file
    data = read_bytes(path) or b""
    if hashlib.sha256(data).hexdigest() != entries[0].sha256:
        way_out = f"delete it to continue from {entries[1].file}" if entries[1:] else _start_again(folder)
        raise RecordError(f"{path} is damaged (its checksum does not match): {way_out}")
    try:
        return from_bytes(data)
    except ValueError as error:
        raise RecordError(f"{path} is not a checkpoint of gossamer: {_start_again(folder)}") from error


def exists(folder: Path) -> bool:
    """Whether the folder has a finished checkpoint."""
    return (folder / "latest.json").exists()


@dataclass(frozen=True)
class _Entry:
    """A line of ``latest.json``."""

    file: str
    step: Count
    sha256: str


class _Index(TypedDict):
    """Of ``latest.json``."""

    format: Count
    checkpoints: list[_Entry]


def _index(folder: Path) -> list[_Entry]:
    """The checkpoints that ``latest.json`` names, the newest first."""
    path = folder / "latest.json"
    content = read_file(path, _start_again(folder), _Index)
    if content is None:
        return []
    entries = [_Entry(**entry) for entry in content["checkpoints"]]
    if not all(re.fullmatch(r"step-\d+\.safetensors", entry.file) for entry in entries):
        raise RecordError(f"{path} is broken: it names a file that is no checkpoint; {_start_again(folder)}")
    if content["format"] > FORMAT:
        raise RecordError(
            f"{path} has format {content['format']}, this version of gossamer reads up to {FORMAT}: upgrade gossamer"
        )
    return entries


def _write_index(folder: Path, entries: list[_Entry]) -> None:
    index = {"format": FORMAT, "checkpoints": [asdict(entry) for entry in entries]}
    write_atomically(folder / "latest.json", json.dumps(index, indent=1))


def _start_again(folder: Path) -> str:
    return f"delete {folder}, and --resume trains the run again from its first step"


def _remove_others(folder: Path, kept: set[str]) -> None:
    """Delete older checkpoints, and temporary files that a killed process left behind."""
    for path in [*folder.glob("step-*.safetensors"), *folder.glob(".*.tmp")]:
        if path.name not in kept:
            with suppress(OSError):
                path.unlink()
