"""Why a row is predicted as it is: how much each column contributes.

The contribution of a column is its Shapley value (Shapley 1953; Strumbelj and Kononenko 2014, algorithm 1). Let m(x) be
the prediction and b the mean training row. Starting at b, set the columns to those of the row x one after the other, in
the order π; column j changes the prediction by

    φ_j(π) = m(x on {j and those before it in π}, b elsewhere) - m(x on {those before it}, b elsewhere)

and its contribution φ_j is the mean of that over orders. In every order the changes telescope, so however few the
orders are,

    Σ_j φ_j = m(x) - m(b)

Orders come in pairs, each with its reverse: for effects of single columns and interactions of two columns one pair is
exact, and only interactions of three or more have a Monte Carlo error. All inputs that were made of one column (the
levels of a category, the sign that a value is missing) are set together.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np

from gossamer.estimators.table import Array

__all__ = ["Explanation", "shapley"]

MAX_CELLS = 2**22  # of inputs and of predictions at a time


class Explanation(NamedTuple):
    """Contributions of columns to predictions: they sum to the prediction minus ``baseline``.

    Attributes:
        contributions: ``(rows, columns)``, with a last dimension for classes, or for several targets.
        std: Their standard deviation over the draws: how certain they are.
        baseline: The prediction for the mean training row: a number, or one per class or target.
    """

    contributions: Array
    std: Array
    baseline: Array


def shapley(
    predict: Callable[[Array], Array], x: Array, source: Array, n_orders: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Mean and standard deviation over draws of φ, each ``(rows, columns, outputs)``.

    Args:
        predict: ``(rows, inputs) -> (draws, rows, outputs)``.
        x: Rows as differences from the mean row, ``(rows, inputs)``.
        source: Which column each input is made of, as numbers from 0.
        n_orders: Random orders of the columns; each is also taken backwards.
        rng: Draws the orders.

    Example:
        >>> def product(x):  # with one draw and one output
        ...     return x.prod(axis=1)[None, :, None]
        >>> shapley(product, np.array([[2.0, 5.0]]), np.array([0, 1]), 1, np.random.default_rng(0))[0].ravel()
        array([5., 5.])
    """
    forth = [rng.permutation(int(source.max()) + 1) for _ in range(n_orders)]
    orders = [order for one in forth for order in (one, one[::-1])]
    n_cells = len(predict(x[:1]).ravel()) + x.shape[1]  # of one row
    parts = np.array_split(x, max(1, -(-len(x) * (len(orders[0]) + 1) * n_cells // MAX_CELLS)))
    means = [reduce(np.add, (_changes(predict, part, source, one) for one in orders)) / len(orders) for part in parts]
    mean, std = zip(*map(_moments, means), strict=True)
    return np.concatenate(mean), np.concatenate(std)


def _changes(predict: Callable[[Array], Array], x: Array, source: Array, order: Array) -> Array:
    """What each column changes when the columns are set in this order, ``(draws, rows, columns, outputs)``."""
    rank = np.argsort(order)
    n_set = np.arange(len(order) + 1)
    path = np.where(rank[source] < n_set[:, None, None], x, 0.0)  # (columns + 1, rows, inputs)
    values = predict(path.reshape(-1, x.shape[1]))
    values = values.reshape(len(values), *path.shape[:2], -1)
    changes: Array = np.diff(values, axis=1)[:, rank].swapaxes(1, 2)
    return changes


def _moments(values: Array) -> tuple[Array, Array]:
    """Mean and standard deviation over the first dimension; a single draw has none."""
    return values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
