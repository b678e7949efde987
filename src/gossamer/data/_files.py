"""Files of data sets: where they are looked for and how their bytes are read, plain, gzipped or in an archive."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["DataNotFoundError", "data_root", "is_archive", "missing", "read_blobs"]

UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)  # what gzip and tarfile raise for damaged files


class DataNotFoundError(FileNotFoundError):
    """A data set is not where it was looked for; the message says where, under which names, and who publishes it."""


def data_root(root: str | Path | None) -> Path:
    """``root``, else the folder that ``GOSSAMER_DATA`` names, else ``data/`` in the working directory.

    Example:
        >>> data_root("/sets").as_posix()
        '/sets'
    """
    return Path(root or os.environ.get("GOSSAMER_DATA") or "data").expanduser().absolute()


def missing(place: Path, files: Sequence[str]) -> list[str]:
    """Which of ``files`` a folder lacks, plain and as ``.gz``; nothing if ``place`` is an archive, opened later.

    Example:
        >>> missing(Path("no/such/folder"), ["train", "test"])
        ['train', 'test']
    """
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


def is_archive(place: Path) -> bool:
    """Whether a place is an archive, by its name, and not a folder.

    Example:
        >>> is_archive(Path("cifar-10-python.tar.gz"))
        True
    """
    return place.name.endswith(".tar.gz")


def _in_folder(place: Path, name: str) -> Path | None:
    candidates = (place / name, place / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)
