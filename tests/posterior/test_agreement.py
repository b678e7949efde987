"""Draws that agree to the last digit are pointed out, once a model; draws that differ are not."""

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer import Gaussian, predict
from gossamer.posterior.predict import _warned

KINDS = ("weights", "local")


class Answer(nn.Module):
    """A function of what a linear layer says."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.body, self.answer = nn.Linear(4, 3), answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.body(x))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def classifier(**options: Any) -> nn.Module:
    layers = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))
    return gossamer.bayesianize(layers, density=0.4, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_agreeing_draws_are_pointed_out_once_a_model(kind: str):
    model, x = classifier(init_std=1e-7), torch.randn(7, 4)
    with pytest.warns(UserWarning, match="mutual information is numerically zero") as caught:
        predict(model, x, kind=kind)
    assert caught[0].filename == __file__  # the line of the caller is shown, not one of ours
    predict(model, x, kind=kind)  # warnings are errors here
    with pytest.warns(UserWarning, match="numerically zero"):
        predict(copy.deepcopy(model), x, kind=kind)
    predict(classifier(init_std=1e-7), x, n_draws=1, kind=kind)


def test_agreeing_draws_of_a_regression_are_pointed_out():
    model = gossamer.bayesianize(nn.Linear(4, 1), density=0.5, init_std=1e-8)
    with pytest.warns(UserWarning, match="numerically zero"):
        predict(model, torch.randn(7, 4), likelihood=Gaussian(0.1))


def test_what_was_warned_about_is_not_kept_alive():
    gc.collect()
    before = len(_warned)
    model = classifier(init_std=1e-7)
    with pytest.warns(UserWarning, match="numerically zero"):
        predict(model, torch.randn(7, 4))
    assert len(_warned) == before + 1
    del model
    gc.collect()
    assert len(_warned) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [
    classifier,
    lambda: gossamer.bayesianize(nn.Linear(4, 2), density=0.5),
    lambda: gossamer.bayesianize(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)), density=0.05),
    lambda: gossamer.bayesianize(gossamer.models.mlp(4, hidden=(64,), out_features=10), density=1.0),
    lambda: gossamer.bayesianize(gossamer.models.mlp(4, hidden=(64,), out_features=1), density=0.1),
])  # fmt: skip
def test_a_freshly_converted_network_raises_no_warning(build: Any, kind: str):
    for size in (1, 50):
        predict(build(), torch.randn(size, 4), kind=kind)


def test_a_sure_network_whose_logits_spread_raises_no_warning():
    """Saturated probabilities have no mutual information, whatever the spread of the logits behind them."""
    model = gossamer.bayesianize(Answer(lambda y: y + torch.tensor([500.0, 0.0, 0.0])), density=0.5, init_std=10.0)
    prediction = predict(model, torch.randn(1, 4), generator=torch.Generator().manual_seed(0))
    assert prediction.mutual_information.max() < 1e-5


def test_small_values_of_a_regression_raise_no_warning():
    model = gossamer.bayesianize(Answer(lambda y: 1e-4 * y), density=0.5)
    assert predict(model, torch.randn(7, 4)).epistemic_std.max() > 0
