"""Importances against closed forms, their tests on many small tables, and selections of which the truth is known."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.stats import false_discovery_control, spearmanr
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
from gossamer.estimators.draws import Architecture, Draws
from gossamer.estimators.importance import ColumnGroup, column_importances, folds, groups_of, select
from gossamer.estimators.table import Rows, Scaling
from gossamer.likelihoods import Categorical, Gaussian


def linear(slopes, *, classes=False):
    """A linear network with the given slopes, ``(outputs, inputs)``; inputs without a slope are not read."""
    slopes = torch.as_tensor(np.atleast_2d(slopes), dtype=torch.float32)
    columns = slopes.any(0).nonzero().squeeze(1)
    architecture = Architecture(len(columns), (), len(slopes), not classes)
    first = architecture.first_weight
    values = {first: slopes[:, columns].reshape(1, -1), first.replace("weight", "bias"): torch.zeros(1, len(slopes))}
    if not classes:
        values["raw_noise"] = torch.zeros(1, len(slopes))
    position = {name: torch.arange(value.shape[1]) for name, value in values.items()}
    return Draws(architecture, columns, position, values)


def as_is(n_columns):
    """Columns as they are, each of which is one number."""
    return Scaling(np.arange(n_columns), np.zeros(n_columns), np.ones(n_columns)), np.arange(n_columns)


def chain(rng, n, p, correlation):
    """Columns in a row, neighbours with the given correlation."""
    x = rng.normal(size=(n, p))
    for j in range(1, p):
        x[:, j] = correlation * x[:, j - 1] + np.sqrt(1 - correlation**2) * x[:, j]
    return x


def of_least_squares(x, y, n_folds=3):
    """Groups by networks that are least-squares fits, each without one fold."""
    fold = folds(y, n_folds)
    fits = [linear(np.linalg.lstsq(x[fold != k], y[fold != k], rcond=None)[0]) for k in range(n_folds)]
    parts = [Rows(x[fold == k], y[fold == k, None], np.ones((fold == k).sum())) for k in range(n_folds)]
    return groups_of(fits, parts, *as_is(x.shape[1]), Gaussian())


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_importance_of_a_linear_column_is_twice_its_conditional_variance(correlation):
    """The true network loses b²·Var(x̃ - x) = 2 b² (1 - R²) by a copy of a column with slope b."""
    rng = np.random.default_rng(0)
    x = chain(rng, 4000, 5, correlation)
    slopes = np.array([0.0, 0.5, 0.0, 1.0, 0.0])
    y = x @ slopes + rng.normal(size=4000)
    found = groups_of([linear(slopes)], [Rows(x, y[:, None], np.ones(4000))], *as_is(5), Gaussian())
    inner = (1 - correlation**2) / (1 + correlation**2)  # 1 - R² of a column between two neighbours
    assert [group.columns.tolist() for group in found[:2]] == [[3], [1]]
    assert all((group.importance, group.p_value) == (0, 1) for group in found[2:])
    for group, slope in zip(found, [1.0, 0.5], strict=False):
        # One row varies by about 2|b|·√(1 - R²) in units of the noise; there are 4,000.
        error = 4 * 2 * slope * np.sqrt(2 * inner / 4000) / y.var()
        assert group.importance == pytest.approx(2 * slope**2 * inner / y.var(), abs=error)


def test_importance_of_classes_is_the_rise_of_the_squared_error_of_probabilities():
    """A column that decides the class: its copy is wrong half the time, by 2 of the indicators' variance of ½."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    y = (x[:, :1] > 0).astype(float)
    draws = linear([[0.0, 0.0], [1e4, 0.0]], classes=True)
    group, _ = groups_of([draws], [Rows(x, y, np.ones(2000))], *as_is(2), Categorical())
    assert group.columns.tolist() == [0]
    assert group.importance == pytest.approx(0.5 * 2 / 0.5, abs=4 * 2 / np.sqrt(2000))


def test_false_discovery_rate_and_power_on_many_tables():
    """60 tables, neighbours with correlation 0.5, 2 of 20 columns relevant: the rate stays below its target."""
    rng = np.random.default_rng(0)
    rates, found = [], []
    for _ in range(60):
        x = chain(rng, 300, 20, 0.5)
        y = 0.4 * (x[:, 3] + x[:, 12]) + rng.normal(size=300)
        chosen = select(of_least_squares(x, y / y.std()), 20, fdr=0.1)
        true = chosen[[3, 12]].sum()
        found.append(true)
        rates.append((chosen.sum() - true) / max(1, chosen.sum()))
    assert np.mean(rates) <= 0.1 + 2 * np.std(rates) / np.sqrt(60)
    assert np.mean(found) > 1.8


def test_p_values_of_irrelevant_columns_are_not_too_small():
    rng = np.random.default_rng(1)
    tables = ((chain(rng, 200, 10, 0.5), rng.normal(size=200)) for _ in range(40))
    p_values = np.array([group.p_value for x, y in tables for group in of_least_squares(x, y)])
    assert len(p_values) == 400
    for level in (0.2, 0.05):
        assert (p_values <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / 400)


def test_selection_is_the_rule_of_benjamini_and_hochberg():
    """Columns that no network reads count as tested, with a p-value of 1."""
    p_values = np.random.default_rng(0).random(12) ** 6
    groups = [ColumnGroup(np.array([j]), 1 - p, p, np.array([1 - p]), np.array([p])) for j, p in enumerate(p_values)]
    exact = false_discovery_control(np.append(p_values, np.ones(8))) <= 0.1
    np.testing.assert_array_equal(select(groups, 20, fdr=0.1), exact)
    assert 0 < exact.sum() < 12


def test_columns_that_cannot_be_told_apart_are_one_group():
    """Both twins are selected, though a network may read just one of them, and neither is needed beside the other."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    x[:, 2] = x[:, 0] + 1e-3 * rng.normal(size=600)
    y = x[:, 0] + rng.normal(size=600)
    draws = linear([1.0, 0.1, 0.0, 0.0])
    groups = groups_of([draws], [Rows(x, y[:, None], np.ones(600))], *as_is(4), Gaussian())
    assert [group.columns.tolist() for group in groups if len(group.columns) > 1] == [[0, 2]]
    assert np.flatnonzero(select(groups, 4, fdr=0.1)).tolist() == [0, 2]
    importances = column_importances(groups, 4)
    assert importances[0] == importances[2] == groups[0].importance > 0.5
    assert importances[3] == 0


def test_a_column_that_stands_out_from_its_group_is_picked():
    """The proxy is the relevant column with noise; 2,000 rows tell them apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    x[:, 1] = x[:, 0] + 0.3 * x[:, 1]
    y = 2 * x[:, 0] + rng.normal(size=2000)
    groups = of_least_squares(x, y / y.std())
    assert [group.columns.tolist() for group in groups] == [[0, 1], [2]]
    assert np.flatnonzero(select(groups, 3, fdr=0.1)).tolist() == [0]
    importances = column_importances(groups, 3)
    assert importances[0] == groups[0].importance > 10 * importances[1]


def test_numbers_that_were_made_of_one_column_are_copied_together():
    """A category of three as indicators: any of them follows from the others, yet the column matters."""
    rng = np.random.default_rng(0)
    category = rng.integers(3, size=600)
    x = np.column_stack([np.eye(3)[category], rng.normal(size=600)])
    y = np.array([-1.0, 0.0, 1.0])[category] + rng.normal(size=600)
    draws = linear([-1.0, 0.0, 1.0, 0.0])
    scaling, _ = as_is(4)
    groups = groups_of([draws], [Rows(x, y[:, None], np.ones(600))], scaling, np.array([5, 5, 5, 2]), Gaussian())
    assert [group.columns.tolist() for group in groups] == [[5], [2]]
    assert np.flatnonzero(select(groups, 6, fdr=0.1)).tolist() == [5]


def test_sparse_rows_give_the_same_groups_as_dense_ones():
    rng = np.random.default_rng(0)
    x = sparse.random(400, 6, density=0.3, format="csr", random_state=0)
    x.data = x.data.round(3)
    y = np.asarray(x[:, 0].toarray() + 0.1 * rng.normal(size=(400, 1)))
    draws = linear([1.0, 0.0, 0.2, 0.0, 0.0, 0.0])
    scaling = Scaling.of(x, np.ones(400))
    of_sparse, of_dense = (
        groups_of([draws], [Rows(kind, y, np.ones(400))], scaling, np.arange(6), Gaussian())
        for kind in (x, x.toarray())
    )
    for one, other in zip(of_sparse, of_dense, strict=True):
        assert one.columns.tolist() == other.columns.tolist()
        np.testing.assert_allclose([one.importance, one.p_value], [other.importance, other.p_value], rtol=1e-6)


def test_a_wide_table_is_tested_where_its_weights_are_strong():
    rng = np.random.default_rng(0)
    x, slopes = rng.normal(size=(300, 1000)), 1e-3 * rng.normal(size=1000)
    slopes[700] = 1.0
    y = x[:, 700] + rng.normal(size=300)
    groups = groups_of([linear(slopes)], [Rows(x, y[:, None], np.ones(300))], *as_is(1000), Gaussian())
    assert len(groups) == 256
    assert np.flatnonzero(select(groups, 1000, fdr=0.1)).tolist() == [700]


def test_inputs_that_never_vary_have_no_importance(short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**short).fit(np.column_stack([np.ones(600), X, np.zeros(600)]), y)
    assert model.feature_importances_[[0, 7]].tolist() == [0, 0]
    assert model.get_support()[[1, 2]].all()
    assert model.transform(X=np.zeros((2, 8))).shape == (2, model.get_support().sum())


def test_relevant_inputs_of_a_nonlinear_table():
    """Friedman's function: 5 of 20 inputs, one of them quadratic about its middle, two by their product."""
    rng = np.random.default_rng(0)
    X = rng.random((400, 20))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    model = SparseBayesRegressor(random_state=0, max_steps=300, members=1, fdr=0.01).fit(X, y + rng.normal(size=400))
    assert model.get_support(indices=True).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("n_tables", "max_steps"), [(5, 200), pytest.param(20, 600, marks=pytest.mark.slow)])
def test_relevant_inputs_of_classes(n_tables, max_steps):
    """A product of two columns: both are found in every table, and others no more often than promised."""
    fdr, false = 0.01, []
    for seed in range(n_tables):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(400, 15))
        y = (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=400) > 0).astype(int)
        model = SparseBayesClassifier(random_state=seed, max_steps=max_steps, members=1, fdr=fdr).fit(X, y)
        found = set(model.get_support(indices=True))
        assert {0, 1} <= found
        false.append(len(found - {0, 1}) / len(found))
    # A share with mean fdr varies most where it is 0 or 1: its variance is fdr(1 - fdr) at most.
    assert np.mean(false) <= fdr + 3 * np.sqrt(fdr * (1 - fdr) / n_tables)


def test_an_empty_selection_warns_and_can_be_undone(short):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 10)), rng.normal(size=300)
    model = SparseBayesRegressor(**short).fit(X, y)
    with pytest.warns(UserWarning, match="no column is selected at a false discovery rate of 0.1"):
        assert not model.get_support().any()
    with pytest.warns(UserWarning, match="no column is selected"), pytest.warns(UserWarning, match="No features were"):
        nothing = model.transform(X)
    with pytest.warns(UserWarning, match="no column is selected"):
        np.testing.assert_array_equal(model.inverse_transform(nothing), np.zeros((300, 10)))
    with pytest.warns(UserWarning, match="no column is selected"):
        whole = model.inverse_transform(sparse.csr_matrix(nothing))
    assert sparse.issparse(whole)
    assert whole.shape == (300, 10)
    assert whole.nnz == 0


def test_too_few_rows_for_folds_select_nothing(short):
    model = SparseBayesRegressor(**short).fit([[0.0, 1.0], [1.0, 0.0]], [0.0, 1.0])
    assert model.groups_ == []
    assert model.feature_importances_.tolist() == [0, 0]


def friedman():
    rng = np.random.default_rng(0)
    X = rng.random((800, 30))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return X, y + rng.normal(size=800)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "load"),
    [
        (SparseBayesClassifier, load_breast_cancer),
        (SparseBayesClassifier, load_wine),
        (SparseBayesRegressor, load_diabetes),
    ],
)
def test_ranks_hardly_depend_on_the_seed(estimator, load, monkeypatch):
    found = of_seeds(estimator, *load(return_X_y=True), monkeypatch)
    # Three sets of five seeds on each table had 0.894 in the mean, with a standard deviation of 0.010, so the bar is
    # three of these below. Not 1: half of the columns matter a little, and are ranked by the networks at hand.
    assert np.mean([spearmanr(*pair)[0] for pair in combinations(found, 2)]) > 0.894 - 3 * 0.010


@pytest.mark.slow
def test_the_columns_that_matter_have_the_same_ranks_with_every_seed(monkeypatch):
    """Those that do not, 25 of 30, are next to zero, in any order."""
    found = of_seeds(SparseBayesRegressor, *friedman(), monkeypatch)
    first = [np.argsort(-importances)[:5].tolist() for importances in found]
    assert first.count(first[0]) == len(first)
    assert sorted(first[0]) == [0, 1, 2, 3, 4]


def of_seeds(estimator, X, y, monkeypatch):
    """Importances by five seeds."""
    monkeypatch.setattr(estimator, "_fit_members", lambda *parts: None)  # they have no say in the importances
    return [estimator(random_state=seed).fit(X, y).feature_importances_ for seed in range(5)]


def test_columns_that_are_needless_one_by_one_still_predict_together():
    """Five noisy copies of one cause: none is certain to matter beside the others, and all of them are needed."""
    rng = np.random.default_rng(0)
    cause = rng.normal(size=300)
    X = np.column_stack([cause[:, None] + rng.normal(size=(300, 5)), rng.normal(size=300)])
    model = SparseBayesRegressor(max_steps=200, random_state=0).fit(X, cause + X[:, 5])
    assert model.get_support()[5]
    assert len(model._inputs.columns) == 6
    idle = rng.normal(size=(300, 5))
    model = SparseBayesRegressor(max_steps=200, random_state=0).fit(np.column_stack([idle, X[:, 5]]), 3 * X[:, 5])
    assert model._inputs.columns.tolist() == [5]
