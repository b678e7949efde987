"""Tables as aligned text for a terminal, as Markdown, as LaTeX and as CSV; names in them may be anybody's."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple


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
