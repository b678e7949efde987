"""A table of words and numbers, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Table"]


class Table(NamedTuple):
    """A title, what its cells mean, a head and rows.

    Example:
        >>> print(Table("Ages", "", ["who", "age"], [["Ann", "7"]]).to_text())
        Ages
        <BLANKLINE>
        who  age
        Ann    7
    """

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_labels: int = 1  # columns of words, before those of numbers

    def to_text(self) -> str:
        """For a terminal: names to the left, numbers to the right."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [
            "  ".join(
                c.ljust(w) if i < self.n_labels else c.rjust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        title = f"{self.title}\n{self.note}" if self.note else self.title
        return "\n".join([title, "", *(line.rstrip() for line in padded)])

    def to_markdown(self) -> str:
        """The table alone: what it shows is said by the page around it."""
        head, *rows = [[cell.replace("|", r"\|") for cell in line] for line in [self.head, *self.rows]]
        rule = ["---"] * self.n_labels + ["---:"] * (len(self.head) - self.n_labels)
        return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *rows])
