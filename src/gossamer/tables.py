"""Tables as aligned text for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple


def align(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """One line per row, its cells padded to the width of their column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [cell.rjust(widths[i]) if i in right else cell.ljust(widths[i]) for i, cell in enumerate(row)] for row in rows
    ]
    return ["  ".join(row).rstrip() for row in padded]


def columns(rows: Mapping[str, str]) -> str:
    """Names, and beside each its text."""
    return "\n".join(align(list(rows.items())))


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
        head, *rows = [[cell.replace("|", r"\|") for cell in row] for row in [named, *self.rows]]
        rule = ["---"] * self.n_labels + ["---:"] * (len(self.head) - self.n_labels)
        return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *rows])
