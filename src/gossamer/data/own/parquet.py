"""Tables in Parquet files, which polars reads in a process of its own.

polars ends its process if a file asks for more memory than there is, and a small file may unpack to any size. So it
runs where it may die, in bounded memory (:mod:`gossamer.data.own.parquet_process`); only JSON and numbers come back.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from gossamer._text.names import needs
from gossamer.data._files import LARGEST, one_line
from gossamer.data.own.columns import Frame
from gossamer.files.schema import Within, check

Array = npt.NDArray[Any]

PROCESS = Path(__file__).with_name("parquet_process.py")
FIX = "write it again, in parts if it is large, or save it as CSV"


class ColumnHead(TypedDict):
    """What the numbers of a column are: themselves, places in ``levels``, or times of a ``dtype``."""

    name: str
    rows: Annotated[int, Within(0, LARGEST // 8)]
    levels: NotRequired[list[str | list[str]]]
    dtype: NotRequired[Literal["datetime64[D]", "datetime64[us]", "timedelta64[us]"]]


def read_parquet(path: Path) -> Frame:
    """The table in a Parquet file of at most ``LARGEST`` bytes, unpacked."""
    needs("polars", extra="parquet")
    with path.open("rb") as file, _started(file) as process:
        assert process.stdout is not None
        try:
            frame = Frame(dict(_columns(process.stdout)))
            code = process.wait()
        except (ValueError, IndexError) as error:
            raise ValueError(f"cannot read {path} as Parquet: {one_line(error)}; {FIX}") from error
        finally:
            process.kill()  # unless it has ended
    if code:
        raise ValueError(
            f"cannot read {path} as Parquet: the process that reads it ended (code {code}), as it does if a file asks "
            f"for more than {2 * LARGEST:,} bytes; {FIX}"
        )
    return frame


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    """Columns of equal length."""
    needs("polars", extra="parquet")
    import polars as pl

    pl.DataFrame(columns).write_parquet(path)


def _started(file: IO[bytes]) -> subprocess.Popen[bytes]:
    """The process, which finds polars where this one does; -P: nothing that lies beside its file is imported."""
    command = [sys.executable, "-P", str(PROCESS), str(LARGEST), *filter(None, sys.path)]
    return subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _columns(stream: IO[bytes]) -> Iterator[tuple[str, Array]]:
    while line := stream.readline(LARGEST):
        head = json.loads(line)
        if isinstance(head, dict) and "error" in head:
            raise ValueError(head["error"])
        check(head, ColumnHead, "a column", "it came back damaged")
        numbers = np.empty(head["rows"])
        if stream.readinto(numbers) < numbers.nbytes:  # type: ignore[attr-defined]
            raise ValueError("the process that reads it ended within a column")
        yield head["name"], _array_of(head, numbers)


def _array_of(column: ColumnHead, numbers: Array) -> Array:
    if "dtype" in column:
        return numbers.astype(column["dtype"]).astype(object)
    if "levels" not in column:
        return numbers
    levels = np.fromiter([*column["levels"], None], dtype=object)
    return levels[np.where(np.isnan(numbers), len(levels) - 1, numbers).astype(np.int64)]
