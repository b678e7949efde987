"""Progress of a training: a bar on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gossamer.runs.settings import Settings
from gossamer.train import Training

if TYPE_CHECKING:
    import rich.progress

__all__ = ["Progress", "describe"]


class Progress:
    """A context that shows how far a training is; silent when ``quiet``.

    On a terminal: loss, held-out accuracy, KL, density, examples a second and the time left. Elsewhere one line an
    epoch, at most about fifty of them.
    """

    def __init__(self, settings: Settings, training: Training, *, quiet: bool) -> None:
        self.title = f"{settings.method} {settings.data} seed {settings.seed}"
        self.steps, self.start = training.steps, training.step
        self.epochs = settings.epochs
        self.every = -(-settings.epochs // 50)
        self.quiet = quiet
        self._stack = ExitStack()
        self._show: Callable[..., None] | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            bar = self._stack.enter_context(_bar())
            task = bar.add_task(self.title, total=self.steps, completed=self.start, values="")
            self._show = partial(bar.update, task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def advance(self, step: int) -> None:
        """A step is done."""
        if self._show is not None:
            self._show(completed=step)

    def line(self, row: dict[str, Any]) -> None:
        """An epoch is done."""
        if self._show is not None:
            self._show(values=describe(row))
        elif not self.quiet and (row["epoch"] % self.every == 0 or row["epoch"] == self.epochs):
            print(f"{self.title}: epoch {row['epoch']}/{self.epochs}  {describe(row)}", file=sys.stderr, flush=True)


def _bar() -> rich.progress.Progress:
    """The bar, and below it what the last epoch brought: beside it there is no room on a narrow terminal."""
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Bar(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            yield from (Text(task.fields["values"], no_wrap=True, overflow="ellipsis") for task in self.tasks)

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    return Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))


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
