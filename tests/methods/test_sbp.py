"""Structured Bayesian pruning: its divergence and moments over the whole range of parameters, and what it leaves."""

import math

import mpmath
import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.layers import Support, sparse_weights
from gossamer.methods.sbp import LOG_STDS, MEANS, GatedWeight, divergence, drawn, moments
from gossamer.models import conv_net, mlp
from gossamer.train import fit

RANGE = [(mean, log_std) for mean in (-20, -19.5, -12, -5, -1, -0.01, 0, 0.01, 1, 5) for log_std in range(-20, 6, 5)]


def integrals(mean, log_std):
    """KL, E z and E z² by quadrature, with 60 digits, of the truncated normal distribution of log z."""
    with mpmath.workdps(60):
        mean, std = mpmath.mpf(mean), mpmath.exp(log_std)
        peak = min(max(mean, -20), mpmath.mpf(0))
        # The scale on which the density falls from its peak: that of the normal, or of its exponential tail.
        scale = min(std, std**2 / abs(mean)) if mean > 0 else std
        places = sorted(
            {mpmath.mpf(-20), mpmath.mpf(0), *(peak + s * k * scale for s in (-1, 1) for k in (0, 1, 4, 15, 60))}
        )
        places = [place for place in places if -20 <= place <= 0]

        def log_density(x):
            return -(((x - mean) / std) ** 2 - ((peak - mean) / std) ** 2) / 2

        mass = mpmath.quad(lambda x: mpmath.exp(log_density(x)), places)

        def expected(function):
            return mpmath.quad(lambda x: mpmath.exp(log_density(x)) * function(x), places) / mass

        kl = expected(log_density) - mpmath.log(mass) + mpmath.log(20)
        return [float(value) for value in (kl, expected(mpmath.exp), expected(lambda x: mpmath.exp(2 * x)))]


@pytest.mark.parametrize(
    ("mean", "log_std"), [*RANGE[::2], *(pytest.param(*one, marks=pytest.mark.slow) for one in RANGE[1::2])]
)
def test_divergence_and_moments_are_the_integrals(mean, log_std):
    inputs = torch.tensor([mean], dtype=torch.float64), torch.tensor([math.exp(log_std)], dtype=torch.float64)
    values = divergence(*inputs), *moments(*inputs)
    for value, exact in zip(values, integrals(mean, log_std), strict=True):
        assert float(value) == pytest.approx(exact, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_is_finite_and_in_its_range_in_every_dtype(dtype):
    """A weight of either dtype computes its gates in float64 and answers in its own."""
    means = torch.linspace(MEANS[0] - 1, MEANS[1] + 1, 60, dtype=dtype)
    log_stds = torch.linspace(LOG_STDS[0] - 1, LOG_STDS[1] + 1, 60, dtype=dtype)
    grid = torch.cartesian_prod(means, log_stds)
    weight = GatedWeight(Support((1, len(grid))), torch.ones(len(grid), dtype=dtype), grid[:, 0], grid[:, 1])
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([weight.sample(generator) for _ in range(20)])
    assert draws.dtype == weight.expected().dtype == weight.std.dtype == dtype
    assert ((draws >= math.exp(-20.001)) & (draws <= 1)).all()
    assert ((weight.expected() > 0) & (weight.expected() <= 1)).all()
    assert torch.isfinite(weight.std).all()
    assert (weight.snr() > 0).all()
    # No noise is less than none: the KL is that from a distribution on the same interval.
    assert weight.kl() > 0
    (weight.kl() + draws.sum()).backward()
    for parameter in (weight.log_mean, weight.log_std):
        assert torch.isfinite(parameter.grad).all()


# Not where E z² comes from draws that are too rare for this n, more than 4σ above the mean.
SAMPLED = [
    (mean, log_std)
    for mean in (-18.0, -6.0, -1.0, 0.0, 0.5, 4.0)
    for log_std in (-8.0, -3.0, -1.0, 0.0, 1.0, 3.0, 5.0)
    if min(2 * math.exp(log_std), -mean / math.exp(log_std)) < 4
]


@pytest.mark.parametrize(("mean", "log_std"), SAMPLED)
def test_moments_are_those_of_draws(mean, log_std):
    n = 50_000
    mean, std = torch.full((n,), mean, dtype=torch.float64), torch.full((n,), math.exp(log_std), dtype=torch.float64)
    uniform = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = drawn(mean, std, uniform).exp()
    for power, moment in zip((z, z.square()), moments(mean[:1], std[:1]), strict=True):
        error = float(power.std()) / n**0.5
        assert float(power.mean()) == pytest.approx(float(moment), abs=4.5 * error + 1e-12)


@pytest.mark.parametrize("network", [lambda: mlp(64, (64, 64)), conv_net])
def test_noisy_groups_leave_the_network(network):
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("sbp", task, 150, lr=0.01, kl_weight=3.0), network(), task, 150)
    for weight in sparse_weights(posterior.model).values():
        kept = weight.support.scatter(torch.ones(weight.support.n_active))
        kept = kept.movedim(1, 0).flatten(1)
        assert (kept == kept[:, :1]).all()  # whole groups
    drawn_one = next(posterior.draws(1))
    small, x = gossamer.compact(drawn_one), task.test[0][:50]
    before, after = small.compaction.n_weights
    assert after < before
    torch.testing.assert_close(small(x), drawn_one(x), rtol=1e-4, atol=1e-4)


def test_batch_normalisation_does_not_hide_the_noise():
    """It would divide that of output channels out: their noise would grow for nothing, and all of them leave."""
    torch.manual_seed(0)
    task = digits.load()
    layers = [nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()]
    layers += [nn.Conv2d(12, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10)]
    posterior = fit(methods.build("sbp", task, 400), nn.Sequential(*layers), task, 400)
    x, y = task.test
    with torch.no_grad():
        found = next(posterior.draws(1))(task.transform(x))
    assert (found.argmax(1) == y).float().mean() > 0.9  # 0.1 by noise of output channels


def normed(task, steps, **options):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return fit(methods.build("sbp", task, steps, **options), network, task, steps)


def test_the_network_at_the_mean_of_the_noise_predicts_with_statistics_of_its_own():
    task = digits.load()
    posterior = normed(task, 30)
    (network,) = posterior.draws(20)
    weights = sparse_weights(posterior.model)
    for name, weight in weights.items():
        mean = weight.mean * weight.spread(moments(*weight._gate())[0])  # θ E z
        torch.testing.assert_close(network.get_submodule(name).weight, weight.support.scatter(mean), rtol=0, atol=0)
    rows = torch.randperm(len(task.train[0]), generator=torch.Generator().manual_seed(0))[:512].sort().values
    batches = network[0](task.train[0][rows]).detach().double().split(256)
    mean, var = (torch.stack([f(batch) for batch in batches]).mean(0) for f in (_channel_mean, _channel_var))
    torch.testing.assert_close(network[1].running_mean.double(), mean, rtol=1e-4, atol=1e-6)  # in float32
    torch.testing.assert_close(network[1].running_var.double(), var, rtol=1e-4, atol=1e-6)


def _channel_mean(x):
    return x.mean((0, 2, 3))


def _channel_var(x):
    return x.var((0, 2, 3))


def test_draws_predict_only_where_they_are_asked_for():
    task = digits.load()
    posterior = normed(task, 5, predict_by="draws", refresh_batchnorm=False)
    first, second = (network[0].weight.detach().clone() for network in posterior.draws(2))
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="predict_by must be 'mean' or 'draws'; got 'median'"):
        methods.build("sbp", task, 5, predict_by="median")
