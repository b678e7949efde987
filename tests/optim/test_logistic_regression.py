"""A posterior that is not Gaussian: logistic regression, with a long run of NUTS for the truth."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gossamer.optim import SGHMC, SGLD

SCRIPT = Path(__file__).with_name("make_logistic_truth.py")
N_BATCHES, CHAINS = 40, 15
LIMIT = 4.5  # standard errors
STIFFEST = 0.6  # a bound on the curvature of the mean loss


@pytest.fixture(scope="module")
def truth():
    return read(SCRIPT.parent)


def read(folder):
    content = json.loads((folder / "logistic_truth.json").read_text())
    return {
        key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        for key, value in content.items()
    }


def sample(truth, build, burn_in, n_kept, thinning):
    """Draws, ``(batches, draws, dimensions)``, of chains that start at the mean."""
    x, y = truth["x"], truth["y"]
    w = truth["mean"].repeat(N_BATCHES * CHAINS, 1).requires_grad_()
    sampler = build([w], n_data=len(y), weight_decay=truth["prior_precision"] / len(y))
    kept = []
    for step in range(burn_in + n_kept * thinning):
        # The gradient of the mean of log(1 + exp(-(2y - 1) x·w)), for each chain.
        w.grad = (torch.sigmoid(w.detach() @ x.T) - y) @ x / len(y)
        sampler.step()
        if step >= burn_in and (step - burn_in) % thinning == thinning - 1:
            kept.append(w.detach().clone())
    return torch.stack(kept).view(n_kept, N_BATCHES, CHAINS, -1).transpose(0, 1).flatten(1, 2)


def estimate(values):
    """Mean over the batches, and its standard error."""
    return values.mean(0), values.std(0) / math.sqrt(len(values))


@pytest.mark.parametrize(
    ("build", "lr", "settings"),
    [(SGHMC, 0.02, {}), (SGHMC, 0.05, {"momentum": 0.7, "local_scale": 0.9}), (SGLD, 0.05, {})],
    ids=["sghmc", "sghmc_preconditioned", "sgld"],
)
def test_the_posterior_at_temperature_1_is_that_of_nuts(truth, build, lr, settings):
    momentum = 0.0 if build is SGLD else settings.get("momentum", 0.9)
    step = lr * settings.get("local_scale", 1.0)
    covariance = truth["correlation"] * truth["std"].outer(truth["std"])
    softest = 1 / (len(truth["y"]) * float(torch.linalg.eigvalsh(covariance).max()))
    relaxation = int((1 - momentum) / (step * softest))
    # A finite step makes the stds too large, by at most half of what it does to a variance in the stiffest direction.
    bias = step * STIFFEST / (2 * (1 + momentum)) / 2
    assert bias < 0.01
    torch.manual_seed(0)
    draws = sample(
        truth,
        lambda params, **known: build(params, lr, **settings, **known),
        burn_in=4 * relaxation,
        n_kept=4,
        thinning=relaxation // 2,
    )
    mean, mean_error = estimate(draws.mean(1))
    assert bool(((mean - truth["mean"]).abs() < LIMIT * (mean_error**2 + truth["mean_error"] ** 2).sqrt()).all())
    centred = draws - truth["mean"]
    std, std_error = estimate(centred.square().mean(1).sqrt())
    slack = LIMIT * (std_error**2 + truth["std_error"] ** 2).sqrt() + bias * truth["std"]
    assert bool(((std - truth["std"]).abs() < slack).all())
    scaled = centred / truth["std"]
    correlation, correlation_error = estimate(scaled.transpose(1, 2) @ scaled / scaled.shape[1])
    off_diagonal = ~torch.eye(len(mean), dtype=torch.bool)
    difference = (correlation - truth["correlation"]).abs()
    assert bool((difference < LIMIT * correlation_error + 2 * bias)[off_diagonal].all())


def test_the_truth_is_worth_its_name(truth):
    """Its errors are small against what the tests above can see, and its chains agree."""
    assert truth["r_hat"] < 1.001
    assert bool((truth["mean_error"] < 0.005 * truth["std"]).all())
    assert bool((truth["std_error"] < 0.005 * truth["std"]).all())
    curvature = truth["x"].T @ (truth["x"] * 0.25) / len(truth["y"]) + torch.eye(4) * truth["prior_precision"] / 80
    assert float(torch.linalg.eigvalsh(curvature).max()) < STIFFEST


@pytest.mark.slow
def test_the_truth_can_be_made_again(truth, tmp_path):
    pytest.importorskip("numpyro")
    subprocess.run([sys.executable, SCRIPT, tmp_path], env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True)
    again = read(tmp_path)
    for key in ("mean", "std"):
        error = math.sqrt(2) * truth[f"{key}_error"]
        assert bool(((again[key] - truth[key]).abs() < LIMIT * error).all())
    assert torch.equal(again["x"], truth["x"])
