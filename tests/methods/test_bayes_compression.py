"""Bayesian compression: its divergence, its moments, and the groups that it leaves."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.kernels import ConvMap, LinearMap
from gossamer.layers import Support, sparse_weights
from gossamer.methods.bayes_compression import ScaledWeight
from gossamer.models import conv_net, mlp
from gossamer.priors import log_uniform_kl
from gossamer.train import fit

MAPS = {"linear": ((3, 4), LinearMap()), "conv": ((3, 2, 2, 2), ConvMap((1, 1), (0, 0), (1, 1)))}


def a_weight(shape, position=None):
    generator = torch.Generator().manual_seed(0)
    support = Support(shape, position)
    n, groups = support.n_active, shape[1] if len(shape) == 2 else shape[0]
    mean, std = torch.randn(n, generator=generator), 0.1 + torch.rand(n, generator=generator)
    return ScaledWeight(support, mean, std, 1 + torch.rand(groups, generator=generator), torch.full((groups,), 0.3))


def test_the_first_scales_are_those_of_the_tutorial():
    """N(1, 0.01²), with log-variances of -9."""
    torch.manual_seed(0)
    n = 20_000
    model = methods.build("bayes_compression", digits.load(), 10).prepare(torch.nn.Linear(n, 1))
    (weight,) = sparse_weights(model).values()
    means = weight.scale_mean.detach().double()
    assert float(means.mean()) == pytest.approx(1, abs=4.5 * 0.01 / n**0.5)
    assert float(means.std()) == pytest.approx(0.01, abs=4.5 * 0.01 / (2 * n) ** 0.5)
    assert float(weight.scale_std.detach().log().mean()) == pytest.approx(-4.5, rel=1e-4)  # in float32


@pytest.mark.parametrize("z", [0.3, 1.0, -7.0])
def test_the_divergence_of_the_weights_is_the_same_for_every_scale(z):
    weight = a_weight((3, 4))
    conditional = kl_divergence(
        Normal(z * weight.mean, abs(z) * weight.learnt_std()), Normal(0.0, abs(z) * torch.ones(12))
    )
    scales = log_uniform_kl(weight.scale_mean, weight.scale_std)  # tests/methods/test_vd.py integrates it
    torch.testing.assert_close(weight.kl(), conditional.sum() + scales.sum())


@pytest.mark.parametrize("position", [None, torch.tensor([0, 3, 5, 11])])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3, 1)])
def test_moments_of_draws(shape, position):
    weight, n = a_weight(shape, position), 5000
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        draws = torch.stack([weight.sample(generator) for _ in range(n)])
        mean, std = weight.expected(), weight.std
    assert ((draws.mean(0) - mean).abs() < 4.5 * std / n**0.5).all()
    errors = (draws - mean).square().std(0) / n**0.5
    assert ((draws.var(0) - std.square()).abs() < 4.5 * errors).all()


@pytest.mark.parametrize("kind", MAPS)
def test_passes_have_the_moments_of_drawn_weights(kind):
    """Exact for linear maps; one pixel of a convolution has the right moments too."""
    (shape, weight_map), n = MAPS[kind], 5000
    weight, bias = a_weight(shape), torch.tensor([1.0, -2.0, 0.5])
    x = torch.randn(1, *((4,) if kind == "linear" else (2, 2, 2)), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(0)
    with torch.no_grad():
        passes = weight.multiply(x.expand(n, *x.shape[1:]), bias, weight_map).flatten(1)
        generator = torch.Generator().manual_seed(3)
        drawn = [weight_map(x, weight.support.scatter(weight.sample(generator)), bias).flatten() for _ in range(n)]
    drawn = torch.stack(drawn)
    assert ((passes.mean(0) - drawn.mean(0)).abs() < 4.5 * (2 * drawn.var(0) / n) ** 0.5).all()
    errors = (drawn - drawn.mean(0)).square().std(0) * (2 / n) ** 0.5
    assert ((passes.var(0) - drawn.var(0)).abs() < 4.5 * errors).all()
    weight.noisy = False
    mean = weight_map(x, weight.dense_mean(), bias)
    torch.testing.assert_close(weight.multiply(x, bias, weight_map), mean)


@pytest.mark.parametrize("network", [lambda: mlp(64, (64, 64)), conv_net])
def test_noisy_groups_leave_the_network(network):
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("bayes_compression", task, 150, lr=0.03), network(), task, 150)
    for weight in sparse_weights(posterior.model).values():
        kept = weight.support.scatter(torch.ones(weight.support.n_active)).movedim(
            1 if len(weight.shape) == 2 else 0, 0
        )
        assert (kept.flatten(1) == kept.flatten(1)[:, :1]).all()  # whole groups
    drawn = next(posterior.draws(1))
    small, x = gossamer.compact(drawn), task.test[0][:50]
    before, after = small.compaction.n_weights
    assert after < before
    torch.testing.assert_close(small(x), drawn(x), rtol=1e-4, atol=1e-4)
