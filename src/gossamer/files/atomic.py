"""Files that survive crashes: replaced atomically."""

import errno
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gossamer.files import schema

Row = dict[str, Any]
BINARY: int = getattr(os, "O_BINARY", 0)  # on Windows, keep line ends as they are


class RecordError(Exception):
    """A run folder that cannot be read or written: one line that names the file and what to do."""


def write_atomically(path: Path, data: bytes | str) -> None:
    """Replace the file atomically; if that fails, the old file is intact and nothing else is left behind."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o666)
        try:
            write_all(handle, data.encode() if isinstance(data, str) else data)
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        raise


def json_by_rows(content: Mapping[str, Any]) -> str:
    """An object as JSON with one line per key, and one per row where the value is a list: a diff of it can be read."""

    def lines(value: Any) -> str:
        if isinstance(value, list) and value:
            return "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
        return json.dumps(value)

    return "{\n" + ",\n".join(f'"{key}": {lines(value)}' for key, value in content.items()) + "\n}\n"


def read_file(path: Path, fix: str, hint: Any = dict[str, Any]) -> Any:
    """The content of a JSON or TOML file, ``None`` if there is no file; the error for a broken one recommends ``fix``.

    ``hint`` says what it must hold, see :mod:`gossamer.files.schema`.
    """
    try:
        return schema.read(path, hint, fix)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise RecordError(str(error)) from error


def read_bytes(path: Path) -> bytes | None:
    """The content of a file, ``None`` if there is none."""
    try:
        return schema.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error


def checked(value: Any, hint: Any, where: object, fix: str) -> Any:
    """The value, if it is what ``hint`` says."""
    try:
        return schema.check(value, hint, where, fix)
    except ValueError as error:
        raise RecordError(str(error)) from error


def to_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON; scalars and arrays of torch and numpy become plain numbers and lists."""
    return json.dumps(
        value, indent=indent, default=lambda item: item.tolist() if hasattr(item, "tolist") else str(item)
    )


def rows_on_lines(text: str) -> str:
    """Indented JSON with each list of plain numbers on one line.

    Example:
        >>> print(rows_on_lines(to_json({"x": [1, None, 2.5]}, indent=1)))
        {
         "x": [1, null, 2.5]
        }
    """
    return re.sub(r"\[\s+([^][{}\"]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def to_toml(table: Mapping[str, Any]) -> str:
    """A TOML document without the keys whose value is ``None``; scalars and arrays of torch and numpy become plain."""
    try:
        import tomli_w  # here, because only those who write runs need it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a run folder needs tomli_w: pip install 'gossamer[cli]'", name="tomli_w") from error

    return tomli_w.dumps(_plain(table, ()))


def _plain(value: Any, path: tuple[str, ...]) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {_plain(key, path): _plain(item, (*path, key)) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item, path) for item in value]
    if isinstance(value, str | os.PathLike):
        try:
            return str(value).encode().decode()
        except UnicodeEncodeError:
            raise RecordError(f"config.toml cannot hold {str(value)!a}: it is not valid Unicode, rename it") from None
    if isinstance(value, bool | int | float):
        return value
    kind = type(value).__name__
    raise RecordError(f"config.toml cannot hold {'.'.join(path)}, a {kind}: give a str, int, float, bool or a list")


def unreadable(path: Path, error: OSError) -> RecordError:
    """The error for a file that cannot be read."""
    return RecordError(f"{path} could not be read: {one_line(error.strerror or error)}; check the path and its rights")


def unwritable(path: Path, error: OSError) -> RecordError:
    """The error for a file that cannot be written, or a folder that cannot be made."""
    if isinstance(error, FileExistsError):
        return RecordError(f"{path} is a file, not a folder: give another --out")
    causes = {
        errno.ENOSPC: "the disk is full; free some space and resume",
        errno.EDQUOT: "the disk quota is used up; free some space and resume",
        errno.EROFS: "the file system is read-only; give another --out",
        errno.EACCES: "permission denied; give another --out",
        errno.ENOENT: "its folder does not exist; make it or give another --out",
    }
    cause = causes.get(error.errno or 0, f"{one_line(error.strerror or error)}; give another --out")
    return RecordError(f"{path} could not be written: {cause}")


def one_line(error: object) -> str:
    """The text of an error without its line breaks."""
    return " ".join(str(error).split())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write all of it, in as many parts as the system likes."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
