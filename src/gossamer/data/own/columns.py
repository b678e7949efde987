"""From a table as people have it to numbers: categories, missing values and dates.

What is learnt from the training rows is plain data, so that a saved model holds it:

- A column of numbers stays as it is. If some are missing, the median takes their place, and one more column says where.
- A category becomes one column of zeros and ones per level. A missing category is a level of its own. A level that the
  training rows do not have is zero in all of them, with a warning.
- A date is an error: only you know whether its month, its weekday or the time since a start matters; so is a text.
"""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Columns", "Frame", "is_data_frame"]

Array = npt.NDArray[Any]

MAX_LEVELS = 255  # as in scikit-learn's boosting: a column with more is a name or a text
FEW_LEVELS = 20  # a column with more is one, too, if most rows have a level of their own
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([T ].*)?")


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become numbers: first those of numbers, then where one was missing, then categories.

    Attributes:
        n_columns: Number of columns of the table.
        names: Their names; ``None`` for an array.
        missing: Which columns of numbers had missing values in training.
        fill: The medians that take their place.
        levels: Levels of each category; ``None`` is a missing one.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [30.0, None, 50.0, 20.0], "town": ["Ulm", "Bonn", None, "Ulm"]})
        >>> columns = Columns.fit(table)
        >>> columns.apply(table)  # age, no age, Bonn, Ulm, no town
        array([[30.,  0.,  0.,  1.,  0.],
               [30.,  1.,  1.,  0.,  0.],
               [50.,  0.,  0.,  0.,  1.],
               [20.,  0.,  0.,  1.,  0.]])
        >>> columns.source
        array([0, 0, 1, 1, 1])
    """

    n_columns: int
    names: list[str] | None = None
    missing: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    fill: Array = field(default_factory=lambda: np.zeros(0))
    levels: dict[int, list[str | None]] = field(default_factory=dict)

    @classmethod
    def fit(cls, table: Any, weight: Array | None = None) -> Columns:
        """Learn medians and levels from a data frame, an array or a sparse matrix; rows count by their ``weight``."""
        names = [str(name) for name in table.columns] if is_data_frame(table) else None
        plain = cls(table.shape[1], names)
        if _is_sparse(table):
            return plain
        weight = np.ones(len(table)) if weight is None else weight
        numbers, labels = plain._read(table, None)
        missing = np.setdiff1d(np.flatnonzero(np.isnan(numbers).any(axis=0)), list(labels))
        fill = np.array([_median(numbers[:, j], weight) for j in missing])
        levels = {j: _levels(plain._name(j), column) for j, column in labels.items()}
        return cls(plain.n_columns, names, missing, fill, levels)

    def apply(self, table: Any, means: Array | None = None) -> Any:
        """The table as numbers, ``(rows, len(source))``; ``means`` of its numbers fill gaps that are new."""
        if _is_sparse(table):
            return self._whole(table)
        if self.levels and not is_data_frame(table):
            raise ValueError(
                f"column {self._name(min(self.levels))!r} held categories in training: give a data frame with the "
                "columns of the training, not an array"
            )
        numbers, labels = self._read(table, self.levels)
        lost = np.isnan(numbers)
        numbers = self._with_means(numbers, lost, means)
        if not len(self.missing) and not self.levels:
            return numbers
        where = lost[:, self.missing]
        numbers[:, self.missing] = np.where(where, self.fill, numbers[:, self.missing])
        of_levels = [self._one_hot(j, labels[j]) for j in self.levels]
        return np.hstack([numbers[:, self._plain], where.astype(numbers.dtype), *of_levels])

    def is_consistent(self) -> bool:
        """Whether all parts speak of columns that there are, each of one kind: a file may say anything."""
        missing, kinds = self.missing.tolist(), self.missing.dtype.kind + self.fill.dtype.kind
        named = [*missing, *self.levels]
        return (
            kinds == "if"
            and self.missing.shape == self.fill.shape == (len(missing),)
            and bool(np.isfinite(self.fill).all())
            and len(set(named)) == len(named)
            and all(0 <= j < self.n_columns for j in named)
            and (self.names is None or len(self.names) == self.n_columns)
        )

    @property
    def source(self) -> Array:
        """Which column of the table each number comes from."""
        of_levels = [np.full(len(levels), j) for j, levels in self.levels.items()]
        return np.concatenate([self._plain, self.missing, *of_levels]).astype(np.int64)

    @property
    def _plain(self) -> Array:
        return np.setdiff1d(np.arange(self.n_columns), list(self.levels), assume_unique=True)

    def _read(self, table: Any, categories: Collection[int] | None) -> tuple[Array, dict[int, Array]]:
        """Numbers, NaN where there are none, and the labels of ``categories``; ``None`` finds out which those are."""
        if not is_data_frame(table):
            return np.array(table) if len(self.missing) else np.asarray(table), {}
        names = [str(name) for name in table.columns]
        if names != self.names and self.names is not None:
            raise ValueError(f"the columns must be those of the training, {self.names}; got {names}")
        numbers, labels, problems = np.full(table.shape, np.nan), {}, []
        for j in range(table.shape[1]):
            column = table.iloc[:, j] if hasattr(table, "iloc") else table[names[j]]  # pandas may have a name twice
            try:
                if _is_category(names[j], column) if categories is None else j in categories:
                    labels[j] = np.array([_label(value) for value in column], dtype=object)
                    if categories is None:
                        _levels(names[j], labels[j])
                else:
                    numbers[:, j] = _numbers(names[j], column)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        return numbers, labels

    def _one_hot(self, j: int, column: Array) -> Array:
        levels = self.levels[j]
        unknown = set(column) - set(levels)
        if unknown:
            named = ", ".join(sorted("missing" if label is None else repr(label) for label in unknown))
            warnings.warn(
                f"column {self._name(j)!r} has categories that the training rows do not have: {named}. These rows are "
                "predicted as having none of the known ones",
                stacklevel=2,
            )
        return np.asarray(column[:, None] == np.array(levels, dtype=object), dtype=np.float64)

    def _with_means(self, numbers: Array, lost: Array, means: Array | None) -> Array:
        new = np.setdiff1d(np.flatnonzero(lost.any(axis=0)), [*self.missing, *self.levels])
        if len(new):
            names = ", ".join(f"column {self._name(j)!r}" for j in new.tolist())
            text = f"{names} has missing values (NaN), but had none in training"
            if means is None:
                raise ValueError(f"{text}: impute them, or train with rows in which it is missing")
            warnings.warn(f"{text}: the mean of the training rows takes their place", stacklevel=2)
            numbers = numbers.copy()
            numbers[:, new] = np.where(lost[:, new], means[np.searchsorted(self._plain, new)], numbers[:, new])
        return numbers

    def _whole(self, table: Any) -> Any:
        if np.isnan(table.data).any():
            raise ValueError("a sparse matrix must have no missing values (NaN): impute them, or give a dense array")
        if len(self.missing) or self.levels:
            return self.apply(table.toarray())
        return table

    def _name(self, j: int) -> object:
        return self.names[j] if self.names else j


class Frame:
    """The little that :class:`Columns` needs of a data frame, for tables from files: named arrays of equal length.

    Numbers are float64, with NaN where one is missing; everything else is of dtype object, with ``None``.

    Example:
        >>> frame = Frame({"age": np.array([30.0, np.nan]), "town": np.array(["Ulm", None], dtype=object)})
        >>> frame.shape, frame.take(np.array([1]))["age"], frame.select(["town"]).columns
        ((2, 2), array([nan]), ['town'])
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = dict(arrays)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._arrays)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self._arrays)

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values()), ()))

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def select(self, names: Sequence[str]) -> Frame:
        """These columns, in this order."""
        return Frame({name: self._arrays[name] for name in names})

    def take(self, rows: Array) -> Frame:
        """These rows."""
        return Frame({name: array[rows] for name, array in self._arrays.items()})


def is_data_frame(table: Any) -> bool:
    """Whether this is a data frame of pandas or polars, without importing either; one of sparse columns is a matrix."""
    if isinstance(table, Frame):
        return True
    packages = {kind.__module__.partition(".")[0] for kind in type(table).__mro__ if kind.__name__ == "DataFrame"}
    return bool(packages & {"pandas", "polars"}) and not hasattr(table, "sparse")


def _is_category(name: object, column: Any) -> bool:
    if str(column.dtype).startswith(("category", "Categorical", "Enum")):
        return True
    kind = np.asarray(column).dtype.kind
    if kind in "biuf":
        return False
    values = [value for value in column if not _is_missing(value)]
    if kind in "mM" or any(map(_is_date, values)):
        raise _date(name)
    return any(isinstance(value, str) for value in values)


def _numbers(name: object, column: Any) -> Array:
    values = np.asarray(column)
    if values.dtype.kind not in "biuf":
        values = np.array([np.nan if _is_missing(value) else _number(name, value) for value in column])
    if np.isinf(values).any():
        raise ValueError(f"column {name!r} holds infinity: replace it, or mark it as missing (NaN)")
    return np.asarray(values, dtype=np.float64)


def _number(name: object, value: Any) -> float:
    if isinstance(value, Real | Decimal | np.bool_):
        return float(value)
    raise ValueError(f"column {name!r} must hold numbers, but holds {value!r}: replace it, or drop the column")


def _levels(name: object, column: Array) -> list[str | None]:
    labels = set(column)
    named = sorted(labels - {None})
    if named and all(map(DATE.fullmatch, named)):
        raise _date(name)
    most = min(MAX_LEVELS, max(FEW_LEVELS, len(column) // 2))
    if len(named) > most:
        raise ValueError(
            f"column {name!r} has {len(named)} different texts in {len(column)} rows, more than {most} "
            "categories: drop it, or join the rare ones"
        )
    return [*named, None] if None in labels else named


def _date(name: object) -> ValueError:
    return ValueError(
        f"column {name!r} holds dates: replace it by numbers, as table[{name!r}].dt.month or "
        f"(table[{name!r}] - start).dt.days, or drop it"
    )


def _is_sparse(table: Any) -> bool:
    """Whether this is a matrix of scipy.sparse, without importing it."""
    return type(table).__module__.startswith("scipy.sparse")


def _median(values: Array, weight: Array) -> float:
    """The smallest number that half of the weight does not exceed; 0 if all are missing."""
    known = ~np.isnan(values)
    order = np.argsort(values[known], kind="stable")
    if not len(order):
        return 0.0
    below = np.cumsum(weight[known][order])
    return float(values[known][order[np.searchsorted(below, below[-1] / 2)]])


def _label(value: Any) -> str | None:
    """A level as text: 1, 1.0 and "1" are the same one, because a missing value makes whole numbers into floats."""
    if _is_missing(value):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # pandas.NA and NaT


def _is_date(value: Any) -> bool:
    dates = datetime.date | datetime.time | datetime.timedelta | np.datetime64 | np.timedelta64
    return isinstance(value, dates) or type(value).__name__ == "Period"
