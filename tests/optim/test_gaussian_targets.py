"""What the samplers sample: Gaussians of known mean and covariance, at temperature 1 and below.

Many chains run side by side, from one point that is not the mean, past seven relaxation times. They are split into
batches; each statistic is estimated in every batch, and its standard error comes from the spread of the batches. The
tolerance is 4.5 of them: with some 350 comparisons here, right samplers pass 997 of 1000 seeds.
"""

import math

import pytest
import torch
from torch import Tensor

from gossamer.optim import SGHMC, SGLD, CVAdam
from gossamer.schedules import cosine

N = 50
N_BATCHES, CHAINS = 50, 40  # chains a batch
LIMIT = 4.5
CENTRE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
CORRELATED = torch.tensor([[1.0, 0.9, 0.3], [0.9, 1.0, 0.3], [0.3, 0.3, 1.0]], dtype=torch.float64)
# Precisions of the mean loss L; the target is N(centre, (N · precision / temperature)⁻¹).
PRECISIONS = {
    "isotropic": torch.eye(3, dtype=torch.float64),
    "ill-conditioned": torch.diag(torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)),
    "correlated": torch.linalg.inv(CORRELATED),
}
# Its rate is such that the stiffest direction moves by this share of its distance in a step.
SAMPLERS = {
    "sgld": (SGLD, {}, 0.1),
    "sghmc": (SGHMC, {}, 0.1),
    "sghmc_half": (SGHMC, {"local_scale": 0.5, "momentum": 0.5, "gradient_weight": 0.8}, 0.1),
}


def run(build, precision: Tensor, burn_in: int, n_kept: int, thinning: int) -> Tensor:
    """Draws, ``(kept, batches, chains, dimensions)``, of chains that start at 0, one for each row of a parameter."""
    w = torch.zeros(N_BATCHES * CHAINS, 3, dtype=torch.float64, requires_grad=True)
    sampler = build([w])
    kept = []
    for step in range(burn_in + n_kept * thinning):
        w.grad = (w.detach() - CENTRE) @ precision  # of L = ½ (w - centre)ᵀ precision (w - centre)
        sampler.step()
        if step >= burn_in and (step - burn_in) % thinning == thinning - 1:
            kept.append(w.detach().clone())
    return torch.stack(kept).view(n_kept, N_BATCHES, CHAINS, 3)


def statistics(draws: Tensor) -> dict[str, Tensor]:
    """Mean, covariance and correlation in each batch, ``(batches, …)``."""
    flat = draws.transpose(0, 1).flatten(1, 2)
    centred = flat - CENTRE
    covariance = centred.transpose(1, 2) @ centred / flat.shape[1]
    std = covariance.diagonal(dim1=1, dim2=2).sqrt()
    return {
        "mean": flat.mean(1),
        "covariance": covariance,
        "correlation": covariance / (std[:, :, None] * std[:, None]),
    }


def assert_within_error(estimates: Tensor, truth: Tensor, what: str, limit: float = LIMIT) -> None:
    """The mean over the batches is ``truth``, up to ``limit`` standard errors."""
    error = estimates.std(0) / math.sqrt(len(estimates))
    is_exact = error < 1e-12  # the diagonal of a correlation
    z = torch.where(is_exact, 0.0, (estimates.mean(0) - truth) / error.clamp_min(1e-12))
    assert float(z.abs().max()) < limit, f"{what}: {estimates.mean(0)} ± {error}, should be {truth}"


def stationary_covariance(precision: Tensor, temperature: float, shrinkage: float) -> Tensor:
    """(N/T · precision)⁻¹ · 1/(1 - shrinkage · precision): the second factor is that of a finite learning rate."""
    eye = torch.eye(3, dtype=torch.float64)
    return temperature / N * torch.linalg.inv(precision @ (eye - shrinkage * precision))


CASES = [(sampler, target, heat) for sampler in SAMPLERS for target in PRECISIONS for heat in (1.0, 0.1)]


@pytest.mark.parametrize(("sampler", "target", "temperature"), CASES)
def test_mean_covariance_and_correlation(sampler, target, temperature):
    check(sampler, target, temperature, temperature)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_noise_that_is_wrong_by_a_tenth_would_be_seen(sampler, factor):
    with pytest.raises(AssertionError, match="covariance: "):
        check(sampler, "isotropic", 1.0, factor**2)


def check(sampler, target, temperature, given):
    """Hold a sampler that is given one temperature to the law of another."""
    build, settings, share = SAMPLERS[sampler]
    precision = PRECISIONS[target]
    curvatures = torch.linalg.eigvalsh(precision)
    beta1 = 0.0 if build is SGLD else settings.get("momentum", 0.9)
    step = share / float(curvatures.max())
    lr = step / (settings.get("gradient_weight", 1.0) * settings.get("local_scale", 1.0))
    relaxation = math.ceil(max((1 - beta1) / (step * float(curvatures.min())), 2 / (1 - beta1)))
    torch.manual_seed(0)
    draws = run(
        lambda params: build(params, lr, n_data=N, temperature=given, **settings),
        precision,
        burn_in=7 * relaxation,
        n_kept=4,
        thinning=max(1, relaxation // 2),
    )
    # On a quadratic the effect of a finite step is known, and SGLD is the case without momentum.
    covariance = stationary_covariance(precision, temperature, shrinkage=step / (2 * (1 + beta1)))
    exact = temperature / N * torch.linalg.inv(precision)
    assert float((covariance.diagonal() / exact.diagonal() - 1).max()) < 0.06  # at these rates it is the target
    std = covariance.diagonal().sqrt()
    found = statistics(draws)
    assert_within_error(found["mean"], CENTRE, "mean")
    assert_within_error(found["covariance"], covariance, "covariance")
    assert_within_error(found["correlation"], covariance / std.outer(std), "correlation")


@pytest.mark.parametrize(("target", "temperature"), [("ill-conditioned", 1.0), ("correlated", 0.1)])
def test_cv_adam_finds_the_best_independent_gaussian(target, temperature):
    """KL(q ‖ posterior) is smallest at the posterior's mean and at the stds (N · precision_ii / T)^-½."""
    precision = PRECISIONS[target]
    torch.manual_seed(0)
    w = torch.zeros(200, 3, dtype=torch.float64, requires_grad=True)
    steps, bound = 1500, 4 * math.sqrt(temperature / (N * float(precision.diagonal().min())))
    optimizer = CVAdam(
        [w],
        cosine(0.5 / float(precision.diagonal().max()), steps),
        n_data=N,
        temperature=temperature,
        weight_decay=0.0,
        scale_lr=cosine(0.05, steps),
        global_scale=bound,
        init_std=0.01 * bound,
    )
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.sampled():
            offset = w - CENTRE
            (offset @ precision * offset).sum().div(2).backward()
        optimizer.step()
    truth = (N * precision.diagonal() / temperature) ** -0.5
    assert_within_error(optimizer.std(w).detach().log().view(50, 4, 3).mean(1), truth.log(), "log std")
    assert_within_error(w.detach().view(50, 4, 3).mean(1), CENTRE, "mean")
