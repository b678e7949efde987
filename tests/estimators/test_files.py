"""A fitted estimator goes into a file and comes back the same, without pickle."""

import pickle
from operator import or_

import numpy as np
import pytest

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor, files
from gossamer.files.container import to_bytes


@pytest.mark.parametrize("labels", [str, object, int, bool])
def test_a_classifier_comes_back(labels, short, classes, tmp_path):
    X, y = classes
    y = y if labels is str else y.astype(object) if labels is object else (y == "birch").astype(labels)
    model = SparseBayesClassifier(**short, class_weight="balanced").fit(X, y)
    model.save(tmp_path / "model")
    again = SparseBayesClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)
    assert repr(again.get_params()) == repr(model.get_params())


@pytest.mark.parametrize("noise", ["constant", "varying"])
def test_a_regressor_comes_back(noise, short, numbers, tmp_path):
    X, y = numbers
    model = SparseBayesRegressor(**short, noise=noise).fit(X, np.column_stack([y, y]))
    model.save(tmp_path / "model")
    again = SparseBayesRegressor.load(tmp_path / "model")
    for one, other in zip(again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    targets = np.column_stack([y, y])
    np.testing.assert_array_equal(again.predict_log_density(X, targets), model.predict_log_density(X, targets))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_a_file_with_parameters_of_before_is_read(short, numbers, tmp_path, monkeypatch):
    """Version 0.3.0.dev could stop early and train on."""
    written, before = files.write, {"early_stopping": True, "validation_fraction": 0.2, "patience": 5}
    stream = {"stream": {"states": [{"step": 60}]}}
    monkeypatch.setattr(
        files, "write", lambda path, name, *parts: written(path, name, *map(or_, parts, (before, stream)))
    )
    model = SparseBayesRegressor(**short).fit(*numbers)
    model.save(tmp_path / "model")
    again = SparseBayesRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(numbers[0]), model.predict(numbers[0]))
    assert again.get_params() == model.get_params()


def test_numbers_of_numpy_among_the_parameters(short, numbers, tmp_path):
    model = SparseBayesRegressor(**{**short, "hidden": [np.int64(8)], "n_draws": np.int64(2)}).fit(*numbers)
    model.save(tmp_path / "model")
    assert SparseBayesRegressor.load(tmp_path / "model").n_draws == 2


def test_only_active_weights_take_room(numbers, tmp_path):
    X = np.random.default_rng(0).normal(size=(100, 400))
    size = {}
    for density in (0.02, 1.0):
        settings = {
            "hidden": (100,),
            "density": density,
            "max_steps": 2,
            "n_draws": 10,
            "members": 1,
            "fdr": 1.0,  # all columns
            "random_state": 0,
        }
        SparseBayesRegressor(**settings).fit(X, X[:, 0]).save(tmp_path / "model")
        size[density] = (tmp_path / "model").stat().st_size
    assert size[0.02] < 0.05 * size[1.0]


def test_pickle_works_too(short, classes):
    X, y = classes
    model = SparseBayesClassifier(**short).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))


def test_what_cannot_be_written_or_read(short, numbers, tmp_path):
    model = SparseBayesRegressor(**{**short, "random_state": np.random.RandomState(0)}).fit(*numbers)
    with pytest.raises(TypeError, match=r"SparseBayesRegressor cannot be saved.*give the random state as a number"):
        model.save(tmp_path / "model")
    model.random_state = 0
    with pytest.raises(OSError, match="could not be written"):
        model.save(tmp_path / "no" / "such" / "model")
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"holds a SparseBayesRegressor: use SparseBayesRegressor\.load"):
        SparseBayesClassifier.load(tmp_path / "model")
    (tmp_path / "half").write_bytes((tmp_path / "model").read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"half is damaged, or not a gossamer estimator: .*; write or copy it again"):
        SparseBayesRegressor.load(tmp_path / "half")
    (tmp_path / "other").write_bytes(to_bytes({"step": 3}))
    with pytest.raises(
        ValueError,
        match=r"other holds a gossamer checkpoint.*read it with gossamer\.lab\.load_run",
    ):
        SparseBayesRegressor.load(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        SparseBayesRegressor.load(tmp_path / "nothing")
