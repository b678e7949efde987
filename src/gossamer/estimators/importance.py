"""Which columns matter: how much worse a column's copy predicts rows that were not trained on.

The copy follows the other columns as the original does, but knows nothing else of the target. With the residual
e_j = x_j - E[x_j | other columns] of a linear regression (its covariances shrunk, Ledoit and Wolf 2004), the copy
of row i takes the residual of another row π(i),

    x̃_ij = x_ij - e_ij + e_π(i)j ,

so it is a shadow column (a permutation) where columns are independent, and nearly the original where the others
determine it. If the target depends on x_j through the other columns alone, then x_j and x̃_j are exchangeable, and on a
row that the network does not know

    Δ_i = loss(x̃_i) - loss(x_i)

is zero in the mean, however the network was trained. So a one-sided t-test of mean Δ > 0 suits any network (the
conditional predictive impact of Watson and Wright 2021), and no copy need be trained along. Each row is predicted by a
network that was trained without it (cross-fitting, :func:`folds`). What row i teaches about row k then counts a second
time as what k teaches about i, and t has wider tails than Student's: the p-value is that of |t|, twice the one-sided.
Folds and copies are the same for every ``random_state``, which changes the networks alone.

The loss is the squared error, of numbers or of class probabilities, and the importance of a column is mean Δ over the
variance of the target: by how much R² falls. Columns are selected by Benjamini and Hochberg's rule at a false discovery
rate that you choose. The knockoff filter, which does the same by counting copies, selects at least 1/fdr columns or
none; this rule can select a single one.

Of two columns that are nearly the same, neither is needed beside the other. So columns of which each two have an
absolute correlation of at least 0.9 are a group, copied and tested together. Inside a group that matters, those columns
are picked that matter beside the others, or all if none can be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypedDict

import numpy as np
import torch
from scipy import sparse, stats
from scipy.cluster import hierarchy
from sklearn.covariance import ledoit_wolf_shrinkage
from torch import Tensor
from torch.nn.functional import one_hot

from gossamer.estimators.draws import Draws
from gossamer.estimators.table import Array, Rows, Scaling
from gossamer.types import Likelihood

__all__ = ["ColumnGroup"]

SAME = 0.9  # absolute correlation of any two columns of a group
N_COPIES = 4  # of each row: their mean has less noise
MAX_ROWS = 4096  # enough for a t-test: evidence grows with the rows
MIN_SHRINKAGE = 1e-4  # of covariances: equal columns have no inverse
PICKED = 0.05  # level at which a column stands out from its group
OTHERS = 0.25  # level at which columns that are not selected are read: to miss one costs more than to read an idle one
MAX_COLUMNS = 256  # that are tested, beside each other: the rest have weak weights, and count as found irrelevant
MAX_CELLS = 2**20  # rows times groups: fewer rows where many columns are read


@dataclass(frozen=True)
class ColumnGroup:
    """Columns that stand for each other, often just one.

    Attributes:
        columns: Their indices.
        importance: By how much R² on unknown rows falls without them.
        p_value: Probability of such a fall, or a larger one, if the target does not depend on them.
        of_columns: Importance of each column beside the others of the group.
        p_values: The same of each column.
    """

    columns: Array
    importance: float
    p_value: float
    of_columns: Array
    p_values: Array


def folds(y: Array, n_folds: int) -> Array:
    """Number of the fold of each row; the targets of all folds are distributed alike."""
    fold = np.empty(len(y), dtype=np.int64)
    fold[np.argsort(y, kind="stable")] = np.arange(len(y)) % n_folds
    return fold


def groups_of(
    draws: Sequence[Draws], parts: Sequence[Rows], inputs: Scaling, source: Array, likelihood: Likelihood
) -> list[ColumnGroup]:
    """The groups of columns, the most important first; in a wide table, of those columns that are read most.

    Args:
        draws: Networks that read ``inputs``; without any there are no groups.
        parts: For each of them, rows that it was not trained on, with targets as it predicts them.
        inputs: Which numbers of a row are read, and their scale.
        source: The column of the table that each number was made of; those of one column are copied together.
        likelihood: How outputs are read.
    """
    if not draws:
        return []
    read = np.sort(_most_read(draws, inputs))
    parts, rows, weight = _first_rows(parts, len(read))
    origin = source[inputs.columns]
    numbers = np.flatnonzero(np.isin(origin, origin[_with_twins(rows, weight, inputs, read)]))
    columns, unit = np.unique(origin[numbers], return_inverse=True)
    x = inputs.only(numbers).apply(rows)
    groups = _clusters(_likeness(x, weight, unit))
    alone = [[j] for group in groups if len(group) > 1 for j in group]
    networks = [_Network(one, inputs, numbers, likelihood) for one in draws]
    tested = [np.flatnonzero(np.isin(unit, one)).tolist() for one in [*groups, *alone]]
    rises = _rises(networks, parts, _Copies(x, weight), tested, _Network.squared_error)
    importance, p_value = _t_test(rises / _variance(parts, weight, likelihood), weight)
    own = {j: i for i, (j, *more) in enumerate([*groups, *alone]) if not more}
    found = []
    for i, group in enumerate(groups):
        at = [own[j] for j in group]
        found.append(ColumnGroup(columns[group], float(importance[i]), float(p_value[i]), importance[at], p_value[at]))
    return sorted(found, key=lambda group: -group.importance)


def others_matter(
    draws: Sequence[Draws], parts: Sequence[Rows], inputs: Scaling, selected: Array, likelihood: Likelihood
) -> bool:
    """Whether the columns that are not selected matter together: each may be needless beside the others, not all.

    ``selected`` are positions in ``inputs``. The test is that of a group, at a level of 0.25, with the negative log of
    the predicted density or probability as its loss: what says nothing of the mean may still tell the noise.
    """
    if not len(selected):
        return True
    numbers = np.union1d(selected, _most_read(draws, inputs))
    others = np.flatnonzero(~np.isin(numbers, selected)).tolist()
    if not others:
        return False
    parts, rows, weight = _first_rows(parts, len(numbers))
    copies = _Copies(inputs.only(numbers).apply(rows), weight)
    networks = [_Network(one, inputs, numbers, likelihood) for one in draws]
    _, p_value = _t_test(_rises(networks, parts, copies, [others], _Network.log_loss), weight)
    return bool(p_value[0] < OTHERS)


def column_importances(groups: Sequence[ColumnGroup], n_columns: int) -> Array:
    """Importance of each column: that of its group, or its own if others of its group stand out and it does not."""
    result = np.zeros(n_columns)
    for group in groups:
        own = np.minimum(group.of_columns, group.importance)
        result[group.columns] = np.where(_picked(group), group.importance, own)
    return result.clip(0)


def select(groups: Sequence[ColumnGroup], n_columns: int, fdr: float) -> Array:
    """Which of all columns matter; a share of about ``fdr`` of those selected may be wrong, and 1 selects all.

    Example:
        >>> def alone(column, p):
        ...     return ColumnGroup(np.array([column]), 0.5, p, np.array([0.5]), np.array([p]))
        >>> twins = ColumnGroup(np.array([3, 4]), 0.7, 1e-6, np.array([0.0, 0.0]), np.array([0.4, 0.6]))
        >>> np.flatnonzero(select([twins, alone(0, 1e-5), alone(2, 0.04)], n_columns=10, fdr=0.1))
        array([0, 3, 4])
    """
    if fdr == 1:
        return np.ones(n_columns, dtype=bool)
    n_tests = n_columns - sum(len(group.columns) - 1 for group in groups)
    p_values = np.sort([group.p_value for group in groups])
    accepted = p_values[p_values <= fdr * np.arange(1, len(groups) + 1) / n_tests].max(initial=-1.0)
    mask = np.zeros(n_columns, dtype=bool)
    for group in groups:
        if group.p_value <= accepted:
            mask[group.columns] = _picked(group)
    return mask


class PackedGroups(TypedDict):
    """Of each group its size, importance and p-value, and of each column of the groups the same but for the size."""

    groups: Array
    columns: Array


def packed(groups: Sequence[ColumnGroup]) -> PackedGroups:
    """The groups as a few arrays, which take little room in a file."""
    of_groups = ([len(group.columns), group.importance, group.p_value] for group in groups)
    of_columns = (np.column_stack([group.columns, group.of_columns, group.p_values]) for group in groups)
    return {
        "groups": np.array(list(of_groups), dtype=np.float64).reshape(-1, 3),
        "columns": np.concatenate([np.zeros((0, 3)), *of_columns]),
    }


def unpacked(arrays: PackedGroups) -> list[ColumnGroup]:
    """The inverse of :func:`packed`."""
    ends = np.cumsum(arrays["groups"][:, 0]).astype(np.int64)
    parts = np.split(arrays["columns"], ends[:-1])
    return [
        ColumnGroup(part[:, 0].astype(np.int64), float(importance), float(p_value), part[:, 1], part[:, 2])
        for part, (_, importance, p_value) in zip(parts, arrays["groups"], strict=False)
    ]


def _picked(group: ColumnGroup) -> Array:
    """The columns of a group that matter beside the others, by Bonferroni's rule; all, if none does."""
    stands_out: Array = group.p_values <= PICKED / len(group.columns)
    return stands_out if stands_out.any() else ~stands_out


def _most_read(draws: Sequence[Draws], inputs: Scaling) -> Array:
    """The columns with the largest sums of the squared weights that read them."""
    strength = np.zeros(len(inputs.columns))
    for one in draws:
        first = one.architecture.first_weight
        column = one.columns[one.position[first] % one.architecture.n_inputs].numpy()
        squares = one.values[first].double().square().sum(0).numpy()
        strength += np.bincount(column, squares, len(strength))
    most: Array = np.argsort(-strength, kind="stable")[:MAX_COLUMNS]
    return most


def _first_rows(parts: Sequence[Rows], n_columns: int) -> tuple[list[Rows], Any, Array]:
    """As many rows as fit, in random order already; their inputs and weights also joined."""
    n_rows = int(np.clip(MAX_CELLS // n_columns, 512, MAX_ROWS)) // len(parts) + 1
    parts = [part.take(np.arange(min(n_rows, len(part.y)))) for part in parts]
    inputs, weight = [part.x for part in parts], np.concatenate([part.weight for part in parts])
    return parts, sparse.vstack(inputs, "csr") if sparse.issparse(inputs[0]) else np.concatenate(inputs), weight


def _with_twins(rows: Any, weight: Array, inputs: Scaling, read: Array) -> Array:
    """The columns that are read, and those that are nearly the same as one of them: a network may read just one."""
    known = inputs.only(read).apply(rows)
    share = weight / weight.sum()
    known = (known - share @ known) * share[:, None]  # its columns sum to zero: the means of the others do not count
    every = rows if len(inputs.columns) == rows.shape[1] else rows[:, inputs.columns]
    correlation = np.abs(every.T @ known) * inputs.scale[:, None]
    return np.union1d(read, np.flatnonzero(correlation.max(axis=1) >= SAME))


def _moments(x: Array, weight: Array) -> tuple[Array, Array]:
    """The centred columns and their covariance over weighted rows."""
    share = weight / weight.sum()
    centred = x - share @ x
    return centred, (centred * share[:, None]).T @ centred


def _likeness(x: Array, weight: Array, unit: Array) -> Array:
    """The largest absolute correlation of any two numbers of two units, ``(units, units)``."""
    _, covariance = _moments(x, weight)
    std = np.sqrt(np.diag(covariance)).clip(1e-12)
    likeness = np.zeros((unit.max() + 1, unit.max() + 1))
    np.maximum.at(likeness, (unit[:, None], unit), np.abs(covariance / np.outer(std, std)))
    return likeness


def _clusters(likeness: Array) -> list[list[int]]:
    """Groups of which each two members are at least ``SAME`` alike."""
    if len(likeness) == 1:
        return [[0]]
    distance = (1 - likeness).clip(0)
    tree = hierarchy.linkage(distance[np.triu_indices_from(distance, 1)], "complete")
    label = hierarchy.fcluster(tree, 1 - SAME, "distance")
    return [np.flatnonzero(label == one).tolist() for one in np.unique(label)]


class _Copies:
    """Copies of columns, as shifts x̃ - x of standardised rows."""

    def __init__(self, x: Array, weight: Array) -> None:
        n, p = x.shape
        centred, covariance = _moments(x, weight)
        shrinkage = max(MIN_SHRINKAGE, ledoit_wolf_shrinkage(centred, assume_centered=True))
        self.precision = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * np.eye(p))
        self.scaled = centred @ self.precision
        self.donor = np.random.RandomState(0).choice(n, (N_COPIES, n), p=weight / weight.sum())

    def shifts(self, columns: list[int]) -> Array:
        """``(copies, rows, columns)``: residuals of other rows minus own ones, of columns that are copied together."""
        residual = self.scaled[:, columns] @ np.linalg.inv(self.precision[np.ix_(columns, columns)])
        shift: Array = residual[self.donor] - residual
        return shift


def _rises(
    networks: Sequence[_Network],
    parts: Sequence[Rows],
    copies: _Copies,
    tested: list[list[int]],
    loss_of: Callable[[_Network, Tensor, Tensor], Tensor],
) -> Array:
    """Δ of each row for each tested set of columns, ``(sets, rows)``."""
    bounds = [slice(*pair) for pair in pairwise(np.cumsum([0, *(len(part.y) for part in parts)]))]
    targets = [torch.from_numpy(part.y).float() for part in parts]
    hidden = [one.first(part.x) for one, part in zip(networks, parts, strict=True)]
    losses = [loss_of(one, h, y) for one, h, y in zip(networks, hidden, targets, strict=True)]
    rises = np.zeros((len(tested), bounds[-1].stop))
    for row, columns in zip(rises, tested, strict=True):
        shifts = torch.from_numpy(copies.shifts(columns)).float()
        for one, at, h, y, loss in zip(networks, bounds, hidden, targets, losses, strict=True):
            if one.reads(columns):
                moved = [loss_of(one, h + one.move(shift, columns), y) for shift in shifts[:, at]]
                row[at] = (torch.stack(moved).mean(0) - loss).numpy()
    return rises


def _variance(parts: Sequence[Rows], weight: Array, likelihood: Likelihood) -> float:
    """The variance of the targets, summed; of classes, that of their indicators."""
    y = np.concatenate([part.y for part in parts])
    y = y == np.unique(y) if likelihood.kind == "classification" else y
    mean = np.average(y, axis=0, weights=weight)
    return max(float(np.average((y - mean) ** 2, axis=0, weights=weight).sum()), 1e-12)


class _Network:
    """The networks of some draws, side by side: the first layer apart, since it is all that a copy changes."""

    def __init__(self, draws: Draws, inputs: Scaling, columns: Array, likelihood: Likelihood) -> None:
        drawn = [weights for _, weights in draws]
        names = [name for name in drawn[0] if name.endswith("weight")]
        self.weight, *weights = (torch.stack([one[name] for one in drawn]).float() for name in names)
        biases = [torch.stack([one[name.replace("weight", "bias")] for one in drawn]).float() for name in names]
        self.bias, self.rest = biases[0].unsqueeze(1), list(zip(weights, biases[1:], strict=True))
        self.inputs = inputs.only(draws.columns.numpy())
        _, of_tested, of_read = np.intersect1d(columns, draws.columns.numpy(), return_indices=True)
        self.tested = self.weight.new_zeros(*self.weight.shape[:2], len(columns))
        self.tested[:, :, of_tested] = self.weight[:, :, of_read]
        noise = [one["raw_noise"] for one in drawn if "raw_noise" in one]
        self.raw_noise = torch.stack(noise).float().unsqueeze(1) if noise else None
        self.likelihood = likelihood

    def reads(self, columns: list[int]) -> bool:
        """Whether any of these tested columns has an active weight."""
        return bool(self.tested[:, :, columns].any())

    def first(self, rows: Any) -> Tensor:
        """What the first layer puts out, ``(draws, rows, units)``."""
        return torch.from_numpy(self.inputs.apply(rows)).float() @ self.weight.mT + self.bias

    def move(self, shift: Tensor, columns: list[int]) -> Tensor:
        """By how much that changes if some tested columns change by ``shift``, ``(rows, columns)``."""
        return shift @ self.tested[:, :, columns].mT

    def squared_error(self, hidden: Tensor, y: Tensor) -> Tensor:
        """That of the mean over the draws, of numbers or of class probabilities, ``(rows,)``."""
        output = self.output(hidden)
        if self.likelihood.kind == "classification":
            output = output.softmax(-1)
            y = one_hot(y[:, 0].long(), output.shape[-1])
        return (output[..., : y.shape[1]].mean(0) - y).square().sum(1)

    def log_loss(self, hidden: Tensor, y: Tensor) -> Tensor:
        """Negative log of the predicted density or probability, ``(rows,)``."""
        of_classes = self.likelihood.kind == "classification"
        return -self.likelihood.log_predictive(self.output(hidden), y[:, 0].long() if of_classes else y)

    def output(self, hidden: Tensor) -> Tensor:
        """What the network puts out where the first layer puts out ``hidden``."""
        for weight, bias in self.rest:
            hidden = hidden.relu() @ weight.mT + bias.unsqueeze(1)
        if self.raw_noise is None:
            return hidden
        return torch.cat([hidden, self.raw_noise.expand(*hidden.shape[:2], -1)], -1)


def _t_test(rises: Array, weight: Array) -> tuple[Array, Array]:
    """Mean Δ of each set, and the p-value of mean Δ > 0; a row of weight w counts as w rows."""
    n = weight.sum()
    mean = rises @ weight / n
    square_error = (rises - mean[:, None]) ** 2 @ weight / n / max(n - 1, 1e-12)
    varies = square_error > 0
    t = np.divide(mean, np.sqrt(square_error), out=np.zeros_like(mean), where=varies)
    return mean, np.where(varies & (n > 1), (2 * stats.t.sf(t, max(n - 1, 1e-12))).clip(max=1), 1.0)
