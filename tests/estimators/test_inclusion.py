"""Inclusion against closed forms, and against tables of which the relevant inputs are known."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
from gossamer.estimators.draws import Architecture, Draws
from gossamer.estimators.inclusion import inclusion, information
from gossamer.likelihoods import Categorical, Gaussian


def linear(slopes, n_outputs, constant_noise):
    """Draws of linear networks with the given slopes, ``(draws, outputs, inputs)``."""
    slopes = torch.as_tensor(slopes, dtype=torch.float32)
    architecture = Architecture(slopes.shape[2], (), n_outputs, constant_noise)
    first = architecture.first_weight
    values = {first: slopes.flatten(1), first.replace("weight", "bias"): torch.zeros(len(slopes), n_outputs)}
    if constant_noise:
        values["raw_noise"] = torch.full((len(slopes), n_outputs), float(np.log(np.expm1(0.5))))
    position = {name: torch.arange(value.shape[1]) for name, value in values.items()}
    return Draws(architecture, torch.arange(slopes.shape[2]), position, values)


def test_information_of_a_linear_model_is_slope_squared_over_noise():
    draws = linear([[[0.3, 0.0, -2.0]]], 1, constant_noise=True)
    x = np.random.default_rng(0).normal(size=(50, 3))
    known = information(draws, x, np.ones(50), Gaussian())
    np.testing.assert_allclose(known, np.array([0.09, 0, 4]) / 0.25, rtol=1e-5)
    better = information(draws, x, np.ones(50), Gaussian(), noise=np.array([0.01]))
    np.testing.assert_allclose(better, np.array([0.09, 0, 4]) / 0.01, rtol=1e-5)


def test_information_of_a_logistic_model_is_that_of_the_textbook():
    """β² p (1 - p), averaged over weighted rows."""
    draws = linear([[[0.0, 0.0], [0.7, -0.2]]], 2, constant_noise=False)
    x = np.random.default_rng(0).normal(size=(40, 2))
    weight = np.random.default_rng(1).random(40)
    p = expit(x @ [0.7, -0.2])
    exact = np.array([0.49, 0.04]) * np.average(p * (1 - p), weights=weight)
    np.testing.assert_allclose(information(draws, x, weight, Categorical()), exact, rtol=1e-5)


def test_slopes_that_draws_disagree_about_carry_none():
    """The square of a mean over draws is corrected by the variance of that mean."""
    rng = np.random.default_rng(0)
    x = np.zeros((1, 2))
    of_sets = []
    for _ in range(20):
        slopes = rng.normal([0.0, 1.0], 1.0, size=(10, 1, 2))
        centre, spread = slopes[:, 0].mean(0), slopes[:, 0].var(0, ddof=1)
        of_sets.append(
            (information(linear(slopes, 1, True), x, np.ones(1), Gaussian()) * 0.25, centre**2 - spread / 10)
        )
    measured, exact = np.array(of_sets).swapaxes(0, 1)
    np.testing.assert_allclose(measured, exact.clip(0), atol=1e-5)


def test_inclusion_is_the_probability_of_the_extended_bic():
    n, p = 300, 40
    known = np.array([0.0, 0.02, (np.log(n) + 2 * np.log(p)) / n, 0.2, 1e6])
    pi = inclusion(known, n, p)
    assert pi[0] == 0
    assert pi[2] == pytest.approx(0.5)
    bic_without, bic_with = 0.0, -n * known[1:2] + np.log(n) + 2 * np.log(p)
    np.testing.assert_allclose(pi[1:2], 1 / (1 + np.exp((bic_with - bic_without) / 2)))
    assert pi[4] == 1


def test_inputs_that_never_vary_are_not_included(short, numbers):
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
    model = SparseBayesRegressor(random_state=0, max_steps=500).fit(X, y + rng.normal(size=400))
    assert model.get_support(indices=True).tolist() == [0, 1, 2, 3, 4]


def test_relevant_inputs_of_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 15))
    y = (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=400) > 0).astype(int)
    model = SparseBayesClassifier(random_state=0, max_steps=600).fit(X, y)
    assert model.get_support(indices=True).tolist() == [0, 1]


def test_noise_has_no_relevant_inputs(short):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 10)), rng.normal(size=300)
    assert not SparseBayesRegressor(**{**short, "max_steps": 300, "density": 0.2}).fit(X, y).get_support().any()
