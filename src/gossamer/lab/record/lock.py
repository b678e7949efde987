"""One process at a time writes to a run folder."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gossamer.files.atomic import RecordError, unwritable

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
        except FileExistsError:
            raise RecordError(f"{self.folder} is a file, not a folder: give another --out") from None
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
