"""New inputs from a file, in the form that a task stores its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.record import RecordError
from gossamer.types import Task

__all__ = ["read_inputs"]


def read_inputs(path: Path, task: Task) -> Tensor:
    """One example a row; images may have their channels last, or all their pixels in one row.

    Example:
        >>> import tempfile
        >>> from gossamer.data import digits
        >>> path = Path(tempfile.mkdtemp()) / "new.npy"
        >>> np.save(path, np.zeros((5, 64), np.float32))
        >>> read_inputs(path, digits.load()).shape
        torch.Size([5, 1, 8, 8])
    """
    array = _numbers(path)
    stored = task.test[0]
    shape = tuple(stored.shape[1:])
    x = torch.from_numpy(np.ascontiguousarray(array))
    if x.shape == shape:
        x = x.unsqueeze(0)
    if x.dim() and x.shape[1:] != shape and x.shape[1:].numel() == stored[0].numel():
        is_channels_last = len(shape) == 3 and tuple(x.shape[1:]) == (*shape[1:], shape[0])
        x = x.movedim(-1, 1) if is_channels_last else x.reshape(-1, *shape)
    if not x.dim() or x.shape[1:] != shape:
        raise RecordError(f"{path} has examples of shape {tuple(x.shape[1:])}, {task.name} has {shape}")
    if not len(x):
        raise RecordError(f"{path} has no examples")
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0]) + 1
        raise RecordError(f"{path} has numbers that are not finite, the first in row {row}")
    if stored.dtype == torch.uint8 and bool(((x < 0) | (x > 255) | (x != x.round())).any()):
        raise RecordError(f"{path} must have whole numbers from 0 to 255: {task.name} stores its pixels so")
    return x.to(stored.dtype)


def _numbers(path: Path) -> npt.NDArray[Any]:
    """The file as an array of numbers."""
    if path.suffix not in (".npy", ".csv"):
        raise RecordError(f"{path}: inputs are read from .npy or .csv files")
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _table(path)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise RecordError(f"{path} is not an array of numbers: {str(error).splitlines()[0]}") from error
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating) or array.dtype == bool):
        raise RecordError(f"{path} is not an array of numbers but of {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch reads this machine's byte order only


def _table(path: Path) -> npt.NDArray[Any]:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if lines and not _is_number(lines[0].split(",")[0]):
        lines = lines[1:]  # names of the columns
    return np.loadtxt(lines, delimiter=",", ndmin=2) if lines else np.zeros((0, 0))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
