"""The process that reads a Parquet file for :mod:`gossamer.data.own.parquet`; a hostile file may end it.

The file is its standard input. For each column it writes a line of JSON, then the rows as float64; instead of a column,
a line with the error. It is run by its path and imports nothing of Gossamer, which would bring torch.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

THREADS = "4"  # of polars, whose stacks count as memory
TEXT = 64  # bytes that a text takes in Python beside its letters


def main(largest: int) -> None:
    """Write the columns of a table of at most ``largest`` bytes, with twice as much memory."""
    _limit_memory(2 * largest)
    try:
        for head, numbers in _columns(largest):
            _write_line(head)
            sys.stdout.buffer.write(numbers)
    except BaseException as error:  # a panic of polars is no Exception
        _write_line({"error": str(error) or type(error).__name__})


def _write_line(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")


def _columns(largest: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """What each column is, and its rows as numbers; sizes are checked before a column is read."""
    os.environ.setdefault("POLARS_MAX_THREADS", THREADS)
    import polars as pl

    lazy = pl.scan_parquet(sys.stdin.buffer)
    schema = lazy.collect_schema()
    rows = lazy.select(pl.len()).collect().item()
    left = largest - 8 * rows * len(schema)
    if left < 0:
        raise ValueError(f"it has {rows:,} rows of {len(schema):,} columns, more than {largest // 8:,} values")
    # Lists and the like are of no use here, and are not unpacked: a few rows of them may hold any number of values.
    unused = {name: str(dtype) for name, dtype in schema.items() if dtype.is_nested() or dtype == pl.Binary}
    for series in lazy.with_columns(pl.lit(0.0).alias(name) for name in unused).collect():
        kind, numbers = _encoded(series)
        if (levels := kind.get("levels")) is not None:
            left -= TEXT * len(levels) + levels.str.len_bytes().sum()
            if left < 0:
                raise ValueError(f"its different texts take more than {largest:,} bytes")
            kind["levels"] = levels.to_list()
        if series.name in unused:
            kind["levels"] = [[unused[series.name]]]  # a list, as what it stands for, so that it is no category
        yield {"name": series.name, "rows": len(series), **kind}, numbers.cast(pl.Float64).to_numpy()


def _encoded(series: Any) -> tuple[dict[str, Any], Any]:
    """What the numbers of a column mean (places in ``levels``, times of a ``dtype`` of numpy), and the numbers."""
    import polars as pl

    if series.dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        texts = series.cast(pl.String)
        levels = texts.drop_nulls().unique()
        return {"levels": levels}, texts.cast(pl.Enum(levels)).to_physical()
    if series.dtype == pl.Date:
        return {"dtype": "datetime64[D]"}, series.to_physical()
    if series.dtype == pl.Time:
        return {"dtype": "timedelta64[us]"}, series.to_physical() // 1000
    if series.dtype.is_temporal():
        dtype = "timedelta64[us]" if series.dtype == pl.Duration else "datetime64[us]"
        return {"dtype": dtype}, series.dt.cast_time_unit("us").to_physical()
    return {}, series


def _limit_memory(n_bytes: int) -> None:
    """Limit the heap, not the address space: polars reserves more addresses than it uses."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    n_bytes = n_bytes if soft == resource.RLIM_INFINITY else min(n_bytes, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a file that ends this process leaves nothing behind


if __name__ == "__main__":
    sys.path += sys.argv[2:]  # last, so that a file of the user's called json.py is not imported
    main(int(sys.argv[1]))
