"""Options of ssvi for two figures of its paper: σ of new entries, and what other criteria would have removed."""

import pytest
import torch
from torch import nn

from gossamer import load_run, methods
from gossamer.data import digits
from gossamer.lab.cli import main
from gossamer.lab.record import Run
from gossamer.layers import sparse_weights
from gossamer.models import mlp
from gossamer.train import Training


def test_new_weights_have_the_std_that_was_asked_for(tmp_path):
    """With next to no learning rate they keep it."""
    flags = ["--std", "gradient", "--regrow_std", "0.004", "--density", "0.2", "--lr", "1e-30", "--epochs", "2"]
    flags += ["--update_period", "29", "--until", "1", "--replacement_rate", "0.5", "--batch_size", "64"]
    assert main(["train", "ssvi", "digits", *flags, "--out", str(tmp_path), "--quiet", "--n_draws", "2"]) == 0
    (update,) = [row for row in Run.open(tmp_path).updates() if row["step"] == 29]
    for name, weight in sparse_weights(load_run(tmp_path).posterior.model).items():
        new = (weight.mean.abs() < 1e-20) & torch.isclose(weight.learnt_std(), torch.tensor(0.004), rtol=1e-5)
        assert int(new.sum()) == update["replaced"].get(name, 0)
    assert sum(update["replaced"].values()) > 0


@pytest.mark.parametrize(("given", "decay"), [({}, 5e-4), ({"weight_decay": 0.01}, 0.01)])
def test_without_noise_the_optimizer_decays_the_weights(given, decay):
    """By as much as the curvature does by default."""
    task = digits.load()
    training = Training(methods.build("ssvi", task, 4, density=0.2, temperature=0, **given), mlp(64, (8,)), task, 4)
    assert training.optimizer.param_groups[0]["weight_decay"] == decay
    assert training.chosen["weight_decay"] == decay
    assert all(weight.std is None for weight in sparse_weights(training.model).values())
    noisy = Training(methods.build("ssvi", task, 4, density=0.2, **given), mlp(64, (8,)), task, 4)
    assert {weight.damping for weight in sparse_weights(noisy.model).values()} == {decay}


@pytest.mark.parametrize("option", [{"prior_std": 0.1}, {"init_std": 0.1}, {"noise": "local"}, {"prior": "own"}])
def test_options_of_noise_need_noise(option):
    with pytest.raises(ValueError, match="a temperature above 0"):
        methods.build("ssvi", digits.load(), 4, temperature=0, **option)


@pytest.mark.parametrize(
    ("options", "is_noisy"),
    [
        ({"members": 2}, False),
        ({"members": 1}, True),
        ({"members": 2, "temperature": 0.1}, True),
        ({"members": 2, "noise": "local"}, True),
        ({"members": 2, "prior": "own"}, True),
    ],
)
def test_members_with_batch_normalisation_have_no_noise_unless_it_is_asked_for(options, is_noisy):
    """The study of noise: a mixture of such networks is better without."""
    task = digits.load()
    normed = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    for network, expected in ((normed, is_noisy), (mlp(64, (8,)), True)):
        training = Training(methods.build("ssvi", task, 4, density=0.2, **options), network, task, 4)
        assert all((weight.std is not None) == expected for weight in sparse_weights(training.model).values())
        assert ("temperature" in training.chosen and training.chosen["temperature"] == 0) != expected
