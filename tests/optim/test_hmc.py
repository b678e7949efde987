"""HMC: moments of a Gaussian target, the step size that dual averaging finds, and an exact continuation."""

import math

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
    assert 0.5 < sum(accepted[100:]) / 300 < 0.95  # 0.7 is what dual averaging aims at; its average lags behind


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
