"""Tables in CSV and TSV files."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gossamer._text.tables import to_csv
from gossamer.data.own.columns import Frame

Array = npt.NDArray[Any]

MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"})  # not None: it is a category in many tables


def read_csv(path: Path) -> Frame:
    """The table in a CSV or TSV file; ``-`` is CSV from standard input."""
    if str(path) == "-":
        return from_text(sys.stdin.read(), "standard input")
    return from_text(path.read_text(encoding="utf-8-sig"), str(path), "\t" if path.suffix.lower() == ".tsv" else None)


def numbers_of_csv(path: Path) -> Array:
    """Numbers of a table, whose first line may have the names of its columns."""
    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and not _is_number(lines[0].split(delimiter)[0]):
        lines = lines[1:]
    return np.loadtxt(lines, delimiter=delimiter, ndmin=2) if lines else np.zeros((0, 0))


def from_text(text: str, where: str, delimiter: str | None = None) -> Frame:
    r"""The table in a CSV text, whose first line has the names of the columns.

    The delimiter is the one of comma, semicolon and tab that the first line has most of, unless it is given.

    Example:
        >>> frame = from_text("age;town\n30;Ulm\n;Bonn\n", "example")
        >>> frame["age"], frame["town"]
        (array([30., nan]), array(['Ulm', 'Bonn'], dtype=object))
    """
    head = text.partition("\n")[0]
    delimiter = delimiter or max(",;\t", key=head.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise ValueError(f"{where} is not CSV: {error}") from error
    if not rows:
        raise ValueError(f"{where} is empty")
    names = [name.strip() for name in rows[0]]
    if all(map(_is_number, names)):
        raise ValueError(f"{where}: the first line must have the names of the columns; it has {', '.join(names[:3])}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where} has two columns called {twice[0]!r}: rename one")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise ValueError(f"{where}, row {number} has {len(row)} values, the first line has {len(names)} names")
    columns = zip(*rows[1:], strict=True) if len(rows) > 1 else [()] * len(names)
    return Frame(
        {name: typed([value.strip() for value in column]) for name, column in zip(names, columns, strict=True)}
    )


def typed(column: list[str]) -> Array:
    """Numbers if all that are not missing are numbers, otherwise texts."""
    if all(_is_number(value) for value in column if value not in MISSING):
        return np.array([np.nan if value in MISSING else float(value) for value in column], dtype=np.float64)
    return np.array([None if value in MISSING else value for value in column], dtype=object)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_000 as a number, no table does


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    """Columns of equal length as CSV or TSV."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        stream.write(csv_of(columns, "\t" if path.suffix.lower() == ".tsv" else ","))


def csv_of(columns: dict[str, list[Any]], delimiter: str = ",") -> str:
    """Columns of equal length as CSV; numbers with six digits."""
    rows = zip(*columns.values(), strict=True)
    told = ([f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows)
    return to_csv([columns, *told], delimiter)
