"""The process that reads a Parquet file for :mod:`gossamer.data.own.files`; a hostile file may end it.

polars ends its process if a file asks for more memory than there is, and a small file may unpack to any size: so it
runs where it may die, in bounded memory. The file is its standard input, and the table in Arrow's format its standard
output. It is run by its path and imports nothing of Gossamer, which would bring torch.
"""

import os
import sys
from typing import Any

THREADS = "4"  # of polars, whose stacks count as memory
TEXT = 64  # bytes that a text takes in Python beside its letters


def main(largest: int) -> None:
    """Write a table of at most ``largest`` bytes, with twice as much memory."""
    _limit_memory(2 * largest)
    try:
        read(largest).write_ipc(sys.stdout.buffer)
    except BaseException as error:  # a panic of polars is no Exception
        sys.exit(" ".join(str(error).split()) or type(error).__name__)


def read(largest: int) -> Any:
    """The data frame: numbers are Float64, texts Enum; of other types only times, and what a column had been."""
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
    table = lazy.with_columns(pl.lit(None, pl.Float64).alias(name) for name in unused).collect()
    columns = []
    for series in table:
        kind = series.dtype
        if series.name in unused:
            column = pl.repeat(unused[series.name], rows, dtype=pl.String, eager=True).alias(series.name)
        elif kind in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            texts = series.cast(pl.String)
            levels = texts.drop_nulls().unique()
            left -= TEXT * len(levels) + levels.str.len_bytes().sum()
            if left < 0:
                raise ValueError(f"its different texts take more than {largest:,} bytes")
            column = texts.cast(pl.Enum(levels))
        elif kind.is_temporal():
            times = {pl.Datetime: pl.Datetime("us"), pl.Duration: pl.Duration("us"), pl.Time: pl.Duration("us")}
            column = series.cast(times.get(kind.base_type(), kind))
        else:
            column = series.cast(pl.Float64)
        columns.append(column)
    return pl.DataFrame(columns)


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
