"""A table in a file, one example per row: categories one-hot, missing numbers imputed with an indicator."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.data.own import shortened
from gossamer.data.own.columns import Columns, Frame
from gossamer.data.own.files import kind_of, read_frame, read_labelled, read_numbers
from gossamer.data.own.record import columns_of, labels_of, own_task, split_examples
from gossamer.types import Task

Array = npt.NDArray[Any]


def load(
    root: str | Path | None = None,
    *,
    path: Path,
    target: str | None = None,
    drop: Sequence[str] | str = (),
    task: str | None = None,
    n_val: int | None = None,
) -> Task:
    """The task in a file with a table, such as ``.csv`` or ``.parquet``.

    A fifth of the rows is for testing and a tenth of the rest is held out, always the same ones.

    Args:
        root: Not used.
        path: The file; its first line has the names of the columns.
        target: The column to predict.
        drop: Columns to leave out.
        task: ``"classification"`` or ``"regression"``; by the values of the target if not given.
        n_val: How many of the rows that are not for testing to hold out for choices.
    """
    drop = [name.strip() for name in drop.split(",")] if isinstance(drop, str) else list(drop)
    frame, n_lost = read_labelled(path, target, drop)
    if target is None:
        raise ValueError(
            f"{path.name}: which column is to be predicted? Give its name as target (--target): "
            f"{shortened(frame.columns)}"
        )
    train, val, test = split_examples(len(frame), n_val, path.name)
    labels = labels_of(frame[target], target, task, train, path.name)
    names = [name for name in frame.columns if name != target and name not in drop]
    if not names:
        raise ValueError(f"{path.name} has no column beside the target {target!r} to predict it from")
    columns, x = _encoded(frame.select(names), train, path.name)
    more: dict[str, Any] = {"columns": _plain(columns), "dropped": drop, "n_without_target": n_lost}
    return own_task("table", path, x, labels, (train, val, test), **more)


def _encoded(frame: Frame, train: Array, where: str) -> tuple[Columns, Tensor]:
    """Missing values and categories come from all rows, medians from the training rows alone."""
    weight = np.zeros(len(frame))
    weight[train] = 1.0
    try:
        columns = Columns.fit(frame, weight)
        return columns, torch.from_numpy(np.ascontiguousarray(columns.apply(frame), dtype=np.float64))
    except ValueError as error:
        raise ValueError(f"{where}: {error} (--drop NAME,NAME leaves columns out)") from error


def read(record: Mapping[str, Any], path: Path | str) -> tuple[Tensor, dict[str, list[str]]]:
    """The rows of a table, found by the names of its columns, or of an array with the columns in their order."""
    columns = columns_of(record)
    assert columns.names is not None
    means = np.array(record["transform"]["mean"])
    if kind_of(path).table is None:
        return torch.from_numpy(np.asarray(columns.apply(read_numbers(path), means), dtype=np.float64)), {}
    frame = read_frame(path)
    lost = [name for name in columns.names if name not in frame.columns]
    if lost:
        raise ValueError(f"{path} has no column {lost[0]!r}; the training had {shortened(columns.names)}")
    x = columns.apply(frame.select(columns.names), means)
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float64)), {}


def describe(record: Mapping[str, Any]) -> dict[str, str]:
    """What the columns were taken for."""
    columns = columns_of(record)
    names = columns.names or []
    numbers = [name for j, name in enumerate(names) if j not in columns.levels]
    categories = [f"{names[j]} ({len(levels)})" for j, levels in columns.levels.items()]
    lost = [names[j] for j in columns.missing.tolist()]
    found = {
        "numbers": shortened(numbers),
        "categories": shortened(categories),
        "missing in": f"{shortened(lost)}: the median takes their place, and one more input says where" if lost else "",
        "dropped": shortened(record["dropped"]),
        "left out": f"{record['n_without_target']} rows without a target" if record["n_without_target"] else "",
    }
    return {name: text for name, text in found.items() if text}


def _plain(columns: Columns) -> dict[str, Any]:
    levels = {str(j): levels for j, levels in columns.levels.items()}
    return {
        "names": columns.names,
        "missing": columns.missing.tolist(),
        "fill": columns.fill.tolist(),
        "levels": levels,
    }
