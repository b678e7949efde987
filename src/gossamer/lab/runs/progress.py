"""How a run is watched and stopped: draws on standard error, epochs in TensorBoard, signals that it can go on after.

The command imports this file before it imports torch.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer._text.formats import is_number
from gossamer._text.names import needs
from gossamer._text.terminal import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from gossamer.posterior.predict import Around

SECONDS_OF_SILENCE = 5.0  # without a terminal: nobody waits for a line about less

Log = Callable[[Mapping[str, Any]], None]
"""A row with its ``step`` -> nothing; its numbers are written down."""

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def showing_draws(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Within the block, predictions show which draw they are at: a bar on a terminal, a line now and then elsewhere."""
    with Progress(title, 1, quiet=quiet) as progress:
        token = _shown.set(progress)
        try:
            yield
        finally:
            _shown.reset(token)


def draws_shown(total: int) -> Around | None:
    """What shows ``total`` drawn networks one by one, where :func:`showing_draws` asks for it."""
    progress = _shown.get()
    if progress is None:
        return None
    progress.begin(progress.title, total)
    last_line = time.monotonic()

    def around(done: float, compute: Callable[[], Tensor]) -> Tensor:
        nonlocal last_line
        outputs = compute()
        is_due = progress.on_terminal or time.monotonic() - last_line >= SECONDS_OF_SILENCE
        progress.update(int(done), partial("draw {} of {}".format, math.ceil(done), total) if is_due else None)
        last_line = time.monotonic() if is_due else last_line
        return outputs

    return around


@contextlib.contextmanager
def event_log(folder: Path, step: int) -> Iterator[Log]:
    """Rows of ``metrics.jsonl`` as scalars in ``folder``/tensorboard, which ``tensorboard --logdir`` reads.

    What an interrupted run has written there after ``step`` is dropped.
    """
    needs("tensorboard", extra="tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "tensorboard", purge_step=step + 1) as writer:

        def log(row: Mapping[str, Any]) -> None:
            for name, value in row.items():
                if name != "step" and is_number(value):
                    writer.add_scalar(name, value, row["step"])

        yield log


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
