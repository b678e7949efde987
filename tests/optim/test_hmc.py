"""HMC: moments of a Gaussian target, the step size that dual averaging finds, and an exact continuation."""

import math

import pytest
import torch

from gossamer.optim import HMC

STDS = torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64)


def sampler(seed=0, adapting=100, n=200):
    """``n`` independent copies of a Gaussian with three stds around 1, sampled at once."""
    w = torch.zeros(n, 3, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(seed)
    return w, HMC([w], lambda: ((w - 1) / STDS).square().sum() / 2, 0.01, adapting=adapting, generator=generator)


def test_a_gaussian_target_is_recovered():
    w, hmc = sampler()
    kept, accepted = [], []
    for i in range(400):
        accepted.append(hmc.step())
        if i >= 200:
            kept.append(w.detach().clone())
    draws = torch.stack(kept)  # (trajectories, copies, 3); the copies are independent given the trajectories
    n = draws.shape[1]
    error = draws.mean(0).std(0) / math.sqrt(n)
    assert bool(((draws.mean((0, 1)) - 1).abs() < 4.5 * error).all())
    variances = (draws - 1).square().mean(0)
    gap = (variances.mean(0) - STDS.square()).abs()
    assert bool((gap < 4.5 * variances.std(0) / math.sqrt(n)).all())
    assert 0.5 < sum(accepted[100:]) / 300 < 0.95


def test_step_sizes_are_those_of_algorithm_5():
    """Hoffman and Gelman (2014), with the mean H̄ of the errors, where the sampler keeps their sum."""
    _, hmc = sampler(adapting=50)
    probabilities = torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    mean_error, log_average = 0.0, 0.0
    for m, probability in enumerate(probabilities, start=1):
        hmc._adapt(probability)
        mean_error += (0.7 - probability - mean_error) / (m + 10)
        log_step = math.log(10 * 0.01) - math.sqrt(m) / 0.05 * mean_error
        log_average = m**-0.75 * log_step + (1 - m**-0.75) * log_average
        assert hmc.log_step == pytest.approx(log_average if m == 50 else log_step, rel=1e-12)


def test_what_is_accepted_does_not_depend_on_the_first_step_size():
    """A Gaussian of 500 stds from 0.1 to 10: a first step 5,000 times smaller is forgotten in 50 trajectories."""
    stds = torch.logspace(-1, 1, 500, dtype=torch.float64)
    means, errors = [], []
    for first in (0.05, 1e-5):
        accepted = []
        for seed in range(6):
            w, noise = torch.zeros(500, dtype=torch.float64, requires_grad=True), torch.Generator().manual_seed(seed)
            hmc = HMC([w], lambda w=w: (w / stds).square().sum() / 2, first, adapting=50, generator=noise)
            after = [hmc.step() for _ in range(100)][50:]
            accepted.append(sum(after) / len(after))
        chains = torch.tensor(accepted)
        means.append(float(chains.mean()))
        errors.append(float(chains.std()) / math.sqrt(len(chains)))
    assert means[0] - means[1] == pytest.approx(0, abs=4 * math.hypot(*errors))
    assert all(0.7 < mean < 0.9 for mean in means)  # above δ, since the acceptance is concave in the step size


def test_a_step_that_is_too_large_moves_nothing():
    w, hmc = sampler(adapting=0)
    hmc.log_step = math.log(1e3)
    assert hmc.step() == 0
    assert not w.detach().any()


def test_a_restored_sampler_goes_on_to_the_bit():
    w, hmc = sampler()
    for _ in range(5):
        hmc.step()
    state, at = hmc.state_dict(), w.detach().clone()
    expected = [hmc.step() for _ in range(3)]
    other, again = sampler(seed=9)
    again.load_state_dict(state)
    other.data.copy_(at)
    assert [again.step() for _ in range(3)] == expected
    assert torch.equal(other, w)
