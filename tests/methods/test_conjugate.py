"""A posterior that is known: Bayesian linear regression with Gaussian prior and noise.

The best mean-field Gaussian has the exact posterior mean and, for each weight, the variance 1 / Λ_ii, where
Λ = XᵀX / noise² + 1 / prior² is the posterior precision (Bishop 2006, section 10.1.2).
"""

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.likelihoods import Gaussian
from gossamer.train import fit
from gossamer.types import Task

N_INPUTS, N_DATA, NOISE, PRIOR = 16, 80, 0.5, 0.7


@pytest.fixture(scope="module")
def task():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N_DATA, N_INPUTS, generator=generator)
    x[:, 1] += 0.7 * x[:, 0]  # correlated inputs: mean field is not the exact posterior
    weight = torch.zeros(N_INPUTS)
    weight[:4] = torch.tensor([1.0, -1.0, 0.5, 2.0])
    y = (x @ weight + NOISE * torch.randn(N_DATA, generator=generator)).unsqueeze(1)
    return Task((x, y), (x, y), (x, y), Gaussian(noise_std=NOISE), n_outputs=1)


def exact(task, active):
    x, y = task.train[0][:, active].double(), task.train[1].double()
    precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=torch.float64) / PRIOR**2
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2).squeeze(1)
    return mean, precision.diag().rsqrt()


STDS = {
    "curvature": {"temperature": 1.0, "optimizer": "adam"},
    "gradient": {"std": "gradient", "kl_weight": 1.0, "kl_warmup": 0.0},
}


@pytest.mark.parametrize(
    ("name", "options", "std"),
    [
        ("vi", {}, "gradient"),
        ("ssvi", {"density": 0.4, "update_period": 20}, "curvature"),
        pytest.param("vi", {}, "curvature", marks=pytest.mark.slow),
        pytest.param("ssvi", {"density": 0.4, "update_period": 20}, "gradient", marks=pytest.mark.slow),
    ],
)
def test_the_mean_field_posterior_of_linear_regression_is_recovered(task, name, options, std):
    steps = 3000
    method = methods.build(name, task, steps, lr=0.05, prior_std=PRIOR, **STDS[std], **options)
    posterior = fit(method, nn.Linear(N_INPUTS, 1, bias=False), task, steps, batch_size=N_DATA)
    layer = posterior.model
    active = torch.arange(N_INPUTS) if layer.support.position is None else layer.support.position.long()
    if name == "ssvi":
        assert set(range(4)) <= set(active.tolist())  # the weights that matter were found
    mean, std = exact(task, active)
    # The last steps wander by the noise of the gradient; its share of a posterior std is well below a tenth.
    assert ((layer.mean.detach() - mean).abs() / std).max() < 0.1
    torch.testing.assert_close(layer.std.detach().double(), std, rtol=0.05, atol=0)


@pytest.mark.parametrize("std_lr", [None, 0.01 * N_DATA / 2])
def test_in_reference_mode_the_stds_are_learnt_with_a_rate_of_their_own(task, std_lr):
    steps = 3000
    options = {"kl_weight": 1.0, "kl_warmup": 0.0, "prior_std": PRIOR, "init_std": 0.001}
    method = methods.build("vi", task, steps, mode="reference", std_lr=std_lr, **options)
    layer = fit(method, nn.Linear(N_INPUTS, 1, bias=False), task, steps, batch_size=N_DATA).model
    mean, std = exact(task, torch.arange(N_INPUTS))
    # Weight decay beside the prior moves the mean by less than the tenth, too.
    assert ((layer.mean.detach() - mean).abs() / std).max() < 0.1
    if std_lr is None:
        assert (layer.std < 0.5 * std).all()  # on their way still; with the N of real data they would not have moved
    else:
        torch.testing.assert_close(layer.std.detach().double(), std, rtol=0.05, atol=0)


def test_cv_adam_at_temperature_1_is_the_mean_field_posterior(task):
    steps = 3000
    options = {"temperature": 1.0, "weight_decay": 1 / (N_DATA * PRIOR**2), "lr": 0.5, "scale_lr": 0.02}
    method = methods.build("cv_adam", task, steps, **options)
    posterior = fit(method, nn.Linear(N_INPUTS, 1, bias=False), task, steps, batch_size=N_DATA)
    mean, std = exact(task, torch.arange(N_INPUTS))
    assert ((posterior.model.weight.detach()[0] - mean).abs() / std).max() < 0.1  # as above
    # log σ wanders by about √(η/2), the noise of one draw, since its rate does not fall.
    torch.testing.assert_close(posterior.stds["weight"][0].double(), std, rtol=4.5 * (0.02 / 2) ** 0.5, atol=0)
    assert (posterior.stds["weight"][0] / std).log().mean().abs() < 4.5 * (0.02 / 2 / N_INPUTS) ** 0.5


def test_snapshots_of_cv_sghmc_at_temperature_1_are_draws_of_the_posterior(task):
    steps, cycles = 4000, 100
    options = {"temperature": 1.0, "weight_decay": 1 / (N_DATA * PRIOR**2), "lr": 0.05}
    method = methods.build("cv_sghmc", task, steps, cycles=cycles, **options)
    posterior = fit(method, nn.Linear(N_INPUTS, 1, bias=False), task, steps, batch_size=N_DATA)
    x = task.train[0].double()
    precision = x.T @ x / NOISE**2 + torch.eye(N_INPUTS, dtype=torch.float64) / PRIOR**2
    mean = exact(task, torch.arange(N_INPUTS))[0]
    draws = torch.stack([network.weight.detach()[0].double() for network in posterior.draws(cycles)])[10:]
    z = (draws - mean) @ torch.linalg.cholesky(precision)  # independent standard normal numbers
    n = z.numel()
    assert z.mean().abs() < 4.5 / n**0.5
    assert (z.square().mean() - 1).abs() < 4.5 * (2 / n) ** 0.5
    correlations = (z.T @ z / len(z))[~torch.eye(N_INPUTS, dtype=torch.bool)]
    assert correlations.abs().max() < 4.5 / len(z) ** 0.5
    assert (z[1:] * z[:-1]).mean().abs() < 4.5 / n**0.5  # one cycle forgets the last


@pytest.mark.parametrize("n_data", [1000, 5000])
def test_mini_batches_of_the_default_leave_the_variance_of_the_posterior(n_data):
    """At the defaults but T = 1, in 60 epochs of batches of 64: 50 regressions on the same 20 columns.

    Their loss has the curvature 1 in all directions. Without the tail of the cycles the variance of 5,000 rows is 11 %
    too large.
    """
    n_inputs, n_outputs, steps = 20, 50, 60 * -(-n_data // 64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n_data, n_inputs, generator=generator)
    y = torch.randn(n_data, n_outputs, generator=generator)
    task = Task((x, y), (x, y), (x, y), Gaussian(noise_std=1.0), n_outputs=n_outputs)
    method = methods.build("cv_sghmc", task, steps, temperature=1.0)
    decay = method.optimizer(nn.Linear(1, 1)).param_groups[0]["weight_decay"]
    posterior = fit(method, nn.Linear(n_inputs, n_outputs, bias=False), task, steps, batch_size=64)
    precision = x.T @ x + decay * n_data * torch.eye(n_inputs)
    mean = torch.linalg.solve(precision, x.T @ y).T
    draws = torch.stack([network.weight.detach() for network in posterior.draws(50)])[1:]
    z = (draws - mean) @ torch.linalg.cholesky(precision)
    assert z.numel() >= 3000  # so that the standard error of the variance is at most 2.6 %
    assert abs(float(z.square().mean()) - 1) < 0.1
