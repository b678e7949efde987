"""What a terminal shows: tables, which are also Markdown, LaTeX and CSV, and the progress of something long.

Names in a table may be anybody's. Progress is a bar on a terminal, plain lines elsewhere, silence on request.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    import rich.progress


def align(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """One line per row, its cells padded to the width of their column."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)] for row in rows
    ]
    return ["  ".join(row).rstrip() for row in padded]


def columns(rows: Mapping[str, str]) -> str:
    """Names, and beside each its text."""
    return "\n".join(align(list(rows.items())))


def printable(text: str) -> str:
    r"""The text with its control characters spelled out: a terminal would obey them.

    Example:
        >>> printable("red\x1b[31m")
        'red\\x1b[31m'
    """
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\u2029\u202f-\u2065\u206a-\U0010ffff]", lambda it: repr(it[0])[1:-1], text)


def to_csv(rows: Iterable[Iterable[object]], delimiter: str = ",") -> str:
    r"""Rows as CSV; an apostrophe keeps a spreadsheet from running a text as a formula.

    Example:
        >>> to_csv([["=1+1", "-2", 0.5]])
        "'=1+1,-2,0.5\n"
    """
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([map(_as_text, row) for row in rows])
    return file.getvalue()


def _as_text(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


class Table(NamedTuple):
    """A title, a note on what the cells mean, a head and rows."""

    title: str
    note: str
    head: Sequence[str]  # a name, or two lines: a name and a unit
    rows: Sequence[Sequence[str]]
    n_labels: int = 1  # columns of words, to the left of those of numbers

    def to_text(self) -> str:
        """For a terminal: words to the left, numbers to the right, below the title and the note."""
        heads = zip_longest(*(cell.split("\n") for cell in self.head), fillvalue="")
        lines = align([*heads, *self.rows], right=range(self.n_labels, len(self.head)))
        above = [line for line in (self.title, self.note) if line]
        return "\n".join([*above, *([""] if above else []), *lines])

    def to_markdown(self) -> str:
        """The table alone: the page around it has the title and the note."""
        named = [cell.replace("\n", ", ") for cell in self.head]
        signs = str.maketrans({"|": r"\|", "<": "&lt;", "\n": " "})
        head, *rows = [[cell.translate(signs) for cell in row] for row in [named, *self.rows]]
        rule = ["---"] * self.n_labels + ["---:"] * (len(self.head) - self.n_labels)
        return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])

    def to_latex(self, bold: Collection[tuple[int, int]] = ()) -> str:
        r"""A ``table`` for the package booktabs: the title is its caption, with the note; ``bold`` names cells.

        Example:
            >>> print(Table("A & B", "", ["name", "share\n%"], [["x_1", "5±1"]]).to_latex(bold=[(0, 1)]))
            \begin{table}
              \centering
              \caption{A \& B}
              \begin{tabular}{lr}
                \toprule
                name & share \\
                & \% \\
                \midrule
                x\_1 & \textbf{5$\pm$1} \\
                \bottomrule
              \end{tabular}
            \end{table}
            <BLANKLINE>
        """
        heads = zip_longest(*(cell.split("\n") for cell in self.head), fillvalue="")
        body = [
            [rf"\textbf{{{_latex(cell)}}}" if (i, j) in bold else _latex(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        caption = " ".join(_latex(text) for text in (self.title, self.note) if text)
        lines = [
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{caption}}}"] if caption else []),
            rf"  \begin{{tabular}}{{{'l' * self.n_labels}{'r' * (len(self.head) - self.n_labels)}}}",
            r"    \toprule",
            *(rf"    {' & '.join(map(_latex, row)).strip()} \\" for row in heads),
            r"    \midrule",
            *(rf"    {' & '.join(row)} \\" for row in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
        "−": "$-$",
        "×": r"$\times$",
        "µ": r"\textmu{}",
        "μ": r"\textmu{}",
        "\u202f": r"\,",
    }
)


def _latex(text: str) -> str:
    """A text for LaTeX: what has a meaning there is escaped."""
    return text.translate(_LATEX)


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
