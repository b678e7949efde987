"""Interrupting a run so that it can be continued."""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any


class Interrupted(Exception):  # noqa: N818 - not an error: the run can go on
    """The run was stopped and can be continued."""

    def __init__(self, folder: Path, way_on: str | None = None) -> None:
        self.folder = folder
        default = f"continue with: gossamer train --resume {shlex.quote(str(folder))}"
        super().__init__(f"interrupted; {way_on or default}")


class SeenEnough(Interrupted):
    """A watcher has seen enough; the run can still be resumed."""


class RankLostError(RuntimeError):
    """Another process of the training is gone; the run can be continued from its last checkpoint."""

    def __init__(self, folder: Path | None) -> None:
        has_begun = folder is not None and (folder / "config.toml").exists()
        way_on = f"continue with: gossamer train --resume {shlex.quote(str(folder))}" if has_begun else "start again"
        super().__init__(f"another rank was killed or has failed; {way_on}")


class Stop:
    """Whether a stop was requested, or the given time is over."""

    def __init__(self, after: float | None = None) -> None:
        self.asked = False
        self.deadline = None if after is None else time.monotonic() + after

    @property
    def is_set(self) -> bool:
        """Whether to stop after the current step."""
        return self.asked or (self.deadline is not None and time.monotonic() >= self.deadline)


@contextlib.contextmanager
def stop_signals(after: float | None = None) -> Iterator[Stop]:
    """Ctrl-C, SIGTERM, a closed terminal and the end of ``after`` seconds request a stop after the current step.

    A second signal stops at once. A signal that this process inherited as ignored stays ignored: ``nohup`` asks for
    that for a closed terminal, and a shell without job control for Ctrl-C in background jobs, which is meant for the
    job in the foreground.
    """
    stop = Stop(after)

    def ask(number: int, frame: Any) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with handled_by(ask, [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]):
        yield stop


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], Any], numbers: Sequence[int]) -> Iterator[None]:
    """Let ``handler`` handle the signals meanwhile."""
    before: dict[int, Any] = {}
    for number in numbers:
        with contextlib.suppress(ValueError):  # not in the main thread: stopping is the caller's task
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
