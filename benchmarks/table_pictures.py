"""The pictures of the guide to tables: what a regressor says of its examples.

    python -m benchmarks.table_pictures docs/images

Writes ``tables-intervals.svg`` (diabetes, the rows of the test) and ``tables-importances.svg`` (Friedman's table).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.estimators import SparseBayesRegressor
from reproductions.drawing import PALETTE, SOFT, draw

INSIDE, OUTSIDE = PALETTE[:2]


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
        paint_intervals(left, model, X_test, y_test)
        paint_coverage(right, model, X_test, y_test)

    return paint


def importances() -> Callable[[Any], None]:
    """The ten most important of the thirty columns of the guide, of which the first five matter."""
    rng = np.random.default_rng(0)
    X = rng.random((800, 30))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    model = SparseBayesRegressor(random_state=0).fit(X, y + rng.normal(size=800))

    def paint(figure: Any) -> None:
        paint_importances(figure.subplots(), model, most=10)

    return paint


def paint_intervals(axes: Any, model: SparseBayesRegressor, X: Any, y: Any, level: float = 0.9) -> None:
    """Predictions with their intervals against the truth."""
    low, high = model.predict_interval(X, level)
    mean, truth = model.predict(X), np.asarray(y)
    inside = (low <= truth) & (truth <= high)
    for rows, colour, name in ((inside, INSIDE, "inside"), (~inside, OUTSIDE, "outside")):
        axes.vlines(truth[rows], low[rows], high[rows], color=colour, alpha=0.3, lw=1)
        axes.scatter(truth[rows], mean[rows], s=10, color=colour, label=f"{name}: {rows.mean():.0%}", zorder=3)
    ends = [truth.min(), truth.max()]
    axes.plot(ends, ends, color=SOFT, lw=1, ls="--", zorder=1)
    axes.set(xlabel="true value", ylabel=f"prediction and {level:.0%} interval")
    axes.legend(title="true value is", loc="upper left", framealpha=0.9, edgecolor="none")
    _tidy(axes)


def paint_coverage(axes: Any, model: SparseBayesRegressor, X: Any, y: Any) -> None:
    """The share of targets inside intervals of each level; on the diagonal, intervals hold what they promise."""
    levels = np.linspace(0.05, 0.95, 19)
    bounds = [model.predict_interval(X, level) for level in levels.tolist()]
    coverage = [np.mean((low <= np.asarray(y)) & (np.asarray(y) <= high)) for low, high in bounds]
    # Of independent rows, each of which is inside with the probability that was promised.
    error = 2 * np.sqrt(levels * (1 - levels) / len(y))
    axes.fill_between(levels, levels - error, levels + error, color=SOFT, alpha=0.25, lw=0)
    axes.plot([0, 1], [0, 1], color=SOFT, lw=1, ls="--", label="as promised ± 2 standard errors")
    axes.plot(levels, coverage, color=INSIDE, marker="o", ms=4, label="measured")
    axes.set(xlabel="level of the interval", ylabel="share of the targets inside", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False, loc="upper left")
    _tidy(axes)


def paint_importances(axes: Any, model: SparseBayesRegressor, most: int = 20) -> None:
    """The most important columns, those that are selected in colour."""
    names = getattr(model, "feature_names_in_", [f"column {i}" for i in range(model.n_features_in_)])
    order = np.argsort(-model.feature_importances_, kind="stable")[:most]
    place, selected = np.arange(len(order)), model.get_support()[order]
    for rows, colour, name in ((selected, INSIDE, "selected"), (~selected, SOFT, "not selected")):
        if rows.any():
            axes.barh(place[rows], model.feature_importances_[order][rows], color=colour, height=0.7, label=name)
    axes.set_yticks(place, [str(names[i]) for i in order])
    axes.invert_yaxis()
    axes.set(xlabel="importance")
    axes.legend(frameon=False, loc="lower right")
    axes.tick_params(axis="y", length=0)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    """Faint lines behind the data, no box."""
    axes.grid(color=SOFT, alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
