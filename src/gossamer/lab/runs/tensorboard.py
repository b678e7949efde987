"""The record of a run for TensorBoard, beside its own files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer._text.formats import is_number
from gossamer._text.names import needs

Log = Callable[[Mapping[str, Any]], None]
"""A row with its ``step`` -> nothing; its numbers are written down."""


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


@contextlib.contextmanager
def no_log() -> Iterator[Log]:
    """Where nothing is asked for."""
    yield lambda row: None
