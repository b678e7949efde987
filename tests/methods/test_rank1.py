"""rank1: the product with factors against explicit weights of each member, its KL, and what its draws are."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.methods.rank1 import Factor, FactorPosterior, Rank1, with_factors
from gossamer.models import conv_net
from gossamer.train import fit

LAYERS = {
    "linear": (lambda: nn.Linear(5, 7), (6, 5)),
    "sequence": (lambda: nn.Linear(5, 7, bias=False), (6, 3, 5)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (6, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, stride=2), (6, 4, 8, 8)),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (6, 4, 8, 8)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (6, 4, 8, 8)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_example_meets_the_weight_of_its_member(name):
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer = Rank1(build().double(), members=4).eval()
    for factor in (layer.input, layer.output):
        nn.init.normal_(factor.mean)
    x = torch.randn(shape, dtype=torch.float64)
    y = layer(x)
    for i in range(len(x)):
        plain = build().double()
        plain.load_state_dict(layer.layer.state_dict())
        alpha, gamma = layer.input.mean[i % 4].tolist(), layer.output.mean[i % 4].tolist()
        with torch.no_grad():  # entry by entry: which input an entry of a grouped convolution sees
            for o in range(plain.weight.shape[0]):
                for j in range(plain.weight.shape[1]):
                    groups = getattr(plain, "groups", 1)
                    first = o // (plain.weight.shape[0] // groups) * plain.weight.shape[1]
                    plain.weight[o, j] *= gamma[o] * alpha[first + j]
            torch.testing.assert_close(y[i : i + 1], plain(x[i : i + 1]), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(layer.weight(layer.input.mean[i % 4], layer.output.mean[i % 4]), plain.weight)


def test_factors_are_drawn_for_each_example():
    torch.manual_seed(0)
    layer, x = Rank1(nn.Linear(5, 7), members=2), torch.ones(4, 5)
    y = layer(x)
    assert len(y.unique(dim=0)) == 4
    factor, n = layer.input, 20_000
    drawn = factor.sample(torch.zeros(n, dtype=torch.long))
    std = F.softplus(factor.raw_std[0])
    torch.testing.assert_close(std, torch.full((5,), 0.0316))
    assert bool(((drawn.mean(0) - factor.mean[0]).abs() < 4.5 * std / n**0.5).all())
    assert bool(((drawn.std(0) - std).abs() < 4.5 * std / (2 * n) ** 0.5).all())


@pytest.mark.parametrize("mode", ["default", "reference"])
def test_the_kl_is_the_closed_form(mode):
    """The sum over members to N(1, s²), as released, or the mean to the nearer of N(1, s²) and N(-1, s²)."""
    torch.manual_seed(0)
    factor = Factor(3, 6, init_std=0.05, negative=0.5).double().requires_grad_(False)
    nn.init.normal_(factor.mean)
    mean, std = factor.mean.numpy(), np.log1p(np.exp(factor.raw_std.numpy()))
    s, at = 0.2, 1.0 if mode == "reference" else np.where(mean > 0, 1.0, -1.0)
    of_members = (np.log(s / std) + (std**2 + (mean - at) ** 2) / (2 * s**2) - 0.5).sum(1)
    expected = of_members.sum() if mode == "reference" else of_members.mean()
    assert float(factor.kl(s, mode)) == pytest.approx(expected, rel=1e-12)


def test_the_kl_to_the_nearer_prior_is_that_to_the_mixture():
    factor = Factor(1, 2, init_std=0.08, negative=0.0).double().requires_grad_(False)
    factor.mean.copy_(torch.tensor([[0.9, -1.2]]))
    q = torch.distributions.Normal(factor.mean[0], F.softplus(factor.raw_std[0]))
    x = torch.linspace(-3, 3, 60_001, dtype=torch.float64)[:, None]
    halves = [torch.distributions.Normal(at, 0.2).log_prob(x) for at in (1.0, -1.0)]
    log_prior = torch.logsumexp(torch.stack(halves), 0) - np.log(2)
    density = q.log_prob(x).exp()
    integral = (density * (q.log_prob(x) - log_prior)).sum() * 1e-4
    assert float(factor.kl(0.2)) + 2 * np.log(2) == pytest.approx(float(integral), rel=1e-6)


def test_the_penalty_rises_to_the_kl_of_all_factors():
    task = digits.load()
    method = methods.build("rank1", task, 100, prior_std=0.2)
    model = method.prepare(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).requires_grad_(False)
    kl = float(model[1].input.kl(0.2) + model[1].output.kl(0.2))
    for step, share in ((40, 0.5), (80, 1.0), (100, 1.0)):
        assert float(method.penalty(model, step)) == pytest.approx(share * kl / task.n_data, rel=1e-5)


def test_signs_of_the_first_means():
    torch.manual_seed(0)
    for negative, mean in ((0.0, 1.0), (0.5, 0.0), (1.0, -1.0)):
        factor = Factor(10, 1000, 0.03, negative)
        assert set(factor.mean.unique().tolist()) <= {-1.0, 1.0}
        assert float(factor.mean.detach().mean()) == pytest.approx(mean, abs=4.5 / 10_000**0.5)


def test_factors_have_no_weight_decay():
    method = methods.build("rank1", digits.load(), 10, weight_decay=0.1)
    model = method.prepare(conv_net())
    groups = method.optimizer(model).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [len(group["params"]) for group in groups] == [8, 16]


def test_draws_are_plain_networks_of_one_member_each():
    torch.manual_seed(0)
    model = with_factors(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), members=3, init_std=1e-9)
    shared = model[0].layer.weight.clone()
    drawn = [network[0].weight.clone() for network in FactorPosterior(model).draws(6)]
    for weight, member in zip(drawn, (0, 0, 1, 1, 2, 2), strict=True):
        expected = shared * torch.outer(model[0].output.mean[member], model[0].input.mean[member])
        torch.testing.assert_close(weight, expected)
    assert type(next(iter(FactorPosterior(model).draws(1)))[0]) is nn.Linear
    assert torch.equal(model[0].layer.weight, shared)


def test_convolutions_learn_too():
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("rank1", task, 300), conv_net(), task, 300)
    assert evaluate(posterior, task, n_draws=8, split="val")["accuracy"] > 0.85


def test_wrong_uses_say_what_to_do():
    with pytest.raises(ValueError, match=r"no linear or convolutional layer .*: use ensemble"):
        with_factors(nn.Sequential(nn.ReLU()), members=2)
    with pytest.raises(ValueError, match=r"members count from 1, and negative is a share; got 0 and 0.5"):
        methods.build("rank1", digits.load(), 10, members=0)
