"""How far a training is: a bar on a terminal, ten lines elsewhere, nothing unless asked for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Show", "progress"]

Show = Callable[[int, dict[str, Any]], None]
N_LINES = 10


@contextlib.contextmanager
def progress(title: str, first: int, last: int, *, verbose: int) -> Iterator[Show | None]:
    """A function of (step, losses of the step) that shows where a training from ``first`` to ``last`` step is.

    Example:
        >>> with progress("ssvi", 0, 100, verbose=0) as show:
        ...     show is None
        True
    """
    if not verbose:
        yield None
    elif sys.stderr.isatty():
        with _bar(title, first, last) as show:
            yield show
    else:
        period = max(1, (last - first) // N_LINES)
        yield lambda step, values: _line(title, step, last, values) if step % period == 0 or step == last else None


@contextlib.contextmanager
def _bar(title: str, first: int, last: int) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=last - first)

        def show(step: int, values: dict[str, Any]) -> None:
            if step % 10 == 0 or step == last:  # reading the loss every step would cost more than the bar
                bar.update(task, completed=step - first, description=f"{title}  {_words(values)}")

        yield show


def _line(title: str, step: int, last: int, values: dict[str, Any]) -> None:
    print(f"{title}: step {step}/{last}  {_words(values)}", file=sys.stderr, flush=True)


def _words(values: dict[str, Any]) -> str:
    held_out = f"  held out {values['held_out']:.3f}" if "held_out" in values else ""
    return f"loss {float(values['loss']):.3f}{held_out}"
