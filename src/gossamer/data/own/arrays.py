"""Arrays in a NumPy ``.npz`` file: ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test`` and ``y_test``."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gossamer.data._files import UNREADABLE, DataNotFoundError, one_line, read_archive, read_npy
from gossamer.data._images import split_rows
from gossamer.data.own.record import labels_of, own_task, split_examples
from gossamer.types import Task

Array = npt.NDArray[Any]

CHANNELS = (1, 3, 4)


def load(root: str | Path | None = None, *, path: Path, task: str | None = None, n_val: int | None = None) -> Task:
    """The task in an ``.npz`` file: rows of numbers, or images ``(n, height, width[, channels])``, channels first too.

    Without test arrays a fifth is for testing; without ``x_val`` a tenth of the rest is held out.

    Args:
        root: Not used.
        path: The file.
        task: ``"classification"`` or ``"regression"``; by the values of ``y`` if not given.
        n_val: How many of the examples that are not for testing to hold out for choices.
    """
    arrays = read_arrays(path)
    has_parts = {"x_train", "y_train", "x_test", "y_test"} <= set(arrays)
    parts = ["_train", *(["_val"] if {"x_val", "y_val"} <= set(arrays) else []), "_test"] if has_parts else [""]
    if not {f"{name}{part}" for name in "xy" for part in parts} <= set(arrays):
        found = ", ".join(arrays) or "nothing"
        raise ValueError(
            f"{path.name} must have arrays x and y, or x_train, y_train, x_test and y_test; it has {found}"
        )
    xs = [_checked(path, "x", arrays[f"x{part}"]) for part in parts]
    x, y = np.concatenate(xs), np.concatenate([_targets(path, arrays[f"y{part}"]) for part in parts])
    if len(x) != len(y):
        raise ValueError(f"{path.name} has {len(x)} inputs and {len(y)} targets")
    if not has_parts:
        train, val, test = split_examples(len(x), n_val, path.name)
    else:
        train, *given, test = np.split(np.arange(len(x)), np.cumsum([len(one) for one in xs])[:-1])
        rest, held = split_rows(len(train), 0 if given else n_val)
        train, val = rest.numpy(), given[0] if given else held.numpy()
    inputs = torch.from_numpy(stored(x))
    return own_task("arrays", path, inputs, labels_of(y, "y", task, train, path.name), (train, val, test))


def describe(record: Mapping[str, Any]) -> dict[str, str]:
    """The form of the inputs."""
    return {"inputs": f"{record['dtype']} of shape {tuple(record['shape'])}"}


def read_array(path: Path) -> Array:
    """The inputs in a ``.npy`` file, or in a ``.npz`` file as ``x``, ``x_test`` or its only array."""
    if path.suffix.lower() != ".npz":
        return np.asarray(read_arrays(path))
    arrays: dict[str, Array] = read_arrays(path)
    name = next((name for name in ("x", "x_test") if name in arrays), next(iter(arrays), ""))
    if not name or (len(arrays) > 1 and name not in ("x", "x_test")):
        raise ValueError(f"{path.name}: which array has the inputs? Call it x; it has {', '.join(arrays) or 'none'}")
    return arrays[name]


def read_arrays(path: Path) -> Any:
    """The array of a ``.npy`` file, or those of a ``.npz`` file by name, in lower case; no code in the file is run."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as stream:
                return np.array(read_npy(stream, path.stat().st_size))  # a copy that may be written to
        return {name: np.array(array) for name, array in read_archive(path).items()}
    except FileNotFoundError:
        raise DataNotFoundError(f"{path} does not exist: check the path") from None
    except UNREADABLE as error:
        raise ValueError(f"{path} is not a readable NumPy file: {one_line(error)}") from error


def _checked(path: Path, name: str, array: Array) -> Array:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path.name}: {name} must hold numbers, not {array.dtype}")
    if array.ndim not in (2, 3, 4):
        raise ValueError(f"{path.name}: {name} must be (rows, columns) or images; its shape is {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(
            f"{path.name}: {name} has numbers that are not finite: replace them, or save a table with gaps"
        )
    return array


def _targets(path: Path, array: Array) -> Array:
    flat = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if flat.ndim != 1 or flat.dtype.kind not in "biufU":
        raise ValueError(f"{path.name}: y must have one number or text per example; it is {array.dtype} {array.shape}")
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise ValueError(f"{path.name}: y has numbers that are not finite")
    return flat.astype(np.int64) if flat.dtype.kind == "b" else flat


def stored(x: Array) -> Array:
    """Inputs as a task stores them: rows in float64, images with channels first, as bytes or float32."""
    x = x.astype(x.dtype.newbyteorder("="), copy=False)
    if x.ndim == 2:
        return np.ascontiguousarray(x, dtype=np.float64)
    x = x[:, None] if x.ndim == 3 else x
    is_last = x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS
    x = np.moveaxis(x, -1, 1) if is_last else x
    return np.ascontiguousarray(x, dtype=np.uint8 if x.dtype == np.uint8 else np.float32)
