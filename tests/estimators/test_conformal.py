"""Estimators keep conformal promises on rows they have not seen, save them, and forget them when trained again."""

import math

import numpy as np
import pytest

from gossamer import SparseBayesClassifier, SparseBayesRegressor

LEVEL, N_VAL, N_TEST = 0.8, 1000, 4000
# Coverage given the calibration rows is Beta distributed; its spread, that of the test rows, four standard errors.
TOLERANCE = 4 * math.sqrt(LEVEL * (1 - LEVEL) * (1 / N_VAL + 1 / N_TEST))


def rows(n, seed):
    """Noise with heavy tails that depends on the inputs: the network's own intervals cannot be right."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] + (0.2 + X[:, 1] ** 2) * rng.standard_t(3, size=n)


@pytest.fixture(scope="module")
def regressor():
    return SparseBayesRegressor(max_steps=60, random_state=0).fit(*rows(200, 0))


@pytest.fixture(scope="module")
def classifier():
    X, y = rows(200, 0)
    return SparseBayesClassifier(max_steps=60, random_state=0).fit(X, np.digitize(y, [-1, 0, 1]))


def test_intervals_cover_as_promised_and_are_saved(regressor, tmp_path):
    X, y = rows(N_TEST, 1)
    before = regressor.predict_interval(X, LEVEL)
    regressor.conformalize(*rows(N_VAL, 2))
    low, high = regressor.predict_interval(X, LEVEL)
    assert not np.array_equal(low, before[0])
    assert ((low <= y) & (y <= high)).mean() == pytest.approx(LEVEL, abs=TOLERANCE)
    regressor.save(tmp_path / "model.safetensors")
    again = SparseBayesRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_interval(X, LEVEL)[0], low)


def test_sets_cover_as_promised(classifier):
    X, y = rows(N_TEST, 1)
    with pytest.raises(ValueError, match=r"call conformalize\(X, y\) first"):
        classifier.predict_set(X)
    X_val, y_val = rows(N_VAL, 2)
    classifier.conformalize(X_val, np.digitize(y_val, [-1, 0, 1]))
    sets = classifier.predict_set(X, LEVEL)
    assert sets.shape == (N_TEST, 4)
    covered = sets[np.arange(N_TEST), np.digitize(y, [-1, 0, 1])].mean()
    assert covered == pytest.approx(LEVEL, abs=TOLERANCE)  # sets without a class are rare: accuracy is far below
    assert sets.any(axis=1).all()
    with pytest.raises(ValueError, match="classes that were not trained on"):
        classifier.conformalize(X_val, np.full(N_VAL, 9))


def test_training_again_forgets_the_promise(classifier):
    X, y = rows(200, 3)
    classifier.conformalize(X, np.digitize(y, [-1, 0, 1]))
    classifier.fit(X, np.digitize(y, [-1, 0, 1]))
    with pytest.raises(ValueError, match="call conformalize"):
        classifier.predict_set(X)
