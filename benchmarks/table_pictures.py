"""The pictures of the guide to tables: a regressor trained on its examples, drawn by its displays.

    python -m benchmarks.table_pictures docs/images

Writes ``tables-intervals.svg`` (diabetes, the rows of the test) and ``tables-importances.svg`` (Friedman's table).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.estimators import ImportanceDisplay, IntervalDisplay, SparseBayesRegressor
from reproductions.drawing import draw


def main(folder: Path) -> None:
    """Train, then draw into ``folder``."""
    draw(folder / "tables-intervals.svg", (9.5, 4.2), intervals())
    draw(folder / "tables-importances.svg", (5.5, 3.2), importances())


def intervals() -> Callable[[Any], None]:
    """Predictions with intervals, and the coverage of intervals of all levels."""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    X, y = load_diabetes(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    model = SparseBayesRegressor(random_state=0).fit(X_train, y_train)

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        IntervalDisplay.from_estimator(model, X_test, y_test, ax=left).plot(right, kind="coverage")

    return paint


def importances() -> Callable[[Any], None]:
    """The ten most important of the thirty columns of the guide, of which the first five matter."""
    rng = np.random.default_rng(0)
    X = rng.random((800, 30))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    model = SparseBayesRegressor(random_state=0).fit(X, y + rng.normal(size=800))

    def paint(figure: Any) -> None:
        ImportanceDisplay.from_estimator(model, max_columns=10, ax=figure.subplots())

    return paint


if __name__ == "__main__":
    main(Path(sys.argv[1]))
