"""Files of data sets: where they are looked for, and how their bytes become images and labels.

A reader of a format takes the bytes of a file and the part (``"train"`` or ``"test"``), returns images ``x``
(n, channels, height, width) and labels ``y`` (n,), and raises ``ValueError`` for bytes of another format. No reader
runs code from a file.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import math
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)  # what gzip and tarfile raise for damaged files

Arrays = dict[str, npt.NDArray[Any]]
"""``x``, ``y``, or both."""

CIFAR_SHAPE = (3, 32, 32)

# All that the published batches name: a numpy array is rebuilt from its class, its dtype and this function.
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # as numpy 1 wrote it
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,  # as numpy 2 writes it
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


WHERE = "Name the folder: --data_dir on the command line, root=… in Python, or the environment variable GOSSAMER_DATA"


class DataNotFoundError(FileNotFoundError):
    """A data set was not found; the message names the places and files looked for, and who publishes it."""


def data_root(root: str | Path | None) -> Path:
    """``root``, else the folder that ``GOSSAMER_DATA`` names, else ``data/`` in the working directory."""
    return Path(root or os.environ.get("GOSSAMER_DATA") or "data").expanduser().absolute()


def missing(place: Path, files: Sequence[str]) -> list[str]:
    """The ``files`` that a folder has neither plain nor as ``.gz``; if an archive is missing, all of them."""
    if is_archive(place):
        return [] if place.is_file() else list(files)
    return [name for name in files if _in_folder(place, name) is None]


def read_blobs(place: Path, files: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    """``(where, name, bytes)`` of each of ``files`` in a folder or a ``.tar.gz``, unpacked in memory, in any order."""
    if is_archive(place):
        yield from _from_archive(place, files)
        return
    for name in files:
        path = _in_folder(place, name)
        if path is None:
            raise DataNotFoundError(f"{place / name} is missing")
        try:
            blob = path.read_bytes()
            yield str(path), name, gzip.decompress(blob) if path.name == f"{name}.gz" else blob
        except UNREADABLE as error:
            raise ValueError(f"{path}: truncated or damaged ({error})") from error


def is_archive(place: Path) -> bool:
    """Whether a place is an archive, by its name, and not a folder."""
    return place.name.endswith(".tar.gz")


def read_idx(blob: bytes, part: str) -> Arrays:
    """IDX, the format of MNIST: 0, 0, type, number of dimensions, the dimensions, the bytes."""
    if len(blob) < 8 or blob[:3] != b"\x00\x00\x08" or blob[3] not in (1, 3):
        raise ValueError(f"no IDX file of bytes with 1 or 3 dimensions: it starts with 0x{blob[:4].hex()}")
    dims = [int.from_bytes(blob[4 + 4 * i : 8 + 4 * i], "big") for i in range(blob[3])]
    start = 4 + 4 * len(dims)
    expected = start + math.prod(dims)
    if len(blob) != expected:
        raise ValueError(f"found {len(blob)} bytes, expected {expected} for an IDX file of dimensions {dims}")
    array = np.frombuffer(blob, np.uint8, offset=start).reshape(dims)
    return {"y": array} if array.ndim == 1 else {"x": array[:, None]}


def read_npz(blob: bytes, part: str) -> Arrays:
    """Numpy's ``.npz`` with ``x_train, y_train, x_test, y_test``, images as (n, height, width[, channels])."""
    try:
        with np.load(io.BytesIO(blob), allow_pickle=False) as file:
            found, arrays = list(file), {key: file[key] for key in (f"x_{part}", f"y_{part}") if key in file}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise ValueError(f"no readable .npz file ({error})") from error
    if lost := {f"x_{part}", f"y_{part}"} - arrays.keys():
        raise DataNotFoundError(f"holds no {' and no '.join(sorted(lost))}, only {', '.join(found) or 'nothing'}")
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    x = x[..., None] if x.ndim == 3 else x
    return {"x": np.moveaxis(x, -1, 1) if x.ndim == 4 else x, "y": y}


def read_cifar_pickle(blob: bytes, part: str) -> Arrays:
    """A batch of CIFAR's Python version: a pickled dict of ``data`` (n, 3072) and ``labels`` or ``fine_labels``."""
    try:
        batch = _CifarUnpickler(io.BytesIO(blob), encoding="latin1").load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"no readable pickle ({type(error).__name__}: {error})") from error
    batch = batch if isinstance(batch, dict) else {}
    data, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise ValueError(f"no CIFAR batch: expected data and labels or fine_labels, found {sorted(map(str, batch))}")
    if data.ndim != 2 or data.shape[1] != math.prod(CIFAR_SHAPE):
        raise ValueError(f"data has shape {data.shape}, expected (n, {math.prod(CIFAR_SHAPE)})")
    return {"x": data.reshape(-1, *CIFAR_SHAPE), "y": np.asarray(labels)}


def read_cifar10_bin(blob: bytes, part: str) -> Arrays:
    """CIFAR-10's binary version: records of a label and 3 × 32 × 32 bytes."""
    return _records(blob, n_labels=1)


def read_cifar100_bin(blob: bytes, part: str) -> Arrays:
    """CIFAR-100's binary version: records of a coarse label, a fine label (the one used) and 3 × 32 × 32 bytes."""
    return _records(blob, n_labels=2)


def read_mat(blob: bytes, part: str) -> Arrays:
    """SVHN's MATLAB files: ``X`` (height, width, channels, n) and ``y`` (n, 1), in which 10 stands for the digit 0."""
    if importlib.util.find_spec("scipy") is None:
        raise ImportError("SVHN's .mat files are read by scipy: pip install scipy, or save the set as svhn.npz")
    from scipy.io import loadmat

    try:
        content = loadmat(io.BytesIO(blob))
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"no readable MATLAB file ({type(error).__name__}: {error})") from error
    x, y = content.get("X"), content.get("y")
    if x is None or y is None or x.ndim != 4:
        found = sorted(key for key in content if not key.startswith("__"))
        raise ValueError(f"no SVHN file: expected X (height, width, channels, n) and y, found {found}")
    return {"x": x.transpose(3, 2, 0, 1), "y": y.reshape(-1) % 10}


def _from_archive(place: Path, files: Sequence[str]) -> Iterator[tuple[str, str, bytes]]:
    left = set(files)
    try:
        with tarfile.open(place, "r:gz") as archive:
            for member in archive:
                name = Path(member.name).name
                stream = archive.extractfile(member) if name in left else None  # None for a folder, too
                if stream is not None:
                    left.remove(name)
                    yield f"{place}:{member.name}", name, stream.read()
    except UNREADABLE as error:
        raise ValueError(f"{place}: truncated or damaged ({error})") from error
    if left:
        raise ValueError(f"{place}: lacks {', '.join(sorted(left))}")


def _in_folder(place: Path, name: str) -> Path | None:
    candidates = (place / name, place / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _records(blob: bytes, n_labels: int) -> Arrays:
    size = n_labels + math.prod(CIFAR_SHAPE)
    if not blob or len(blob) % size:
        raise ValueError(f"found {len(blob)} bytes, expected a multiple of {size} ({n_labels} label + 32×32×3 pixels)")
    records = np.frombuffer(blob, np.uint8).reshape(-1, size)
    return {"x": records[:, n_labels:].reshape(-1, *CIFAR_SHAPE), "y": records[:, n_labels - 1]}


class _CifarUnpickler(pickle.Unpickler):
    """Builds dicts, lists, strings, numbers and numpy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"no CIFAR batch: the pickle asks for {module}.{name}, which is not run")
        return _ALLOWED[module, name]
