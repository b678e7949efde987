"""partial_fit: one pass a call, the KL counts all rows so far, a file may lie between two calls."""

import numpy as np
import pytest
import torch

from gossamer import methods
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor, plan
from gossamer.train import Batches


def test_a_stream_learns(short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**{**short, "max_steps": 200})
    for _ in range(4):
        for rows in np.array_split(np.arange(600), 6):
            model.partial_fit(X[rows], y[rows])
    assert model.n_steps_ == 4 * 6 * 2  # 100 rows are two batches of 64
    assert model._stream.weight == 4 * 600
    assert model.score(X, y) > 0.8
    assert model.get_support()[:2].all()


def test_a_pass_shows_every_row_once():
    for first in (0, 3, 7):
        batches = plan._Pass(Batches((torch.arange(10), torch.arange(10)), 4, seed=0), first)
        seen = torch.cat([batches[step][0] for step in range(first, first + batches.per_epoch)])
        assert sorted(seen.tolist()) == list(range(10))


USUAL = {"ssvi", "vi", "sgd", "rigl", "cv_adam", "cv_sghmc", "em_mcmc"}  # the others take a minute together


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in USUAL else pytest.mark.slow) for n in methods.names()]
)
def test_a_file_between_two_calls_changes_nothing(name, classes, tmp_path):
    if name == "laplace":
        pytest.importorskip("laplace")
    X, y = classes
    options = {"lr": 0.01} if "lr" in methods.options_of(name) else {}
    settings = {"hidden": (16,), "options": options, "max_steps": 60, "n_draws": 5, "random_state": 0}
    through = SparseBayesClassifier(name, **settings).partial_fit(X[:150], y[:150], classes=np.unique(y))
    through.save(tmp_path / "model", training=True)
    again = SparseBayesClassifier.load(tmp_path / "model").partial_fit(X[150:], y[150:])
    through.partial_fit(X[150:], y[150:])
    np.testing.assert_array_equal(again.predict_proba(X), through.predict_proba(X))


def test_without_its_training_a_file_cannot_go_on(short, numbers, tmp_path):
    X, y = numbers
    SparseBayesRegressor(**short).fit(X, y).save(tmp_path / "model")
    with pytest.raises(ValueError, match="was saved without its training"):
        SparseBayesRegressor.load(tmp_path / "model").partial_fit(X, y)


def test_after_fit_it_goes_on(short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**short).fit(X, y)
    before = model.predict(X)
    model.partial_fit(X, y)
    assert model.n_steps_ == 60 + 10  # 600 rows are ten batches of 64
    assert not np.array_equal(model.predict(X), before)
    assert model.score(X, y) > 0.8


def test_the_learning_rate_of_a_stream_never_ends(short, numbers):
    X, y = numbers
    model = SparseBayesRegressor(**{**short, "max_steps": 5}).fit(X, y)
    for _ in range(5):
        before = model.predict(X)
        model.partial_fit(X, y)
        assert np.abs(model.predict(X) - before).max() > 1e-6


def test_the_first_call_says_what_is_to_come(short, classes, numbers):
    X, y = classes
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        SparseBayesClassifier(**short).partial_fit(X, y)
    model = SparseBayesClassifier(**short).partial_fit(X[:9], y[:9], classes=["ash", "birch", "cedar"])
    with pytest.raises(ValueError, match=r"classes that were not given to the first call of partial_fit: \['fir'\]"):
        model.partial_fit(X[:1], ["fir"])
    assert model.predict_proba(X).shape == (300, 3)
    X, y = numbers
    with pytest.raises(ValueError, match="y has 2 targets, the first call had 1"):
        SparseBayesRegressor(**short).partial_fit(X, y).partial_fit(X, np.column_stack([y, y]))


def test_a_column_may_begin_to_vary_later(short):
    rng = np.random.default_rng(0)
    model = SparseBayesRegressor(**{**short, "max_steps": 150}).partial_fit(
        np.c_[rng.normal(size=(20, 1)), np.ones(20)], np.zeros(20)
    )
    X = rng.normal(size=(64, 2))
    for _ in range(80):
        model.partial_fit(X, X[:, 1])
    assert model.score(X, X[:, 1]) > 0.8


def test_after_the_planned_steps_the_learning_rate_stays_at_a_tenth(numbers):
    X, y = numbers
    model = SparseBayesRegressor("ssvi", hidden=(16,), max_steps=20, n_draws=5, random_state=0, options={"lr": 0.02})
    for _ in range(3):
        model.partial_fit(X, y)
    assert model.n_steps_ > 20
    assert {group["lr"] for group in model._stream.states[0]["optimizer"]["param_groups"]} == {plan.STREAM_FLOOR * 0.02}
