"""How far a reproduction is: a bar on a terminal, a few lines a part elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

__all__ = ["Progress", "describe"]

LINES = 5  # a part, where there is no terminal


class Progress:
    """A context that is told of parts and of steps inside them; silent when ``quiet``. All goes to standard error.

    Example:
        >>> with Progress(1, quiet=True) as progress:
        ...     progress.begin({"method": "DFP"})
        ...     progress.tick(1, 10, "loss 0.5")
        ...     progress.end()
    """

    def __init__(self, n_parts: int, *, quiet: bool) -> None:
        self.n_parts, self.done, self.quiet = n_parts, 0, quiet
        self.title, self.start, self._shown = "", 0.0, 0
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2)
            self._bar = self._stack.enter_context(bar)
            self._bar.add_task("", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, settings: dict[str, Any]) -> None:
        """This part now."""
        self.title, self.start, self._shown = describe(settings), time.perf_counter(), 0
        if self._bar is not None:
            self._bar.reset(self._bar.task_ids[0], description=f"[{self.done + 1}/{self.n_parts}] {self.title}")

    def tick(self, done: int, total: int, words: str) -> None:
        """So many of its steps are done."""
        if self._bar is not None:
            text = f"[{self.done + 1}/{self.n_parts}] {self.title}: {words}"
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=text)
        elif not self.quiet and done * LINES // total > self._shown:
            self._shown = done * LINES // total
            self._say(f"step {done}/{total}, {words}")

    def end(self) -> None:
        """It is done, or was before."""
        self.done += 1
        if self._bar is None and not self.quiet and not self._shown:
            self._say("measured before")

    def _say(self, text: str) -> None:
        seconds = time.perf_counter() - self.start
        print(f"[{self.done + 1}/{self.n_parts}] {self.title}: {text} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def describe(settings: dict[str, Any]) -> str:
    """What tells a part from the others.

    Example:
        >>> describe({"example": 1, "variant": "ke", "method": "DFP", "hidden": [5, 3], "epochs": 80})
        'example 1, ke, DFP, 5-3'
    """
    is_example = "example" in settings
    parts = [f"example {settings['example']}"] if is_example else []
    keys = ("variant", "method", "training") if is_example else ("data", "method")
    parts += [str(settings[key]) for key in keys if settings.get(key)]
    parts += ["-".join(map(str, settings["hidden"]))] if "hidden" in settings else []
    return ", ".join(parts + ([f"seed {settings['seed']}"] if "seed" in settings and not is_example else []))
