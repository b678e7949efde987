"""From a table to a task: equal rows merged, columns and targets standardised.

Weights are counts: a row of weight 3 is the same as three equal rows, and one of weight 0 as no row. This holds to the
bit, because rows are merged and sorted by their content before anything random happens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from gossamer.estimators.members import WithoutFolds
from gossamer.likelihoods import Weighted
from gossamer.types import Likelihood, Split, Task, identity

Array = npt.NDArray[Any]


class Rows(NamedTuple):
    """Rows of a table: inputs ``(rows, columns)``, dense or in CSR format, targets ``(rows, targets)`` and weights."""

    x: Any
    y: Array
    weight: Array

    def take(self, index: Array) -> Rows:
        """The rows at ``index``."""
        return Rows(self.x[index], self.y[index], self.weight[index])


def merged(rows: Rows) -> Rows:
    """Drop rows of weight zero, merge equal ones, and order them by their content alone."""
    x, y = rows.x, rows.y + 0.0  # -0.0 is 0.0
    if sparse.issparse(x):
        x = x.tocsr(copy=True)
        x.sum_duplicates()
        x.eliminate_zeros()
    first: dict[bytes, int] = {}
    weight: dict[bytes, float] = {}
    for i, key in enumerate(_digests(x, y)):
        if rows.weight[i] > 0:
            first.setdefault(key, i)
            weight[key] = weight.get(key, 0.0) + float(rows.weight[i])
    keys = sorted(first)
    index = np.array([first[key] for key in keys], dtype=np.int64)
    return Rows(x[index], y[index], np.array([weight[key] for key in keys]))


@dataclass(frozen=True)
class Scaling:
    """Columns and how they are standardised: ``(x[:, columns] - mean) * scale``."""

    columns: Array
    mean: Array
    scale: Array

    @classmethod
    def of(cls, x: Any, weight: Array, drops_constant: bool = True) -> Scaling:
        """Mean 0 and std 1 over weighted rows; a constant column is dropped, or set to 0."""
        mean, std, is_constant = _moments(x, weight)
        columns = np.flatnonzero(~is_constant) if drops_constant else np.arange(x.shape[1])
        if not len(columns):  # a network has at least one input, which is then always 0
            columns = np.zeros(1, dtype=np.int64)
        scale = np.divide(1.0, std, out=np.zeros_like(std), where=~is_constant)
        return cls(columns, mean[columns], scale[columns])

    def only(self, index: Array) -> Scaling:
        """The columns at ``index``."""
        return Scaling(self.columns[index], self.mean[index], self.scale[index])

    def apply(self, x: Any) -> Array:
        """The standardised columns, dense."""
        part = x if len(self.columns) == x.shape[1] else x[:, self.columns]
        part = part.toarray() if sparse.issparse(part) else part
        result: Array = (part - self.mean) * self.scale
        return result

    def undo(self, x: Array) -> Array:
        """Back in the original units."""
        result: Array = x * self.std + self.mean
        return result

    @property
    def std(self) -> Array:
        """Standard deviation of each column; 0 where the scale is."""
        result: Array = np.divide(1.0, self.scale, out=np.zeros_like(self.scale), where=self.scale > 0)
        return result


def task_of(rows: Rows, scaling: Scaling, likelihood: Likelihood, n_outputs: int) -> Task:
    """The task of training on ``rows``, whose targets are as the network predicts them.

    The mean weight is 1 in the loss, and the sum of the weights is the N that divides the KL: the
    objective is that of a table in which each row is repeated as often as its weight.
    """
    total = float(rows.weight.sum())
    x: Tensor
    transform: Callable[[Tensor], Tensor] = identity
    if sparse.issparse(rows.x):
        x, transform = torch.arange(rows.x.shape[0]).unsqueeze(1), _SparseRows(rows.x, scaling)
    else:
        x = torch.from_numpy(scaling.apply(rows.x).astype(np.float32))
    if (rows.weight == rows.weight[0]).all():
        y = targets_of(likelihood, rows.y.astype(np.float32))
    else:
        y = torch.from_numpy(np.column_stack([rows.y, rows.weight / rows.weight.mean()])).float()
        likelihood = Weighted(likelihood)
    nothing: Split = (x[:0], y[:0])
    return Task((x, y), nothing, nothing, likelihood, n_outputs, "table", transform, total_weight=total)


def without_folds(task: Task, rows: Rows, fold: Array, likelihood: Likelihood) -> Task:
    """The task of networks that each ignore the rows of one fold; ``task`` is that of all rows."""
    n = int(fold.max()) + 1
    y = torch.from_numpy(np.column_stack([rows.y, rows.weight / rows.weight.mean(), fold])).float()
    total = float(rows.weight.sum()) * (n - 1) / n
    return task._replace(train=(task.train[0], y), likelihood=WithoutFolds(likelihood, n), total_weight=total)


def targets_of(likelihood: Likelihood, y: Array) -> Tensor:
    """Targets ``(rows, targets)`` in the form that the likelihood reads: for classes, whole numbers ``(rows,)``."""
    targets = torch.from_numpy(y)
    return targets[:, 0].long() if likelihood.kind == "classification" else targets


class _SparseRows:
    """Row numbers -> those rows of a sparse matrix, dense and standardised: only a batch is ever dense."""

    def __init__(self, x: Any, scaling: Scaling) -> None:
        scaled = x[:, scaling.columns].astype(np.float64)
        scaled.data *= scaling.scale[scaled.indices]
        self.x = scaled.astype(np.float32)
        self.offset = (scaling.mean * scaling.scale).astype(np.float32)

    def __call__(self, rows: Tensor) -> Tensor:
        dense = self.x[rows.cpu().numpy().ravel()].toarray()
        dense -= self.offset
        return torch.from_numpy(dense).to(rows.device)


def _digests(x: Any, y: Array) -> Iterator[bytes]:
    """A digest of the content of each row: its nonzero inputs, their columns, and its targets."""
    for i in range(len(y)):
        if sparse.issparse(x):
            part = slice(x.indptr[i], x.indptr[i + 1])
            position, value = x.indices[part], x.data[part]
        else:
            position = np.flatnonzero(x[i])
            value = x[i][position]
        content = (position.astype(np.int64), value.astype(np.float64), y[i].astype(np.float64))
        yield hashlib.blake2b(b"".join(part.tobytes() for part in content), digest_size=16).digest()


def _moments(x: Any, weight: Array) -> tuple[Array, Array, Array]:
    """Mean and std of each column over weighted rows, and whether it is constant; in two passes, for the digits."""
    share = weight / weight.sum()
    if sparse.issparse(x):
        x = x.tocsc().astype(np.float64)
        mean = np.asarray(x.T @ share).ravel()
        of_entry = np.repeat(np.arange(x.shape[1]), np.diff(x.indptr))
        rest = 1 - np.bincount(of_entry, share[x.indices], x.shape[1])  # the weight of the zeros
        squares = share[x.indices] * (x.data - mean[of_entry]) ** 2
        variance = np.bincount(of_entry, squares, x.shape[1]) + rest.clip(0) * mean**2
        low, high = (np.asarray(bound.toarray()).ravel() for bound in (x.min(axis=0), x.max(axis=0)))
    else:
        x = np.asarray(x, dtype=np.float64)
        mean = share @ x
        variance = share @ (x - mean) ** 2
        low, high = x.min(axis=0), x.max(axis=0)
    constant = low == high  # not std == 0, which rounding can make 1e-16
    return np.where(constant, low, mean), np.sqrt(variance), constant | (variance <= 0)
