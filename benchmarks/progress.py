"""How far a benchmark is: a bar on a terminal, a line a row elsewhere."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

__all__ = ["Progress"]


class Progress:
    """A context that is told what is begun and what was found; silent when ``quiet``. All goes to standard error.

    Example:
        >>> with Progress(2, quiet=True) as progress:
        ...     progress.begin("conv 64@32x32")
        ...     progress.end("5 % 7.2x")
    """

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total, self.done, self.quiet = total, 0, quiet
        self.title = ""
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            # Two looks a second: the bar's own thread takes CPU time beside the one that is measured.
            bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True)
            self._bar = self._stack.enter_context(bar)
            self._bar.add_task("", total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, title: str) -> None:
        """Measuring this now."""
        self.title = title
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=title)

    def end(self, found: str) -> None:
        """That row is done, and this is what it says."""
        self.done += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done)
        elif not self.quiet:
            print(f"[{self.done}/{self.total}] {self.title}: {found}", file=sys.stderr, flush=True)
