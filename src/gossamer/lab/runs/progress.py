"""How a run is watched: the draws of a prediction on standard error, the numbers of its epochs in TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from gossamer._text.formats import is_number
from gossamer._text.names import needs
from gossamer._text.terminal import Progress
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

    def around(number: int, compute: Callable[[], Tensor]) -> Tensor:
        nonlocal last_line
        outputs = compute()
        is_due = progress.on_terminal or time.monotonic() - last_line >= SECONDS_OF_SILENCE
        progress.update(number + 1, partial("draw {} of {}".format, number + 1, total) if is_due else None)
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
