"""Pictures of a fitted estimator, in the style of scikit-learn's displays; they need matplotlib."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gossamer.estimators.base import SparseBayesEstimator
from gossamer.estimators.regressor import SparseBayesRegressor
from gossamer.estimators.table import Array

__all__ = ["ImportanceDisplay", "IntervalDisplay"]

LEVELS = np.linspace(0.05, 0.95, 19)
# Okabe and Ito's colours, which colour-blind people can tell apart.
INSIDE, OUTSIDE, SOFT = "#0072B2", "#D55E00", "#8c959f"


@dataclass
class IntervalDisplay:
    """Predictions with their intervals against the truth, or how many targets intervals of any level hold.

    Args:
        y_true: Targets, ``(rows,)``.
        y_pred: Predicted means.
        low: Lower bounds of the intervals.
        high: Upper bounds.
        level: Probability that an interval holds its target.
        levels: Other levels, ``(levels,)``.
        coverage: Share of the targets in intervals of these levels.

    Attributes:
        ax_: The axes of the last plot.
        figure_: Their figure.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = SparseBayesRegressor(max_steps=50, random_state=0).fit(X[::2], y[::2])
        >>> display = IntervalDisplay.from_estimator(model, X[1::2], y[1::2], kind="coverage")
        >>> display.ax_.get_xlabel(), display.ax_.get_ylabel()
        ('level of the interval', 'share of the targets inside')
    """

    y_true: Array
    y_pred: Array
    low: Array
    high: Array
    level: float
    levels: Array
    coverage: Array
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_estimator(
        cls,
        estimator: SparseBayesRegressor,
        X: Any,
        y: Any,
        *,
        level: float = 0.9,
        kind: Literal["intervals", "coverage"] = "intervals",
        ax: Any = None,
    ) -> Self:
        """Predict rows that were not trained on, and plot.

        Args:
            estimator: A fitted regressor.
            X: Rows, as for ``predict``.
            y: Their targets, one per row.
            level: Probability that an interval holds its target.
            kind: As for :meth:`plot`.
            ax: As for :meth:`plot`.
        """
        y_true = np.asarray(y, dtype=np.float64)
        if y_true.ndim != 1:
            raise ValueError(f"y must have one target per row; got the shape {y_true.shape}: train and plot each alone")
        low, high = estimator.predict_interval(X, level)
        prediction = estimator.prediction(X)
        bounds = [map(estimator._in_units, map(Tensor.numpy, prediction.interval(at))) for at in LEVELS.tolist()]
        coverage = np.array([np.mean((below <= y_true) & (y_true <= above)) for below, above in bounds])
        mean = estimator._in_units(prediction.mean.numpy())
        return cls(y_true, mean, low, high, level, LEVELS, coverage).plot(ax, kind=kind)

    def plot(self, ax: Any = None, *, kind: Literal["intervals", "coverage"] = "intervals") -> Self:
        """Draw into ``ax``, or into a new figure.

        Args:
            ax: Axes of matplotlib.
            kind: ``"intervals"`` shows each row: its prediction, interval and truth. ``"coverage"`` shows the share of
                targets inside intervals of each level; on the diagonal, intervals hold what they promise.
        """
        if kind not in ("intervals", "coverage"):
            raise ValueError(f"kind must be 'intervals' or 'coverage'; got {kind!r}")
        self.ax_ = _axes(ax)
        self.figure_ = self.ax_.figure
        if kind == "intervals":
            self._plot_intervals(self.ax_)
        else:
            self._plot_coverage(self.ax_)
        return self

    def _plot_intervals(self, ax: Any) -> None:
        inside = (self.low <= self.y_true) & (self.y_true <= self.high)
        for rows, colour, name in ((inside, INSIDE, "inside"), (~inside, OUTSIDE, "outside")):
            ax.vlines(self.y_true[rows], self.low[rows], self.high[rows], color=colour, alpha=0.3, lw=1)
            label = f"{name}: {rows.mean():.0%}"
            ax.scatter(self.y_true[rows], self.y_pred[rows], s=10, color=colour, label=label, zorder=3)
        ends = [self.y_true.min(), self.y_true.max()]
        ax.plot(ends, ends, color=SOFT, lw=1, ls="--", zorder=1)
        ax.set(xlabel="true value", ylabel=f"prediction and {self.level:.0%} interval")
        ax.legend(title="true value is", loc="upper left", framealpha=0.9, edgecolor="none")
        _tidy(ax)

    def _plot_coverage(self, ax: Any) -> None:
        # Of independent rows, each of which is inside with the probability that was promised.
        error = 2 * np.sqrt(self.levels * (1 - self.levels) / len(self.y_true))
        ax.fill_between(self.levels, self.levels - error, self.levels + error, color=SOFT, alpha=0.25, lw=0)
        ax.plot([0, 1], [0, 1], color=SOFT, lw=1, ls="--", label="as promised ± 2 standard errors")
        ax.plot(self.levels, self.coverage, color=INSIDE, marker="o", ms=4, label="measured")
        ax.set(xlabel="level of the interval", ylabel="share of the targets inside", xlim=(0, 1), ylim=(0, 1))
        ax.legend(frameon=False, loc="upper left")
        _tidy(ax)


@dataclass
class ImportanceDisplay:
    """The most important columns, those that are selected in colour.

    Args:
        importances: The importance of each column, ``(columns,)``.
        selected: Which are selected, ``(columns,)``.
        names: Names of the columns.

    Attributes:
        ax_: The axes of the last plot.
        figure_: Their figure.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> model = SparseBayesRegressor(max_steps=50, random_state=0).fit(X, y)
        >>> display = ImportanceDisplay.from_estimator(model, max_columns=5)
        >>> len(display.ax_.get_yticklabels())
        5
    """

    importances: Array
    selected: Array
    names: list[str]
    ax_: Any = field(default=None, init=False, repr=False)
    figure_: Any = field(default=None, init=False, repr=False)

    @classmethod
    def from_estimator(cls, estimator: SparseBayesEstimator, *, max_columns: int = 20, ax: Any = None) -> Self:
        """Plot the importances of a fitted classifier or regressor."""
        check_is_fitted(estimator)
        names = getattr(estimator, "feature_names_in_", [f"column {i}" for i in range(estimator.n_features_in_)])
        return cls(estimator.feature_importances_, estimator.get_support(), list(names)).plot(
            ax, max_columns=max_columns
        )

    def plot(self, ax: Any = None, *, max_columns: int = 20) -> Self:
        """Draw the ``max_columns`` most important columns into ``ax``, or into a new figure."""
        self.ax_ = ax = _axes(ax)
        self.figure_ = ax.figure
        order = np.argsort(-self.importances, kind="stable")[:max_columns]
        place = np.arange(len(order))
        for chosen, colour, name in ((True, INSIDE, "selected"), (False, SOFT, "not selected")):
            part = self.selected[order] == chosen
            if part.any():
                ax.barh(place[part], self.importances[order][part], color=colour, height=0.7, label=name)
        ax.set_yticks(place, [str(self.names[i]) for i in order])
        ax.invert_yaxis()
        ax.set(xlabel="importance")
        ax.legend(frameon=False, loc="lower right")
        ax.tick_params(axis="y", length=0)
        _tidy(ax)
        return self


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ImportError("a display needs matplotlib: pip install matplotlib") from error
    return pyplot.subplots()[1]


def _tidy(ax: Any) -> None:
    """Faint lines behind the data, no box."""
    ax.grid(color=SOFT, alpha=0.25, lw=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
