"""Files of data sets: where they are looked for, and how their bytes become images and labels.

A reader of a format takes the bytes of a file and the part (``"train"`` or ``"test"``), returns images ``x``
(n, channels, height, width) and labels ``y`` (n,), and raises ``ValueError`` for bytes of another format. No reader
runs code from a file.
"""

import gzip
import io
import itertools
import math
import os
import pickle
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from tokenize import TokenError
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

# What gzip, zipfile and numpy raise for damaged files.
UNREADABLE = (
    *(ValueError, EOFError, OSError, RuntimeError, LookupError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)

Arrays = dict[str, npt.NDArray[Any]]
"""``x``, ``y``, or both."""

CIFAR_SHAPE = (3, 32, 32)

LARGEST = 2**30  # bytes of an unpacked file: five times the largest that is published
PART = 2**20


WHERE = "Name the folder: --data_dir on the command line, root=… in Python, or the environment variable GOSSAMER_DATA"


class DataNotFoundError(FileNotFoundError):
    """A data set was not found; the message names the places and files looked for, and who publishes it."""


def data_root(root: str | Path | None) -> Path:
    """``root``, else the folder that ``GOSSAMER_DATA`` names, else ``data/`` in the working directory."""
    return Path(root or os.environ.get("GOSSAMER_DATA") or "data").expanduser().absolute()


def find_file(place: Path, name: str) -> Path | None:
    """A file in a folder, plain or as ``.gz``."""
    return next((path for path in (place / name, place / f"{name}.gz") if path.is_file()), None)


def read_blob(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is a ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return read_bounded(file)
    except UNREADABLE as error:
        raise ValueError(f"{path}: truncated or damaged ({one_line(error)})") from error


def check_sum(where: str | Path, kind: str, found: str, expected: str) -> None:
    """Raise ``ValueError`` unless a checksum is the published one."""
    if found != expected:
        raise ValueError(
            f"{where}: damaged, or not the published set: the {kind} is {found}, expected {expected} "
            "(verify=False reads it all the same)"
        )


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
        arrays = read_archive(io.BytesIO(blob), wanted := {f"x_{part}", f"y_{part}"})
    except UNREADABLE as error:
        raise ValueError(f"no readable .npz file ({one_line(error)})") from error
    if lost := wanted - arrays.keys():
        found = [name.removesuffix(".npy") for name in zipfile.ZipFile(io.BytesIO(blob)).namelist()]
        raise DataNotFoundError(f"holds no {' and no '.join(sorted(lost))}, only {', '.join(found) or 'nothing'}")
    x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
    x = x[..., None] if x.ndim == 3 else x
    return {"x": np.moveaxis(x, -1, 1) if x.ndim == 4 else x, "y": y}


def read_archive(file: IO[bytes] | Path, wanted: Collection[str] | None = None) -> Arrays:
    """The arrays of a ``.npz`` file by name, in lower case; packed bytes are unpacked a part at a time."""
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy").lower()
            if wanted is None or name in wanted:
                with archive.open(member) as stream:
                    blob = read_bounded(stream)
                arrays[name] = read_npy(io.BytesIO(blob), len(blob))
    return arrays


def read_npy(stream: IO[bytes], size: int) -> npt.NDArray[Any]:
    """The array in a ``.npy`` file of ``size`` bytes; its header is believed only if it promises as many."""
    shape, is_fortran, dtype = read_npy_header(stream, size)
    array = np.frombuffer(stream.read(size), dtype)
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)


def read_npy_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and type of an array of numbers or texts that fills the file exactly."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of numpy's format is not read: save the array again")
    head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, is_fortran, dtype = head(stream)
    except (SyntaxError, TokenError, TypeError, RecursionError, MemoryError) as error:  # numpy parses it as Python
        raise ValueError(f"its header is broken ({type(error).__name__})") from error
    promised, found = dtype.itemsize * math.prod(shape), size - stream.tell()
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which only a pickle can: save numbers")
    if promised != found or not all(type(n) is int and 0 <= n <= size for n in shape) or not dtype.itemsize:
        raise ValueError(f"the header promises {promised:,} bytes of {str(dtype)[:20]}, the file has {found:,}")
    return shape, is_fortran, dtype


def one_line(error: BaseException | str) -> str:
    """The text of an error without its line breaks, and not too long."""
    return " ".join(str(error).split())[:200]


def read_cifar_pickle(blob: bytes, part: str) -> Arrays:
    """A batch of CIFAR's Python version: a pickled dict of ``data`` (n, 3072) and ``labels`` or ``fine_labels``."""
    try:
        slots = [slot or 0 for op, slot, _ in pickletools.genops(blob) if op.name in ("PUT", "LONG_BINPUT")]
        if max(slots, default=0) > len(blob):
            raise ValueError("no CIFAR batch: it numbers more objects than it has bytes")  # each would take memory
        batch = _CifarUnpickler(io.BytesIO(blob), encoding="latin1").load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"no readable pickle ({type(error).__name__}: {error})") from error
    batch = batch if isinstance(batch, dict) else {}
    data, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    data = data.array if isinstance(data, _ByteArray) else None
    if data is None or not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"no CIFAR batch: expected data and labels or fine_labels, found {sorted(map(str, batch))}")
    if data.ndim != 2 or data.shape[1] != math.prod(CIFAR_SHAPE):
        raise ValueError(f"data has shape {data.shape}, expected (n, {math.prod(CIFAR_SHAPE)})")
    return {"x": data.reshape(-1, *CIFAR_SHAPE), "y": np.asarray(labels)}


def read_mat(blob: bytes, part: str) -> Arrays:
    """SVHN's MATLAB files: ``X`` (height, width, channels, n) and ``y`` (n, 1), in which 10 stands for the digit 0."""
    try:
        content = dict(_matrices(blob))
    except (ValueError, LookupError, struct.error, zlib.error) as error:
        raise ValueError(f"no readable MATLAB file of version 5 ({one_line(error)})") from error
    x, y = content.get("X"), content.get("y")
    if x is None or y is None or x.ndim != 4:
        raise ValueError(f"no SVHN file: expected X (height, width, channels, n) and y, found {sorted(content)}")
    return {"x": x.transpose(3, 2, 0, 1), "y": y.reshape(-1) % 10}


# Types of numbers in MATLAB's format, version 5 (MAT-File Format, table 1-1), and of what contains them.
_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_MATRIX, _COMPRESSED = 14, 15


def _matrices(blob: bytes) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Names and values of the arrays of numbers in a file."""
    if len(blob) < 128 or blob[126:128] != b"IM":
        raise ValueError("it has no header of a little-endian file")
    for kind, body in _elements(blob[128:]):
        if kind == _COMPRESSED:
            unpacking = zlib.decompressobj()
            unpacked = unpacking.decompress(body, LARGEST)
            if unpacking.unconsumed_tail:
                raise ValueError(f"it unpacks to more than {LARGEST:,} bytes")
            kind, body = next(_elements(unpacked), (0, b""))
        if kind != _MATRIX:
            continue
        (_, flags), (_, dims), (_, name), (stored, values) = list(itertools.islice(_elements(body), 4))
        if 6 <= flags[0] <= 15:  # numbers; not text, structures or code
            array = np.frombuffer(values, _NUMBERS[stored])
            yield name.decode("ascii"), array.reshape(np.frombuffer(dims, "<i4"), order="F")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each element; a content of up to four bytes may stand in the tag itself."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start = at + 8
            end = start + size + (0 if kind == _COMPRESSED else -size % 8)
        if start + size > len(data) or (start == at + 4 and size > 4):
            raise ValueError(f"an element of {size:,} bytes, where {len(data) - start:,} are left")
        yield kind, data[start : start + size]
        at = end


def read_bounded(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    """All bytes of a stream, a part at a time: neither a header nor a packed file can ask for memory at once."""
    blob = bytearray()
    while part := stream.read(PART):
        blob += part
        if len(blob) > LARGEST:
            raise ValueError(f"it unpacks to more than {LARGEST:,} bytes, which no published file does; get it again")
    return bytes(blob)


class _Bytes:
    """Stands for numpy's dtype, of which only that of bytes is known; numpy's own would believe any state."""

    def __init__(self, name: str, *_: Any) -> None:
        if name not in ("u1", "uint8"):
            raise ValueError(f"no CIFAR batch: an array of {name!r:.20}, expected bytes")

    def __setstate__(self, state: Any) -> None:
        pass


class _ByteArray:
    """Stands for numpy's array, of bytes in C order."""

    def __init__(self, *_: Any) -> None:
        self.array: npt.NDArray[Any] = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        data = data.encode("latin1") if isinstance(data, str) else data  # a string of Python 2
        if not isinstance(dtype, _Bytes) or is_fortran or not isinstance(data, bytes):
            raise ValueError("no CIFAR batch: its array is not one of bytes in C order")
        self.array = np.frombuffer(data, np.uint8).reshape(shape)


class _CifarUnpickler(pickle.Unpickler):
    """Builds dicts, lists, strings, numbers and arrays of bytes, and nothing else."""

    known = MappingProxyType(
        {
            ("numpy.core.multiarray", "_reconstruct"): _ByteArray,  # as numpy 1 wrote it
            ("numpy._core.multiarray", "_reconstruct"): _ByteArray,  # as numpy 2 writes it
            ("numpy", "ndarray"): _ByteArray,
            ("numpy", "dtype"): _Bytes,
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise ValueError(f"no CIFAR batch: the pickle asks for {module}.{name}, which is not run")
        return self.known[module, name]
