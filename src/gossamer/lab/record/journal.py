"""What guards a run folder while it is written: journals that know what they hold, and a lock."""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gossamer.files import schema
from gossamer.files.atomic import BINARY, RecordError, Row, read_bytes, sync_folder, to_json, unwritable, write_all
from gossamer.lab.record.contents import MetricsRow, Sum


class Journal:
    """Rows of JSON, one per line.

    The checksum grows with the lines and is not read back from the disk: damage done meanwhile does not become right.

    Example:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()) / "metrics.jsonl")
        >>> journal.append({"step": 1})
        >>> so_far = journal.sync()
        >>> journal.append({"step": 2})
        >>> journal.cut(so_far)
        >>> journal.rows(), so_far["bytes"]
        ([{'step': 1}], 12)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size, self._digest = -1, hashlib.sha256()  # nothing is known yet of what the file holds

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line; if that fails, the file is as it was."""
        line = to_json(dict(row)).encode() + b"\n"
        with _opened(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND) as handle:
            if self._size < 0:
                content = self._content()
                self._know(content[: content.rfind(b"\n") + 1])  # without an incomplete line, which a crash may leave
                os.ftruncate(handle, self._size)
            if os.fstat(handle).st_size != self._size:
                raise RecordError(f"{self.path} was changed by another program: stop that, then --resume the run")
            try:
                write_all(handle, line)
            except OSError:
                os.ftruncate(handle, self._size)
                raise
        self._size += len(line)
        self._digest.update(line)

    def rows(self) -> list[Row]:
        """All rows, without an incomplete last one."""
        return [row for _, row in self.lines()]

    def lines(self) -> list[tuple[bytes, Row]]:
        """The lines and the rows they hold; a broken last line is left out."""
        lines = self._content().splitlines(keepends=True)
        rows: list[tuple[bytes, Row]] = []
        for number, line in enumerate(lines, start=1):
            fix = "delete that line, or restore the file"
            try:
                row: Any = schema.check(schema.parse(self.path, line, fix), MetricsRow, self.path, fix)
            except ValueError as error:
                if number < len(lines):
                    problem = str(error).removeprefix(str(self.path))
                    raise RecordError(f"{self.path}, line {number}{problem}") from error
            else:
                if line.endswith(b"\n"):
                    rows.append((line, row))
        return rows

    def sync(self) -> Sum:
        """Wait until all lines are on the disk; returns the checksum of what was written."""
        if self._size < 0:
            self._know(self._content())
        if self._size:
            with _opened(self.path, os.O_RDONLY) as handle:
                os.fsync(handle)
            sync_folder(self.path.parent)
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def check(self, known: Sum) -> None:
        """Raise unless the file begins with what it had when ``known`` was computed."""
        content = self._content()[: known["bytes"]]
        if len(content) < known["bytes"] or hashlib.sha256(content).hexdigest() != known["sha256"]:
            lost = "lacks lines" if len(content) < known["bytes"] else "was changed"
            raise RecordError(
                f"{self.path} is damaged: it {lost} since the checkpoint; restore the file, or delete "
                f"{self.path.parent / 'checkpoint'}, and --resume trains the run again from its first step"
            )

    def cut(self, known: Sum) -> None:
        """Drop what was added since ``known`` was computed."""
        self.check(known)
        content = self._content()
        if len(content) != known["bytes"]:
            with _opened(self.path, os.O_RDWR) as handle:
                os.ftruncate(handle, known["bytes"])
        self._know(content[: known["bytes"]])

    def _content(self) -> bytes:
        return read_bytes(self.path) or b""

    def _know(self, content: bytes) -> None:
        self._size, self._digest = len(content), hashlib.sha256(content)


EMPTY: Sum = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A file as the system opens it; what goes wrong with it names the file."""
    try:
        handle = os.open(path, flags | BINARY, 0o666)
        try:
            yield handle
        finally:
            os.close(handle)
    except OSError as error:
        raise unwritable(path, error) from error


LOCK = ".lock"


class TakenError(RecordError):
    """Another process has the lock."""


class Lock:
    """Makes a folder and refuses it to every other process; the system releases the lock when this one ends.

    The locked file is never replaced or deleted by us: a lock on a file that has another name, or none, guards nothing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOCK

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = self._take()
            while not self.is_held():  # the folder was removed between the two calls, and perhaps made again
                os.close(self._file)
                self._file = self._take()
        except OSError as error:
            raise unwritable(self.folder, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def is_held(self) -> bool:
        """Whether the file that is locked is still the one in the folder."""
        with suppress(OSError):
            return os.path.samestat(self.path.stat(), os.fstat(self._file))
        return False

    def check(self) -> None:
        """Raise if the folder was removed, moved or replaced since the lock was taken."""
        if not self.is_held():
            raise RecordError(
                f"{self.folder} was removed, moved or replaced while it was trained: --resume it where it is now, or "
                "train again with another --out"
            )

    def _take(self) -> int:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
        except BlockingIOError:
            os.close(file)
            raise TakenError(f"{self.folder} is being trained by another process: wait for it, or stop it") from None
        except OSError as error:
            logging.getLogger("gossamer").warning(
                f"{self.folder} cannot be locked ({error.strerror}): let no other process train in it"
            )
        return file


def _lock(file: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows, where deleting an open file fails by itself
        import msvcrt

        getattr(msvcrt, "locking")(file, getattr(msvcrt, "LK_NBLCK"), 1)  # noqa: B009 (mypy reads Linux's msvcrt)
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
