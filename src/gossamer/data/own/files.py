"""What each kind of file holds, how it is read and how it is written: one row for each ending.

A row here is all that a new kind of file needs: it can then be trained on, predicted, written and used as another set.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer.data._files import DataNotFoundError
from gossamer.data.own.arrays import read_array
from gossamer.data.own.columns import Frame
from gossamer.data.own.frames import numbers_of_csv, read_csv, typed, write_csv
from gossamer.data.own.parquet import read_parquet, write_parquet

Array = npt.NDArray[Any]


class FileKind(NamedTuple):
    """A kind of file.

    Attributes:
        holds: What can be trained on; ``None`` where a file has inputs alone.
        table: The table in a file, columns with names.
        numbers: An array of numbers, ``(rows, …)``; by default the columns of the table.
        write: Writes columns of equal length.
    """

    holds: Literal["table", "arrays"] | None
    table: Callable[[Path], Frame] | None = None
    numbers: Callable[[Path], Array] | None = None
    write: Callable[[Path, dict[str, list[Any]]], None] | None = None


def read_jsonl(path: Path) -> Frame:
    """The table of a file with one JSON object per line; a value that is not there, or ``null``, is missing."""
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON Lines, one object per line: {error}") from error
    plain = str | int | float | None
    if not rows or not all(isinstance(row, dict) and all(isinstance(x, plain) for x in row.values()) for row in rows):
        raise ValueError(f"{path} must have one JSON object per line, of numbers, texts and null")
    names = dict.fromkeys(name for row in rows for name in row)
    return Frame({name: typed(["" if row.get(name) is None else str(row[name]) for row in rows]) for name in names})


def write_jsonl(path: Path, columns: dict[str, list[Any]]) -> None:
    """One JSON object per row."""
    path.write_text(json_lines(columns), encoding="utf-8")


def json_lines(columns: dict[str, list[Any]]) -> str:
    """Columns of equal length as text, one JSON object per row."""
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


FILES: dict[str, FileKind] = {
    ".npy": FileKind(None, numbers=read_array),
    ".npz": FileKind("arrays", numbers=read_array),
    ".csv": FileKind("table", read_csv, numbers_of_csv, write_csv),
    ".tsv": FileKind("table", read_csv, numbers_of_csv, write_csv),
    ".parquet": FileKind("table", read_parquet, write=write_parquet),
    ".jsonl": FileKind("table", read_jsonl, write=write_jsonl),
}
WRITTEN = [ending for ending, kind in FILES.items() if kind.write]
TRAINED_ON = [ending for ending, kind in FILES.items() if kind.holds]


def kind_of(path: Path | str) -> FileKind:
    """The row of a file; of ``"-"``, which is CSV from standard input, and of any other ending that of CSV."""
    return FILES.get(Path(path).suffix.lower(), FILES[".csv"])


def read_frame(path: Path | str) -> Frame:
    """The table in a file; columns whose values are all numbers are numbers, those of other texts are texts."""
    path, read = Path(path), kind_of(path).table
    if read is None:
        raise ValueError(f"{path} holds arrays, not a table")
    try:
        return read(path)
    except FileNotFoundError:
        raise DataNotFoundError(f"{path} does not exist: check the path") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 (byte {error.start}): save it as CSV in UTF-8") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


def read_numbers(path: Path | str) -> Array:
    """The numbers in a file, whose columns need no names."""
    kind = kind_of(path)
    if kind.numbers is not None:
        return kind.numbers(Path(path))
    frame = read_frame(path)
    return np.stack([frame[name] for name in frame.columns], axis=1)
