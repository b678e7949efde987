"""Members side by side compute what each computes alone, and each keeps its budget at every step."""

import pytest
import torch

import gossamer
from gossamer import methods
from gossamer.estimators.draws import Architecture
from gossamer.estimators.members import Members, OfMembers, SumOverMembers, can_train_together, for_members
from gossamer.layers import sparse_weights
from gossamer.likelihoods import Categorical, Gaussian, Weighted
from gossamer.posterior import InLayers
from gossamer.train import Training
from gossamer.types import Task


def networks(n=3, constant_noise=True, std="gradient", **options):
    architecture = Architecture(7, (16, 8), 2, constant_noise)
    return [gossamer.bayesianize(architecture.build(), density=0.3, std=std, **options) for _ in range(n)]


@pytest.mark.parametrize("constant_noise", [False, True])
def test_outputs_have_the_moments_of_each_member_alone(constant_noise):
    """Outputs of several layers are not Gaussian: means and variances over many draws of the noise."""
    torch.manual_seed(0)
    members = Members(networks(constant_noise=constant_noise))
    x = torch.randn(5, 7)
    n = 4000
    often = x.repeat(n, 1)  # every row has noise of its own
    together = members(often).detach().unflatten(1, (n, 5)).transpose(0, 1)
    alone = torch.stack([network(often).detach().unflatten(0, (n, 5)) for network in members.networks], 1)
    error = (together.var(0) / n + alone.var(0) / n).sqrt()
    assert ((together.mean(0) - alone.mean(0)).abs() <= 5 * error + 1e-6).all()
    ratio = (together.var(0) + 1e-12) / (alone.var(0) + 1e-12)
    # The variance of a variance is that of the fourth moment: 3 for a Gaussian; products of two have up to 9.
    assert (ratio.log().abs() < 5 * (2 * 9 / n) ** 0.5).all()


def test_without_noise_outputs_and_gradients_are_those_of_the_members():
    torch.manual_seed(0)
    members, x = Members(networks()), torch.randn(5, 7)
    for weight in sparse_weights(members).values():
        weight.set_std(torch.full_like(weight.mean, 1e-12))
    members(x).square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in members.parameters() if parameter.grad is not None]
    members.zero_grad()
    alone = torch.stack([network(x) for network in members.networks])
    alone.square().sum().backward()
    torch.testing.assert_close(members(x), alone)
    expected = [parameter.grad for parameter in members.parameters() if parameter.grad is not None]
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_kl_is_that_of_all_members():
    torch.manual_seed(0)
    members = Members(networks())
    members.kl().backward()
    gradients = [weight.raw_std.grad.clone() for weight in sparse_weights(members).values()]
    members.zero_grad()
    exact = gossamer.kl(members)
    exact.backward()
    torch.testing.assert_close(members.kl(), exact)
    for weight, gradient in zip(sparse_weights(members).values(), gradients, strict=True):
        torch.testing.assert_close(gradient, weight.raw_std.grad)


@pytest.mark.parametrize("likelihood", [Gaussian(), Categorical(), Weighted(Gaussian())])
def test_the_loss_is_the_sum_over_members(likelihood):
    torch.manual_seed(0)
    output, y = torch.randn(3, 5, 4), torch.rand(5, 2 + isinstance(likelihood, Weighted))
    y = torch.arange(5) % 4 if isinstance(likelihood, Categorical) else y
    expected = sum(likelihood.loss(one, y) for one in output)
    torch.testing.assert_close(SumOverMembers(likelihood).loss(output, y), expected)


@pytest.mark.parametrize("std", ["gradient", "curvature"])
def test_each_member_keeps_its_budget_and_moves_on_its_own(std):
    torch.manual_seed(0)
    x, y = torch.randn(64, 7), torch.randn(64, 2)
    task = Task((x, y), (x, y), (x, y), SumOverMembers(Gaussian()), 4)
    method = methods.build("ssvi", task, 60, density=0.3, std=std, update_period=5).suited_to(torch.nn.Identity())
    members = Members([method.prepare(Architecture(7, (16, 8), 2, True).build()) for _ in range(3)])
    before = {name: weight.support.position.clone() for name, weight in sparse_weights(members).items()}
    training = Training(for_members(method), members, task, 60, batch_size=16)
    budgets = {name: weight.support.n_active for name, weight in sparse_weights(members).items()}
    for _ in training.run():
        assert {name: weight.support.n_active for name, weight in sparse_weights(members).items()} == budgets
    after = {name: weight.support.position for name, weight in sparse_weights(members).items()}
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert {name.split(".")[1] for name in moved} == {"0", "1", "2"}
    assert not torch.equal(after["networks.0.mean.3"], after["networks.1.mean.3"])


def test_draws_are_of_the_members_in_turn():
    members = Members(networks())
    drawn = [network.mean[1].weight.detach().clone() for network in OfMembers(InLayers(members), 3).draws(5)]
    assert len(drawn) == 5
    for i, weight in enumerate(drawn):
        position = members.networks[i % 3].mean[1].support.position
        assert set(weight.flatten().nonzero().flatten().tolist()) == set(position.tolist())


def test_which_networks_can_train_together():
    assert can_train_together(networks(1)[0])
    assert not can_train_together(networks(1, noise="weights")[0])
    assert not can_train_together(networks(1, mode="reference")[0])
    assert not can_train_together(networks(1, allocation="global")[0])
    assert not can_train_together(networks(1, exclude=["mean.1"])[0])
    assert not can_train_together(Architecture(7, (4,), 2).build())
