"""Functions of ``os`` that a run calls to write, replaced in a process that is to be attacked."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["die_at", "fail_from", "intercept", "list_calls"]

CALLS = ("mkdir", "open", "write", "fsync", "replace")


def intercept(do: Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]) -> None:
    """Let this process call ``do`` in place of the functions by which runs write."""
    for name in CALLS:
        real = getattr(os, name)
        setattr(os, name, lambda *args, name=name, real=real: do(name, real, args))


def list_calls(path: Path) -> Callable[[], None]:
    """Write to a file, at the end of the process, what was called and with which first argument."""
    made: list[str] = []

    def note(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        made.append(f"{name} {args[0]}")
        return real(*args)

    def begin() -> None:
        intercept(note)
        leave = os._exit

        def leave_with_note(code: int) -> None:
            path.write_text(json.dumps(made))
            leave(code)

        os._exit = leave_with_note  # type: ignore[assignment]

    return begin


def die_at(number: int) -> Callable[[], None]:
    """Die at a call, in the middle of it if it writes."""
    left = [number]

    def do(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    return lambda: intercept(do)


def fail_from(number: int, error: int) -> Callable[[], None]:
    """From a call on the disk is full (a write ends in its middle), or read-only."""
    left, kinds = [number], ("write",) if error == errno.ENOSPC else ("mkdir", "open", "replace")

    def do(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        left[0] -= 1
        writes = name != "open" or args[1] & (os.O_WRONLY | os.O_RDWR)
        if left[0] <= 0 and name in kinds and writes:
            if name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            raise OSError(error, os.strerror(error))
        return real(*args)

    return lambda: intercept(do)
