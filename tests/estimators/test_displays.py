"""What the displays show is what the estimator says."""

import builtins

import numpy as np
import pytest

from gossamer.estimators import ImportanceDisplay, IntervalDisplay, SparseBayesClassifier, SparseBayesRegressor

figures = pytest.importorskip("matplotlib.figure")


@pytest.fixture(scope="module")
def model(numbers):
    X, y = numbers
    settings = {"hidden": (16,), "density": 0.5, "options": {"lr": 0.05}, "max_steps": 60, "random_state": 0}
    return SparseBayesRegressor(**settings).fit(X[:400], y[:400])


@pytest.fixture
def ax():
    return figures.Figure().subplots()


def test_intervals_and_their_rows(model, numbers, ax):
    X, y = (part[400:] for part in numbers)
    display = IntervalDisplay.from_estimator(model, X, y, level=0.8, ax=ax)
    low, high = model.predict_interval(X, 0.8)
    np.testing.assert_array_equal([display.low, display.high], [low, high])
    np.testing.assert_array_equal(display.y_pred, model.predict(X))
    inside = (low <= y) & (y <= high)
    dots = [np.asarray(part.get_offsets()) for part in ax.collections if len(part.get_offsets()) > 1]
    drawn = [part for part in dots if part.shape in ((inside.sum(), 2), ((~inside).sum(), 2))]
    np.testing.assert_array_equal(np.sort(np.concatenate(drawn)[:, 0]), np.sort(y))
    assert ax.get_ylabel() == "prediction and 80% interval"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        f"inside: {inside.mean():.0%}",
        f"outside: {(~inside).mean():.0%}",
    ]
    assert display.ax_ is ax
    assert display.figure_ is ax.figure


def test_coverage_is_counted_at_each_level(model, numbers, ax):
    X, y = (part[400:] for part in numbers)
    display = IntervalDisplay.from_estimator(model, X, y, kind="coverage", ax=ax)
    for level, share in zip(display.levels[[0, 9, 18]], display.coverage[[0, 9, 18]], strict=True):
        low, high = model.predict_interval(X, level)
        assert share == np.mean((low <= y) & (y <= high))
    np.testing.assert_array_equal(ax.lines[1].get_xydata(), np.column_stack([display.levels, display.coverage]))


def test_importances_are_sorted_and_the_selected_ones_marked(model, ax):
    display = ImportanceDisplay.from_estimator(model, max_columns=4, ax=ax)
    order = np.argsort(-model.feature_importances_, kind="stable")[:4]
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"column {i}" for i in order]
    widths = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in ax.patches}
    np.testing.assert_array_equal([widths[i] for i in range(4)], model.feature_importances_[order])
    chosen = [bars for bars in ax.containers if bars.get_label() == "selected"]
    assert sum(map(len, chosen)) == model.get_support()[order].sum() > 0
    assert display.ax_ is ax


def test_a_classifier_has_importances_too(classes, short, ax):
    model = SparseBayesClassifier(**short).fit(*classes)
    assert len(ImportanceDisplay.from_estimator(model, ax=ax).importances) == 6


def test_what_cannot_be_drawn(model, numbers, monkeypatch):
    X, y = numbers
    with pytest.raises(ValueError, match="kind must be 'intervals' or 'coverage'; got 'both'"):
        IntervalDisplay.from_estimator(model, X, y, kind="both")
    with pytest.raises(ValueError, match=r"y must have one target per row; got the shape \(600, 2\)"):
        IntervalDisplay.from_estimator(model, X, np.column_stack([y, y]))
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="a display needs matplotlib: pip install matplotlib"):
        ImportanceDisplay.from_estimator(model)
