"""The record of own data, plain values for JSON, and the task that it describes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.data._files import DataNotFoundError
from gossamer.data._images import Normalize, split_rows
from gossamer.data.own.columns import Columns
from gossamer.data.uci import Standardize, mean_and_std
from gossamer.files.schema import Count, Finite, check
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.types import Split, Task

Array = npt.NDArray[Any]

TEST_SHARE = 5  # a fifth of the examples is for testing, where the data do not say which
MAX_CLASSES = 20  # whole numbers with more distinct values than this are quantities
MIN_ROWS = 10
MAX_INPUTS = 2**26  # numbers of one example


class Source(TypedDict):
    """The file, or all files of a folder."""

    path: str
    bytes: Count
    sha256: str


class Sizes(TypedDict):
    """Numbers of examples."""

    train: Count
    val: Count
    test: Count


class Transform(TypedDict):
    """By column or channel, over the training examples."""

    mean: list[Finite]
    std: list[Finite]


class Target(TypedDict):
    """Its name, and ``classes`` or ``mean`` and ``std``."""

    name: str
    classes: NotRequired[list[str]]
    mean: NotRequired[Finite]
    std: NotRequired[Finite]


class TableColumns(TypedDict):
    """See :class:`gossamer.data.own.columns.Columns`."""

    names: list[str]
    missing: list[Count]
    fill: list[Finite]
    levels: dict[str, list[str | None]]


class Record(TypedDict):
    """What is kept of own data.

    ``shape`` and ``dtype`` are those of one stored input, ``low`` and ``high`` the range of the training inputs by
    column, or over all pixels. ``selected`` are the inputs that a network reads, if not all.
    """

    kind: Literal["table", "arrays", "images"]
    name: str
    source: Source
    sizes: Sizes
    shape: list[Count]
    dtype: Literal["uint8", "float32", "float64"]
    transform: Transform
    low: list[Finite]
    high: list[Finite]
    target: Target
    columns: NotRequired[TableColumns]
    dropped: NotRequired[list[str]]
    n_without_target: NotRequired[Count]
    resized: NotRequired[bool]
    selected: NotRequired[list[Count]]


OF_KIND = {"table": {"columns", "dropped", "n_without_target"}, "arrays": set[str](), "images": {"resized"}}


def check_record(record: dict[str, Any], where: object) -> dict[str, Any]:
    """The record, if a task can be made of it; otherwise a ``ValueError`` that names the file and the field."""
    fix = "restore the file, or train again"
    check(record, Record, where, fix)
    shape, target, scale = record["shape"], record["target"], record["transform"]
    n_inputs = len(shape) and shape[0]
    lists = [scale["mean"], scale["std"], *((record["low"], record["high"]) if len(shape) == 1 else ())]
    n_expected = len(columns_of(record, where).source) if "columns" in record else n_inputs
    for holds, field, problem in [
        (len(shape) in (1, 3) and 0 < math.prod(shape) <= MAX_INPUTS, "shape", f"must be of one example; got {shape}"),
        (all(len(part) == n_inputs for part in lists), "transform", f"must have {n_inputs} means and stds"),
        (len(record["low"]) == len(record["high"]) > 0, "low", "must be as long as high"),
        (target.get("classes") or {"mean", "std"} <= target.keys(), "target", "must have classes, or mean and std"),
        (OF_KIND[record["kind"]] <= record.keys(), "kind", f"is {record['kind']}, whose fields are missing"),
        (n_expected == n_inputs, "columns", f"must give {n_inputs} inputs"),
        (all(std > 0 for std in scale["std"]), "transform/std", "must be positive"),
        (_is_selection(record, n_inputs), "selected", f"must be some of {n_inputs} inputs"),
    ]:  # fmt: skip
        if not holds:
            raise ValueError(f"{where}: own/{field} {problem}; {fix}")
    return record


def _is_selection(record: Mapping[str, Any], n_inputs: int) -> bool:
    selected = record.get("selected")
    return selected is None or (len(record["shape"]) == 1 and len(selected) > 0 and max(selected) < n_inputs)


def columns_of(record: Mapping[str, Any], where: object = "the record") -> Columns:
    """How the columns of a table became numbers."""
    plain = record["columns"]
    n = len(plain["names"])
    levels = {int(j) if j.isascii() and j.isdigit() else -1: list(levels) for j, levels in plain["levels"].items()}
    missing, fill = np.array(plain["missing"], dtype=np.int64), np.array(plain["fill"], dtype=np.float64)
    columns = Columns(n, list(plain["names"]), missing, fill, levels)
    if not columns.is_consistent():
        raise ValueError(f"{where}: own/columns do not fit each other; restore the file, or train again")
    return columns


def labels_of(values: Array, name: str, task: str | None, train: Array, where: str) -> tuple[Array, dict[str, Any]]:
    """Targets as a task stores them, and what turns predictions back: ``classes``, or ``mean`` and ``std``.

    Classes from texts and from few whole numbers, otherwise numbers; ``task`` decides instead of the values.
    """
    is_number = values.dtype.kind in "iuf"
    whole = is_number and bool((values == np.round(values)).all())
    distinct = np.unique(values) if is_number else np.array(sorted({str(value) for value in values}))
    if task == "regression" and not is_number:
        raise ValueError(f"{where}: the target {name!r} holds {values[0]!r}, so task cannot be regression")
    if task == "regression" or (task is None and is_number and not (whole and len(distinct) <= MAX_CLASSES)):
        mean, std = mean_and_std(values[train][:, None].astype(np.float64))
        y = ((values[:, None] - mean) / std).astype(np.float32)
        return y, {"name": name, "mean": float(mean[0]), "std": float(std[0])}
    if len(distinct) < 2:
        raise ValueError(f"{where}: every example has the same target, {distinct[0]}: there is nothing to learn")
    if len(distinct) > len(values) // 2:
        raise ValueError(
            f"{where}: the target {name!r} has {len(distinct)} classes in {len(values)} examples: give another target"
            + (", or task regression" if is_number else "")
        )
    is_whole = distinct.dtype.kind in "iu" or (distinct.dtype.kind == "f" and bool((distinct % 1 == 0).all()))
    names = [str(int(value)) if is_whole else str(value) for value in distinct.tolist()]
    y = np.searchsorted(distinct, values if is_number else values.astype(str)).astype(np.int64)
    return y, {"name": name, "classes": names}


def split_examples(n: int, n_val: int | None, where: str) -> tuple[Array, Array, Array]:
    """Rows for training, for choices and for testing, in one random order that depends on ``n`` alone."""
    if n < MIN_ROWS:
        raise ValueError(f"{where}: at least {MIN_ROWS} examples are needed to train and test; it has {n}")
    rest, test = split_rows(n, n // TEST_SHARE)
    train, val = split_rows(len(rest), n_val)
    return rest[train].numpy(), rest[val].numpy(), test.numpy()


def own_task(
    kind: str,
    path: Path,
    x: Tensor,
    labels: tuple[Array, dict[str, Any]],
    parts: tuple[Array, Array, Array],
    files: Iterable[Path] | None = None,
    **more: Any,
) -> Task:
    """The task of a file, or of the ``files`` of a folder; ``parts`` are the rows for training, choices and testing."""
    record = {
        "kind": kind,
        "name": path.stem if files is None else path.name,
        "source": file_fingerprint(path, files),
        "sizes": {name: len(rows) for name, rows in zip(("train", "val", "test"), parts, strict=True)},
        "target": labels[1],
        **more,
        **describe_inputs(x[parts[0]]),
    }
    y = torch.from_numpy(labels[0])
    train, val, test = ((x[rows], y[rows]) for rows in parts)
    return task_of(record, train, val, test)


def describe_inputs(x: Tensor) -> dict[str, Any]:
    """Shape, type, transform and range of the training inputs ``(rows, columns)`` or ``(rows, channels, …)``."""
    parts = x.double().transpose(0, 1).flatten(1) / (255 if x.dtype == torch.uint8 else 1)  # (columns, numbers)
    mean, std = mean_and_std(parts.T.numpy())
    is_table = x.dim() == 2
    low, high = (x.amin(0), x.amax(0)) if is_table else (x.amin().reshape(1), x.amax().reshape(1))
    return {
        "shape": list(x.shape[1:]),
        "dtype": str(x.dtype).removeprefix("torch."),
        "transform": {"mean": mean.tolist(), "std": std.tolist()},
        "low": low.tolist(),
        "high": high.tolist(),
    }


def task_of(record: Mapping[str, Any], train: Split, val: Split, test: Split) -> Task:
    """The task that a record describes, with its data."""
    target = record["target"]
    classes = tuple(target.get("classes", ()))
    scale: dict[str, Any] = {name: tuple(record["transform"][name]) for name in ("mean", "std")}
    selected = {} if "selected" not in record else {"columns": tuple(record["selected"])}
    return Task(
        train,
        val,
        test,
        Categorical() if classes else Gaussian(),
        n_outputs=len(classes) or 2,
        name=record["name"],
        transform=Normalize(**scale) if record["dtype"] == "uint8" else Standardize(**scale, **selected),
        target_mean=target.get("mean", 0.0),
        target_std=target.get("std", 1.0),
        class_names=classes,
        record=record,
    )


def task_without_data(record: Mapping[str, Any]) -> Task:
    """The task of a record for predictions alone: whatever reads its training data gets an error, not wrong data."""
    dtype = getattr(torch, record["dtype"])
    row = torch.zeros(1, *record["shape"], dtype=dtype)
    y = torch.zeros(1, dtype=torch.int64) if "classes" in record["target"] else torch.zeros(1, 1)
    absent = row.as_subclass(_Absent)
    return task_of(record, (absent, y), (row[:0], y[:0]), (row, y))._replace(total_weight=record["sizes"]["train"])


class TrainingDataNeededError(DataNotFoundError):
    """Training data were read that are not here."""


class _Absent(Tensor):
    """Stands for training inputs that are not here: it has a shape and a device, and its numbers cannot be read."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        # No row, or the first one for the shape that a transform gives it; a slice, since tensors compare elementwise.
        if func is Tensor.__getitem__ and isinstance(args[1], slice) and args[1] in (slice(0), slice(1)):
            return args[0].as_subclass(Tensor)[args[1]]
        name = getattr(func, "__name__", "")
        if name not in ("__get__", "to", "as_subclass", "size", "dim", "__len__", "element_size", "numel"):
            raise TrainingDataNeededError("this method reads its training data to predict: put them where they were")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def file_fingerprint(path: Path, files: Iterable[Path] | None = None) -> dict[str, Any]:
    """Size and SHA-256 of a file, or of the names and contents of all ``files`` of a folder."""
    digest, size = hashlib.sha256(), 0
    for file in [path] if files is None else files:
        content = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                content.update(block)
                size += len(block)
        if files is None:
            digest = content
        else:
            digest.update(f"{file.relative_to(path).as_posix()}\0".encode() + content.digest())
    return {"path": str(path), "bytes": size, "sha256": digest.hexdigest()}
