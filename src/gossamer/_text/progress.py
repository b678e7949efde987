"""Progress of something long: a bar on a terminal, plain lines elsewhere, silence on request."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import rich.progress

SECONDS_BETWEEN_WORDS = 0.2  # on a terminal: reading the loss of every step would cost more than the bar


class Progress:
    """A context that shows on standard error how much of ``total`` is done, of which ``start`` was done before.

    Where there is no terminal, or no rich, it writes about ``lines`` lines; ``quiet`` shows nothing.
    """

    def __init__(self, title: str, total: int, *, start: int = 0, lines: int = 10, quiet: bool = False) -> None:
        self.title, self.total, self.lines, self.quiet = title, total, lines, quiet
        self._done, self._line, self._shown = start, start, 0.0
        self._stack = ExitStack()
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty() and find_spec("rich") is not None:
            self._bar = self._stack.enter_context(_bar())
            self._bar.add_task(self.title, total=self.total, completed=self._done, words="")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def on_terminal(self) -> bool:
        """Whether there is a bar, not lines."""
        return self._bar is not None

    def begin(self, title: str, total: int | None = None, done: int = 0) -> None:
        """Start another part of the work, with its own title, total and count."""
        self.title, self.total, self._done, self._line = title, total or self.total, done, done
        if self._bar is not None:
            self._bar.reset(self._bar.task_ids[0], description=title, total=self.total, completed=done, words="")

    def update(self, done: int, words: Callable[[], str] | None = None) -> None:
        """So much of the total is done; ``words`` describes the state in a line, and is called only if it is shown."""
        self._done = done
        if self._bar is not None:
            is_due = done >= self.total or time.monotonic() - self._shown >= SECONDS_BETWEEN_WORDS
            if words is not None and is_due:
                self._bar.update(self._bar.task_ids[0], words=words())
                self._shown = time.monotonic()
            self._bar.update(self._bar.task_ids[0], completed=done, total=self.total)
        elif words is not None and not self.quiet and self._is_line(done):
            self._line = done
            print(f"{self.title}: {words()}", file=sys.stderr, flush=True)

    def _is_line(self, done: int) -> bool:
        return done >= self.total or done * self.lines // self.total > self._line * self.lines // self.total


def _bar() -> rich.progress.Progress:
    """The bar, and the words below it: beside it there is no room on a narrow terminal."""
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class BarWithWords(Bar):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            yield from (Text(task.fields["words"], no_wrap=True, overflow="ellipsis") for task in self.tasks)

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    # Two frames per second: the bar's own thread takes CPU time from whatever is being trained or measured.
    return BarWithWords(*columns, TimeRemainingColumn(), console=Console(stderr=True), refresh_per_second=2)
