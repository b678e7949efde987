"""The numbers of a prediction against direct formulas and Monte Carlo."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gossamer import Categorical, Gaussian, Prediction


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_entropies_against_their_formulas():
    outputs = 3 * torch.randn(6, 5, 4)
    prediction = Prediction(outputs)
    each = (outputs.double().exp() / outputs.double().exp().sum(-1, keepdim=True)).float()
    probs = each.mean(0)
    torch.testing.assert_close(prediction.samples, each)
    torch.testing.assert_close(prediction.probs, probs)
    torch.testing.assert_close(prediction.entropy, -(probs * probs.log()).sum(-1))
    torch.testing.assert_close(prediction.expected_entropy, -(each * each.log()).sum(-1).mean(0))
    # The definition of mutual information: mean over the draws of KL(draw ‖ mean).
    kl = (each * (each / probs).log()).sum(-1).mean(0)
    torch.testing.assert_close(prediction.mutual_information, kl, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(prediction.confidence, probs.max(-1).values)


def test_limits_of_the_entropies():
    sure = Prediction(torch.tensor([[[1000.0, 0.0]], [[0.0, 1000.0]]]))  # each draw sure, of opposite classes
    torch.testing.assert_close(sure.entropy, torch.tensor([math.log(2)]))
    torch.testing.assert_close(sure.expected_entropy, torch.zeros(1))
    torch.testing.assert_close(sure.mutual_information, torch.tensor([math.log(2)]))
    agreed = Prediction(torch.zeros(5, 3, 4))
    torch.testing.assert_close(agreed.entropy, torch.full((3,), math.log(4)))
    assert (agreed.mutual_information == 0).all()
    rounded = Prediction(torch.randn(1, 1000, 4).expand(7, -1, -1)).mutual_information
    assert ((rounded >= 0) & (rounded < 1e-6)).all()  # never negative, also where only rounding is left


@pytest.mark.parametrize("targets", [1, 3])
def test_parts_of_a_regression_with_a_given_noise(targets: int):
    outputs = torch.randn(6, 5, targets)
    prediction = Prediction(outputs, Gaussian(0.3))
    torch.testing.assert_close(prediction.mean, outputs.mean(0))
    torch.testing.assert_close(prediction.epistemic_std, outputs.std(0, correction=0))
    torch.testing.assert_close(prediction.aleatoric_std, torch.full((5, targets), 0.3))
    torch.testing.assert_close(prediction.std, (outputs.var(0, correction=0) + 0.09).sqrt())
    torch.testing.assert_close(prediction.samples, outputs)


def test_parts_of_a_regression_that_learns_its_noise():
    outputs = torch.randn(6, 5, 4)
    means, noise = outputs[..., :2], F.softplus(outputs[..., 2:])
    prediction = Prediction(outputs, Gaussian())
    assert prediction.mean.shape == prediction.std.shape == (5, 2)
    torch.testing.assert_close(prediction.mean, means.mean(0))
    torch.testing.assert_close(prediction.aleatoric_std, noise.square().mean(0).sqrt(), rtol=1e-4, atol=1e-5)
    draws = means + noise * torch.randn(40_000, 6, 5, 2)  # the law of total variance, by simulation
    torch.testing.assert_close(prediction.std, draws.flatten(0, 1).std(0), rtol=0.02, atol=0)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("likelihood", [Gaussian(0.3), Gaussian()])
def test_intervals_hold_their_share_of_the_mixture(level: float, likelihood: Gaussian):
    outputs = 2 * torch.randn(6, 5, 4)
    low, high = Prediction(outputs, likelihood).interval(level)
    mean, std = likelihood.split(outputs)
    draws = (mean + std * torch.randn(20_000, *mean.shape)).flatten(0, 1)
    error = 4 * math.sqrt(level * (1 - level) / 20_000)  # of a share in 120 000 draws, and some room
    assert low.shape == high.shape == mean.shape[1:]
    tail = (1 - level) / 2
    assert ((draws < low).float().mean(0) - tail).abs().max() < error
    assert ((draws > high).float().mean(0) - tail).abs().max() < error


@pytest.mark.parametrize("level", [0.9, 1 - 1e-6])
def test_an_interval_of_one_gaussian_is_that_of_the_tables(level: float):
    low, high = Prediction(torch.full((3, 1, 1), 2.0), Gaussian(0.5)).interval(level)
    reach = 0.5 * torch.distributions.Normal(0, 1).icdf(torch.tensor((1 + level) / 2, dtype=torch.float64)).float()
    torch.testing.assert_close(
        torch.stack([low, high]).flatten(), torch.stack([2 - reach, 2 + reach]), rtol=1e-5, atol=0
    )


def test_intervals_without_noise_are_those_of_the_spread():
    outputs = torch.randn(500, 3, 2)
    prediction = Prediction(outputs)
    low, high = prediction.interval(0.9)
    torch.testing.assert_close(low, prediction.mean - 1.6449 * prediction.epistemic_std, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(high, prediction.mean + 1.6449 * prediction.epistemic_std, rtol=1e-3, atol=1e-3)
    single = Prediction(torch.randn(1, 3, 2)).interval(0.9)
    torch.testing.assert_close(single[0], single[1])


def test_the_precision_is_that_of_the_outputs_but_never_half():
    assert Prediction(torch.randn(4, 3, 2, dtype=torch.float64)).probs.dtype == torch.float64
    assert Prediction(torch.randn(4, 3, 2, dtype=torch.float64), Gaussian()).interval()[0].dtype == torch.float64
    half = Prediction(torch.randn(4, 3, 2).bfloat16())
    assert half.probs.dtype == half.mean.dtype == half.interval()[0].dtype == torch.float32
    torch.testing.assert_close(half.probs.sum(1), torch.ones(3))


@pytest.mark.parametrize(("shape", "options", "name", "match"), [
    ((4, 3, 1), {}, "probs", "needs one output a class"),
    ((4, 3), {}, "probs", "no classes"),
    ((4, 3), {"class_dim": -1}, "probs", "no classes"),
    ((4, 3, 2), {"class_dim": 0}, "probs", "no classes"),  # that is the batch
    ((4, 3, 2), {"class_dim": 2}, "entropy", "no classes"),
    ((4, 3, 2), {"likelihood": Categorical()}, "mean", "has probs, not a mean"),
    ((4, 3, 2), {"likelihood": Categorical()}, "std", "has probs, not a mean"),
    ((4, 3, 2), {"likelihood": Gaussian()}, "probs", "not class probabilities"),
    ((4, 3, 2), {"likelihood": Gaussian()}, "mutual_information", "not class probabilities"),
    ((4, 3, 3), {"likelihood": Gaussian()}, "mean", "twice as many outputs"),
    ((4, 6), {"likelihood": Gaussian()}, "mean", "means and stds"),
])  # fmt: skip
def test_what_a_prediction_cannot_say_is_an_error(shape: tuple[int, ...], options: Any, name: str, match: str):
    prediction = Prediction(torch.zeros(shape), **options)
    with pytest.raises(ValueError, match=match):
        getattr(prediction, name)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_is_a_probability(level: float):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Prediction(torch.zeros(4, 3, 1)).interval(level)


def test_predictions_compare_by_identity_and_stay_as_they_are():
    prediction = Prediction(torch.zeros(4, 3, 2))
    assert prediction == prediction
    assert prediction != Prediction(torch.zeros(4, 3, 2))
    with pytest.raises(AttributeError):
        prediction.outputs = torch.ones(4, 3, 2)
