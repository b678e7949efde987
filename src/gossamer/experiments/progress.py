"""Progress of a training: a bar on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from gossamer.experiments.settings import Settings
from gossamer.train import Training

__all__ = ["Progress", "describe"]


class Progress:
    """A context that shows how far a training is; silent when ``quiet``.

    On a terminal: loss, held-out accuracy, KL, density, examples a second and the time left. Elsewhere one line an
    epoch, at most about fifty of them.
    """

    def __init__(self, settings: Settings, training: Training, *, quiet: bool) -> None:
        self.title = f"{settings.method} {settings.data} seed {settings.seed}"
        self.steps, self.start = training.steps, training.step
        self.every = max(1, settings.epochs // 50)
        self.epochs = settings.epochs
        self.quiet = quiet
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[values]}"),
            )
            self._bar = self._stack.enter_context(RichProgress(*columns, console=Console(stderr=True)))
            self._task = self._bar.add_task(self.title, total=self.steps, completed=self.start, values="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def advance(self, step: int) -> None:
        """A step is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def line(self, row: dict[str, Any]) -> None:
        """An epoch is done."""
        if self._bar is not None:
            self._bar.update(self._task, values=describe(row))
        elif not self.quiet and (row["epoch"] % self.every == 0 or row["epoch"] == self.epochs):
            print(f"{self.title}: epoch {row['epoch']}/{self.epochs}  {describe(row)}", file=sys.stderr, flush=True)


def describe(row: dict[str, Any]) -> str:
    """The row of an epoch in words.

    Example:
        >>> describe({"loss": 0.5, "kl": 0.01, "density": 0.05, "val_accuracy": 0.931, "examples_per_second": 12000})
        'loss 0.500  val accuracy 93.1%  KL 0.010  density 5.0%  12,000 examples/s'
    """
    parts = [f"loss {row['loss']:.3f}"]
    if "val_accuracy" in row:
        parts.append(f"val accuracy {row['val_accuracy']:.1%}")
    elif "val_rmse" in row:
        parts.append(f"val rmse {row['val_rmse']:.3f}")
    parts += [f"KL {row['kl']:.3f}", f"density {row['density']:.1%}", f"{row['examples_per_second']:,.0f} examples/s"]
    return "  ".join(parts)
