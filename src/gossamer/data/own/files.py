"""What each kind of file holds, how it is read and how it is written: one row for each ending.

A row here is all that a new kind of file needs: it can then be trained on, predicted, written and used as another set.
"""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gossamer._text.names import needs, unknown
from gossamer._text.terminal import to_csv
from gossamer.data._files import LARGEST, DataNotFoundError, one_line
from gossamer.data.own.arrays import read_array
from gossamer.data.own.columns import Frame

Array = npt.NDArray[Any]

PARQUET_PROCESS = Path(__file__).with_name("parquet_process.py")
MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"})  # not None: it is a category in many tables


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


def read_parquet(path: Path) -> Frame:
    """The table in a Parquet file of at most ``LARGEST`` bytes, unpacked by a process of its own."""
    needs("polars", extra="parquet")
    import polars as pl

    # It finds polars where this process does; -P: nothing that lies beside its file is imported.
    command = [sys.executable, "-P", str(PARQUET_PROCESS), str(LARGEST), *filter(None, sys.path)]
    with path.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, check=False)
    if done.returncode:
        ended = f"the process that reads it ended (code {done.returncode}), as it does if a file asks for more than "
        problem = done.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        problem = one_line(problem) if done.returncode == 1 else f"{ended}{2 * LARGEST:,} bytes"
        raise ValueError(
            f"cannot read {path} as Parquet: {problem}; write it again, in parts if it is large, or as CSV"
        )

    def array_of(series: pl.Series) -> Array:
        if series.dtype == pl.Float64:
            return series.to_numpy()
        if series.dtype.is_temporal():
            return series.to_numpy().astype(object)
        if series.dtype == pl.String:  # the type of a column of no use: in a list, so that it is no category
            return np.fromiter([[kind] for kind in series], dtype=object)
        assert isinstance(series.dtype, pl.Enum)
        levels = series.dtype.categories.to_list()
        places: Array = series.to_physical().cast(pl.UInt32).fill_null(len(levels)).to_numpy()
        return np.fromiter([*levels, None], dtype=object)[places]

    return Frame({series.name: array_of(series) for series in pl.read_ipc(io.BytesIO(done.stdout))})


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    """Columns of equal length."""
    needs("polars", extra="parquet")
    import polars as pl

    pl.DataFrame(columns).write_parquet(path)


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


def read_labelled(path: Path, target: str | None, others: Sequence[str]) -> tuple[Frame, int]:
    """The rows of a table that have a target, and how many have none; columns that are not there are an error."""
    frame = read_frame(path)
    for name in [*others, *([] if target is None else [target])]:
        if name not in frame.columns:
            raise ValueError(f"{path.name}: {unknown('column', name, frame.columns)}")
    if target is None:
        return frame, 0
    rows = np.flatnonzero([value is not None and value == value for value in frame[target].tolist()])
    return frame.take(rows), len(frame) - len(rows)


def read_numbers(path: Path | str) -> Array:
    """The numbers in a file, whose columns need no names."""
    kind = kind_of(path)
    if kind.numbers is not None:
        return kind.numbers(Path(path))
    frame = read_frame(path)
    return np.stack([frame[name] for name in frame.columns], axis=1)
