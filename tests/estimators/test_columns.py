"""Tables as people have them: categories, missing values and dates."""

import datetime
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from gossamer.data.own.columns import MAX_LEVELS, Columns
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
NAN = np.nan


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pd.Series([1, 2, 3]), [[1], [2], [3]]),
        (pd.Series([True, False, True]), [[1], [0], [1]]),
        (pd.Series([1, None, 4], dtype="Int64"), [[1, 0], [1, 1], [4, 0]]),
        (pd.Series([True, None, True], dtype="boolean"), [[1, 0], [1, 1], [1, 0]]),
        (pd.Series([5, None, 2.5], dtype=object), [[5, 0], [2.5, 1], [2.5, 0]]),
        (pd.Series(["b", "a", "b"]), [[0, 1], [1, 0], [0, 1]]),
        (pd.Series(["b", None, "b"], dtype=object), [[1, 0], [0, 1], [1, 0]]),
        (pd.Series(["b", None, "b"], dtype="string"), [[1, 0], [0, 1], [1, 0]]),
        (pd.Series([7, 5, None], dtype="category"), [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
        (pd.Series([True, "maybe", None], dtype=object), [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        (pd.cut(pd.Series([1, 9, 2]), [0, 5, 10]), [[1, 0], [0, 1], [1, 0]]),
        (pl.Series([1, None, 4]), [[1, 0], [1, 1], [4, 0]]),
        (pl.Series([True, None, False]), [[1, 0], [0, 1], [0, 0]]),
        (pl.Series(["b", None, "b"]), [[1, 0], [0, 1], [1, 0]]),
        (pl.Series(["b", "a", "b"], dtype=pl.Categorical), [[0, 1], [1, 0], [0, 1]]),
    ],
    ids=lambda value: "" if isinstance(value, list) else f"{type(value).__module__.split('.')[0]}-{value.dtype}",
)
def test_a_column_as_numbers(column, expected):
    frame = pd.DataFrame({"c": column}) if isinstance(column, pd.Series) else pl.DataFrame({"c": column})
    columns = Columns.fit(frame)
    np.testing.assert_array_equal(columns.apply(frame), expected)
    np.testing.assert_array_equal(columns.source, np.zeros(len(expected[0])))
    np.testing.assert_array_equal(Columns(**asdict(columns)).apply(frame), expected)


def test_numbers_first_then_where_they_miss_then_categories():
    frame = pd.DataFrame({"c": ["u", "v", "u"], "n": [1.0, NAN, 3.0], "m": [4, 5, 6]})
    columns = Columns.fit(frame)
    np.testing.assert_array_equal(columns.source, [1, 2, 1, 0, 0])
    np.testing.assert_array_equal(columns.apply(frame), [[1, 4, 0, 1, 0], [1, 5, 1, 0, 1], [3, 6, 0, 1, 0]])


def test_an_array_has_its_gaps_filled_and_is_not_changed_itself():
    X = np.array([[1.0, 0.0], [NAN, 0.0], [5.0, 0.0]])
    np.testing.assert_array_equal(Columns.fit(X).apply(X), [[1, 0, 0], [1, 0, 1], [5, 0, 0]])
    assert np.isnan(X[1, 0])
    whole = X[:, 1:]
    assert Columns.fit(whole).apply(whole) is whole  # nothing to do: no copy


@pytest.mark.parametrize(
    ("weights", "expected"), [([1, 1, 1, 1], 2), ([1, 1, 1, 4], 9), ([0, 0, 1, 0], 5), ([2, 1, 0, 1], 1)]
)
def test_a_median_counts_rows_by_their_weight(weights, expected):
    X = np.array([[1.0], [2.0], [5.0], [9.0], [NAN]])
    columns = Columns.fit(X, np.array([*weights, 1.0]))
    assert columns.fill.tolist() == [expected]
    often = X.repeat([*weights, 1], axis=0)
    assert Columns.fit(often).fill.tolist() == [expected]


def test_a_column_without_any_value_is_constant():
    X = np.array([[NAN, 1.0], [NAN, 2.0]])
    np.testing.assert_array_equal(Columns.fit(X).apply(X), [[0, 1, 1], [0, 2, 1]])


def test_unknown_categories_are_none_of_the_known_ones_and_named():
    columns = Columns.fit(pd.DataFrame({"town": ["Ulm", "Bonn"]}))
    with pytest.warns(UserWarning, match=r"column 'town' has categories .*: 'Kiel', missing\. These rows"):
        numbers = columns.apply(pd.DataFrame({"town": ["Kiel", None, "Ulm"]}))
    np.testing.assert_array_equal(numbers, [[0, 0], [0, 0], [0, 1]])


def test_levels_are_the_same_when_a_missing_value_made_them_floats():
    columns = Columns.fit(pd.DataFrame({"floor": pd.Series([1, 2], dtype="category")}))
    again = pd.DataFrame({"floor": pd.Series([2.0, 1.0, 1.0], dtype="category")})
    np.testing.assert_array_equal(columns.apply(again), [[0, 1], [1, 0], [1, 0]])


@pytest.mark.parametrize(
    "dates",
    [
        pd.to_datetime(["2024-01-05", None]),
        pd.to_datetime(["2024-01-05", "2024-01-06"], utc=True),
        pd.to_timedelta(["1 day", "2 days"]),
        pd.period_range("2024-01", periods=2, freq="M"),
        [datetime.date(2024, 1, 5), None],
        ["2024-01-05", "2023/2/1 12:00"],
        ["5.1.2024", None],
    ],
    ids=["datetime", "zone", "timedelta", "period", "date", "text", "german"],
)
def test_dates_are_refused_by_name(dates):
    with pytest.raises(
        ValueError, match=r"column 'when' holds dates: replace it by numbers, as table\['when'\].dt.month"
    ):
        Columns.fit(pd.DataFrame({"n": [1, 2], "when": dates}))


def test_dates_of_polars_are_refused_too():
    with pytest.raises(ValueError, match="column 'when' holds dates"):
        Columns.fit(pl.DataFrame({"when": [datetime.datetime(2024, 1, 5), None]}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1], [2]], r"column 'c' must hold numbers, but holds \[1\]: replace it, or drop"),
        ([1j, 2j], "column 'c' must hold numbers, but holds 1j"),
        ([1.0, np.inf], "column 'c' holds infinity: replace it, or mark it as missing"),
        ([f"row {i // 2}" for i in range(2 * MAX_LEVELS + 2)], "has 256 different texts in 512 rows, more than 255"),
        ([f"row {i}" for i in range(30)], "has 30 different texts in 30 rows, more than 20 categories"),
    ],
)
def test_columns_that_cannot_be_numbers(values, message):
    with pytest.raises(ValueError, match=message):
        Columns.fit(pd.DataFrame({"c": pd.Series(values)}))


def test_a_gap_where_there_was_none_gets_the_mean_of_the_training():
    frame = pd.DataFrame({"town": ["Ulm", "Bonn"], "n": [1.0, 2.0], "m": [3.0, NAN]})
    columns = Columns.fit(frame)
    with pytest.warns(UserWarning, match="column 'n' has missing values.*: the mean of the training rows takes"):
        numbers = columns.apply(frame.assign(n=[1.0, NAN]), np.array([1.5, 3.0, 0.5]))
    np.testing.assert_array_equal(numbers, [[1, 3, 0, 0, 1], [1.5, 3, 1, 1, 0]])


def test_an_estimator_predicts_rows_with_a_gap_where_there_was_none(short):
    rng = np.random.default_rng(0)
    x = rng.normal(3, 1, (60, 2))
    model = SparseBayesRegressor(**short).fit(x, x @ [1, 2])
    x_gap, x_mean = x[:5].copy(), x[:5].copy()
    x_gap[:, 0], x_mean[:, 0] = NAN, x[:, 0].mean()
    with pytest.warns(UserWarning, match="column 0 has missing values"):
        np.testing.assert_allclose(model.predict(x_gap), model.predict(x_mean), rtol=1e-5)


def test_tables_that_differ_from_the_training():
    frame = pd.DataFrame({"town": ["Ulm", "Bonn"], "n": [1.0, 2.0]})
    columns = Columns.fit(frame)
    with pytest.raises(ValueError, match=r"column 'n' has missing values \(NaN\), but had none in training: impute"):
        columns.apply(frame.assign(n=[1.0, NAN]))
    with pytest.raises(ValueError, match="column 'n' must hold numbers, but holds 'one'"):
        columns.apply(frame.assign(n=["one", "two"]))
    with pytest.raises(ValueError, match=r"must be those of the training, \['town', 'n'\]; got \['n', 'town'\]"):
        columns.apply(frame[["n", "town"]])
    with pytest.raises(ValueError, match="column 'town' held categories in training: give a data frame"):
        columns.apply(np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"column 1 has missing values \(NaN\)"):
        Columns.fit(np.ones((2, 2))).apply(np.array([[1, NAN]]))
    with pytest.raises(ValueError, match="a sparse matrix must have no missing values"):
        Columns.fit(np.ones((2, 2))).apply(sparse.csr_array([[1, NAN]]))


def houses(n=400, seed=0):
    """A price that depends on the town, on the size, and on whether the size is known; not on the colour."""
    rng = np.random.default_rng(seed)
    town, colour = rng.choice(["Bonn", "Kiel", "Ulm"], n), rng.choice(["red", "white"], n)
    size = rng.normal(100, 20, n)
    known = rng.random(n) < 0.7
    price = 2 * size * known + 50 * (town == "Ulm") + 200 * ~known + rng.normal(0, 5, n)
    frame = pd.DataFrame(
        {"town": town, "size": np.where(known, size, NAN), "colour": colour, "idle": rng.normal(size=n)}
    )
    return frame, price


LONGER = {"hidden": (16,), "density": 0.5, "max_steps": 300, "options": {"lr": 0.05}, "n_draws": 5, "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return SparseBayesRegressor(**LONGER).fit(*houses())


def test_a_data_frame_is_predicted_and_its_columns_are_its_own(model):
    frame, price = houses(seed=1)
    assert model.score(frame, price) > 0.95
    assert model.feature_names_in_.tolist() == ["town", "size", "colour", "idle"]
    assert model.feature_importances_.shape == (4,)
    assert model.get_support().tolist()[:2] == [True, True]
    chosen = model.get_feature_names_out().tolist()
    assert model.transform(frame).shape == (400, len(chosen))
    selected = clone(model).set_output(transform="pandas").fit(frame, price).transform(frame)
    pd.testing.assert_frame_equal(selected, frame[selected.columns])


def test_a_saved_model_remembers_the_columns(model, tmp_path):
    frame, _ = houses(seed=1)
    model.save(tmp_path / "model")
    again = SparseBayesRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)
    with pytest.warns(UserWarning, match="'Jena'"):
        again.predict(frame[:2].assign(town="Jena"))


def test_polars_gives_the_fit_of_pandas(model):
    frame, price = houses()
    same = pl.DataFrame({name: [None if v != v else v for v in frame[name]] for name in frame})
    again = SparseBayesRegressor(**LONGER).fit(same, price)
    np.testing.assert_array_equal(again.predict(same), model.predict(frame))


def test_rows_of_no_weight_are_not_there(short):
    frame, price = houses(60)
    frame.loc[0, "town"] = "Jena"
    weight = np.r_[0, 2, np.ones(58, dtype=int)]
    weighted = SparseBayesRegressor(**short).fit(frame, price, sample_weight=weight)
    repeated = SparseBayesRegressor(**short).fit(
        frame.loc[frame.index.repeat(weight)], price.repeat(weight.astype(int))
    )
    np.testing.assert_array_equal(weighted.predict(frame[1:]), repeated.predict(frame[1:]))


def test_a_classifier_of_frames(short):
    frame, price = houses(200)
    rich = np.where(price > np.median(price), "rich", "poor")
    model = SparseBayesClassifier(**{**short, "max_steps": 200}).fit(frame, rich)
    assert model.score(frame, rich) > 0.8


def test_arrays_with_gaps(short, numbers):
    X, y = numbers
    gaps = np.where(np.random.default_rng(0).random(X.shape) < 0.1, NAN, X)
    gaps[:, 5] = X[:, 5]
    model = SparseBayesRegressor(**{**short, "max_steps": 150}).fit(gaps, y)
    assert model.score(gaps, y) > 0.5
    assert model.feature_importances_.shape == (6,)
    with pytest.warns(UserWarning, match="column 5 has missing values.*: the mean of the training rows"):
        assert np.isfinite(model.predict(np.full((1, 6), NAN))).all()


def test_a_frame_of_sparse_columns_is_a_sparse_matrix(short):
    X = sparse.random_array((50, 4), density=0.3, format="csr", rng=np.random.default_rng(0))
    frame, y = pd.DataFrame.sparse.from_spmatrix(X), X.sum(axis=1)
    thin, matrix = (SparseBayesRegressor(**short).fit(table, y) for table in (frame, X))
    np.testing.assert_array_equal(thin.predict(frame), matrix.predict(X))


WITHOUT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in {"pandas", "polars", "matplotlib"} else find(name, *rest)
import numpy as np
from gossamer import SparseBayesRegressor

X = np.array([[1.0, np.nan], [2, 3], [4, 5]])
print(SparseBayesRegressor(max_steps=2, hidden=(4,)).fit(X, X[:, 0]).predict(X).shape)
"""


def test_neither_pandas_nor_polars_nor_matplotlib_is_needed():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(3,)"
