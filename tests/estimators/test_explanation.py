"""Contributions of columns: they add up, and are those of formulas where there is one."""

from itertools import permutations

import numpy as np
import pytest

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
from gossamer.estimators.explanation import MAX_CELLS, shapley

pd = pytest.importorskip("pandas")


def exact(predict, x):
    """Shapley values of each row by all orders, straight from the definition."""
    n = x.shape[1]
    total = np.zeros_like(x)
    orders = list(permutations(range(n)))
    for order in orders:
        row = np.zeros_like(x)
        before = predict(row)[0, :, 0]
        for j in order:
            row[:, j] = x[:, j]
            after = predict(row)[0, :, 0]
            total[:, j] += after - before
            before = after
    return total / len(orders)


def pairwise(x):
    return (x[:, 0] * x[:, 1] + np.exp(x[:, 2]) - x[:, 1] * x[:, 3])[None, :, None]


def threefold(x):
    return (x[:, 0] * x[:, 1] * x[:, 2] + x[:, 3])[None, :, None]


X = np.random.default_rng(0).normal(size=(7, 4))
EACH = np.arange(4)


def test_one_pair_of_orders_is_exact_for_interactions_of_two():
    mean, std = shapley(pairwise, X, EACH, 1, np.random.default_rng(1))
    np.testing.assert_allclose(mean[..., 0], exact(pairwise, X), rtol=0, atol=1e-13)
    assert not std.any()  # there is one draw


def test_interactions_of_three_come_with_an_error_that_falls():
    truth = exact(threefold, X)
    products = np.abs(X[:, :3].prod(axis=1, keepdims=True))
    for n_orders in (4, 400):
        mean, _ = shapley(threefold, X, EACH, n_orders, np.random.default_rng(1))
        np.testing.assert_allclose(mean[..., 0].sum(1), threefold(X)[0, :, 0], atol=1e-13)
        # Column j gets the whole product if it comes last: half of a pair in two thirds of the orders, else nothing.
        error = products * np.sqrt(2 / 9) / 2 / np.sqrt(n_orders)
        assert (np.abs(mean[..., 0] - truth)[:, :3] < 4 * error).all()


def test_columns_of_several_inputs_are_set_together():
    mean, _ = shapley(threefold, X, np.array([0, 0, 1, 2]), 1, np.random.default_rng(0))
    product = X[:, :3].prod(axis=1)
    np.testing.assert_allclose(mean[..., 0], np.column_stack([product / 2, product / 2, X[:, 3]]), atol=1e-13)


def test_the_std_is_that_over_draws():
    slopes = np.array([[1.0, -2.0], [3.0, 0.5], [0.0, 1.0]])
    mean, std = shapley(lambda x: (slopes @ x.T)[..., None], X[:, :2], np.arange(2), 2, np.random.default_rng(0))
    np.testing.assert_allclose(mean[..., 0], slopes.mean(0) * X[:, :2], atol=1e-13)
    np.testing.assert_allclose(std[..., 0], slopes.std(0, ddof=1) * np.abs(X[:, :2]), atol=1e-13)


def test_many_rows_are_explained_in_parts():
    many = np.random.default_rng(0).normal(size=(MAX_CELLS // 20, 4))
    mean, _ = shapley(pairwise, many, EACH, 1, np.random.default_rng(1))
    np.testing.assert_allclose(mean.sum((1, 2)), pairwise(many).ravel() - 1, atol=1e-12)


def test_a_linear_model_is_its_slopes(numbers):
    table, y = numbers
    settings = {"hidden": (), "density": 1.0, "max_steps": 200, "members": 1, "noise": "constant"}
    model = SparseBayesRegressor(**settings, random_state=0).fit(table, y)
    explanation = model.explain(table[:20])
    middle = table.mean(axis=0)
    slopes = np.array([model.predict([middle + step])[0] - model.predict([middle])[0] for step in np.eye(6)])
    np.testing.assert_allclose(explanation.contributions, slopes * (table[:20] - middle), atol=1e-9)
    assert explanation.baseline == pytest.approx(model.predict([middle])[0])
    assert explanation.contributions.shape == explanation.std.shape == (20, 6)
    assert slopes[0] == pytest.approx(20, abs=4 * 5 / np.sqrt(600))  # the truth, by its standard error


def test_contributions_add_up(short, numbers, classes):
    table, y = numbers
    both = SparseBayesRegressor(**short).fit(table, np.column_stack([y, -y]))
    explanation = both.explain(table[:9], n_orders=2)
    assert explanation.contributions.shape == (9, 6, 2)
    np.testing.assert_allclose(explanation.contributions.sum(1) + explanation.baseline, both.predict(table[:9]))
    table, y = classes
    model = SparseBayesClassifier(**short).fit(table, y)
    explanation = model.explain(table[:9])
    assert explanation.contributions.shape == (9, 6, 3)
    np.testing.assert_allclose(explanation.contributions.sum(1) + explanation.baseline, model.predict_proba(table[:9]))
    np.testing.assert_allclose(explanation.contributions.sum(2), 0, atol=1e-12)  # of probabilities
    assert (explanation.std[:, :2] > 0).any()


def test_a_category_is_one_column(short):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"town": rng.choice(["Bonn", "Kiel", "Ulm"], 300), "size": rng.normal(size=300)})
    frame.loc[::7, "size"] = np.nan
    y = 5.0 * (frame["town"] == "Ulm") + frame["size"].fillna(3)
    model = SparseBayesRegressor(**{**short, "max_steps": 200}).fit(frame, y)
    explanation = model.explain(frame)
    assert explanation.contributions.shape == (300, 2)
    np.testing.assert_allclose(explanation.contributions.sum(1) + explanation.baseline, model.predict(frame))
    of_town = pd.Series(explanation.contributions[:, 0]).groupby(frame["town"]).mean()
    assert of_town["Ulm"] - of_town["Bonn"] == pytest.approx(5, abs=1)
