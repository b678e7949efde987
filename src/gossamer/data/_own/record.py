"""The record of own data, plain values for JSON, and the task that it describes.

| key | content |
|---|---|
| ``kind``, ``name`` | ``"table"``, ``"arrays"`` or ``"images"``; the file's name without its ending |
| ``source`` | ``path``, ``bytes`` and ``sha256`` of the file, or of all files of a folder |
| ``sizes`` | examples in ``train``, ``val`` and ``test`` |
| ``shape``, ``dtype`` | of one stored input |
| ``transform`` | ``mean`` and ``std`` by column or channel, over the training examples |
| ``low``, ``high`` | range of the training inputs by column, or over all pixels |
| ``target`` | ``name``, and ``classes`` or ``mean`` and ``std`` |
| ``columns`` | of a table: see :class:`gossamer.columns.Columns` |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.data._files import DataNotFoundError
from gossamer.data._images import Normalize, split_rows
from gossamer.data.uci import Standardize, mean_and_std
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.types import Split, Task

Array = npt.NDArray[Any]

TEST_SHARE = 5  # a fifth of the examples is for testing, where the data do not say which
MAX_CLASSES = 20  # whole numbers with more distinct values than this are quantities
MIN_ROWS = 10


@dataclass(frozen=True)
class Labels:
    """Targets as a task stores them, and what turns predictions back: ``classes``, or ``mean`` and ``std``."""

    y: Array
    target: Mapping[str, Any]

    @classmethod
    def of(cls, values: Array, name: str, task: str | None, train: Array, where: str) -> Labels:
        """Classes from texts and from few whole numbers, otherwise numbers; ``task`` decides instead of the values."""
        is_number = values.dtype.kind in "iuf"
        whole = is_number and bool((values == np.round(values)).all())
        distinct = np.unique(values) if is_number else np.array(sorted({str(value) for value in values}))
        if task == "regression" and not is_number:
            raise ValueError(f"{where}: the target {name!r} holds {values[0]!r}, so task cannot be regression")
        if task == "classification" or (task is None and (not is_number or (whole and len(distinct) <= MAX_CLASSES))):
            return cls._classes(values if is_number else values.astype(str), distinct, name, where)
        mean, std = mean_and_std(values[train][:, None].astype(np.float64))
        y = ((values[:, None] - mean) / std).astype(np.float32)
        return cls(y, {"name": name, "mean": float(mean[0]), "std": float(std[0])})

    @classmethod
    def _classes(cls, values: Array, distinct: Array, name: str, where: str) -> Labels:
        if len(distinct) < 2:
            raise ValueError(f"{where}: every example has the same target, {distinct[0]}: there is nothing to learn")
        if len(distinct) > len(values) // 2:
            raise ValueError(
                f"{where}: the target {name!r} has {len(distinct)} classes in {len(values)} examples: give another "
                "target" + ("" if values.dtype.kind == "U" else ", or task regression")
            )
        is_whole = distinct.dtype.kind in "iu" or (distinct.dtype.kind == "f" and bool((distinct % 1 == 0).all()))
        names = [str(int(value)) if is_whole else str(value) for value in distinct.tolist()]
        return cls(np.searchsorted(distinct, values).astype(np.int64), {"name": name, "classes": names})


def split_examples(n: int, n_val: int | None, where: str) -> tuple[Array, Array, Array]:
    """Rows for training, for choices and for testing, in one random order that depends on ``n`` alone."""
    if n < MIN_ROWS:
        raise ValueError(f"{where} has {n} examples, at least {MIN_ROWS} are needed to train and test")
    rest, test = split_rows(n, n // TEST_SHARE)
    train, val = split_rows(len(rest), n_val)
    return rest[train].numpy(), rest[val].numpy(), test.numpy()


def own_task(
    kind: str,
    path: Path,
    x: Tensor,
    labels: Labels,
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
        "target": dict(labels.target),
        **more,
        **describe_inputs(x[parts[0]]),
    }
    y = torch.from_numpy(labels.y)
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
    scale = {name: tuple(record["transform"][name]) for name in ("mean", "std")}
    return Task(
        train,
        val,
        test,
        Categorical() if classes else Gaussian(),
        n_outputs=len(classes) or 2,
        name=record["name"],
        transform=Normalize(**scale) if record["dtype"] == "uint8" else Standardize(**scale),
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
