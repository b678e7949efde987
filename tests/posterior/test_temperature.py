"""Temperature scaling against its closed form, SciPy's minimiser, and a network whose temperature is known."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from gossamer.likelihoods import Categorical, Gaussian
from gossamer.posterior import Prediction, at_temperature, fit_temperature


def overconfident(n, draws, factor, seed=0):
    """Labels drawn from softmax(f), outputs ``factor`` f."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Prediction((factor * logits).expand(draws, n, 4)), labels


def test_a_closed_form():
    """All examples have the same two logits: at the optimum the probability is the share of the right ones."""
    prediction = Prediction(torch.tensor([[[6.0, 0.0]] * 100]))
    found = fit_temperature(prediction, torch.tensor([0] * 90 + [1] * 10))
    assert found == pytest.approx(6 / math.log(9), rel=1e-3)
    assert float(at_temperature(prediction, found).probs[0, 0]) == pytest.approx(0.9, abs=1e-4)


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_factor_of_the_logits_is_found(factor):
    prediction, labels = overconfident(4000, 2, factor)
    found = fit_temperature(prediction, labels)
    # The Fisher information of log T is the mean variance of the logits under the probabilities, n times.
    logits = prediction.outputs[0] / factor
    probs = logits.softmax(1)
    information = float(((probs * logits**2).sum(1) - (probs * logits).sum(1) ** 2).sum())
    assert abs(math.log(found / factor)) < 4 / math.sqrt(information)


def test_it_is_the_minimum_of_the_mixture_of_draws():
    generator = torch.Generator().manual_seed(1)
    outputs = 5 * torch.randn(3, 200, 4, generator=generator, dtype=torch.float64)
    labels = outputs.mean(0).argmax(1)

    def nll(log_temperature):
        return -float(Categorical().log_predictive(outputs / math.exp(log_temperature), labels).mean())

    best = minimize_scalar(nll, bounds=(math.log(0.1), math.log(10)), method="bounded", options={"xatol": 1e-6})
    found = math.log(fit_temperature(Prediction(outputs), labels))
    # Rounding of the NLL, some 1e-16, hides the minimum within about its root.
    assert found == pytest.approx(best.x, abs=2e-4)


def test_the_order_of_the_classes_of_one_network_stays():
    prediction, _ = overconfident(50, 1, 1.0)
    before, after = (one.probs.argsort(1) for one in (prediction, at_temperature(prediction, 2.5)))
    assert torch.equal(before, after)


def test_what_cannot_be_scaled_is_refused():
    numbers = Prediction(torch.zeros(1, 3, 1), Gaussian(noise_std=1.0))
    with pytest.raises(ValueError, match=r"scale intervals of numbers by gossamer\.conformal\.scaled_intervals"):
        fit_temperature(numbers, torch.zeros(3))
    with pytest.raises(ValueError, match="as many held-out targets"):
        fit_temperature(Prediction(torch.zeros(1, 3, 2)), torch.zeros(2).long())
    with pytest.raises(ValueError, match="temperature must be positive; got 0"):
        at_temperature(Prediction(torch.zeros(1, 3, 2)), 0)
