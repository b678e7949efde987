"""Members side by side compute what each computes alone, and each keeps its budget at every step."""

from dataclasses import replace

import pytest
import torch

import gossamer
from gossamer import methods
from gossamer.estimators.draws import Architecture
from gossamer.estimators.members import Members, OfMembers, SumOverMembers, can_train_together
from gossamer.layers import sparse_weights
from gossamer.likelihoods import Categorical, Gaussian, Weighted
from gossamer.posterior import InLayers
from gossamer.train import Training
from gossamer.types import Task


def networks(n=3, constant_noise=True, std="gradient", **options):
    architecture = Architecture(7, (16, 8), 2, constant_noise)
    return [gossamer.bayesianize(architecture.build(), density=0.3, std=std, **options) for _ in range(n)]


def test_outputs_are_those_of_the_members():
    torch.manual_seed(0)
    members, x = Members(networks()), torch.randn(5, 7)
    torch.manual_seed(1)
    together = members(x)
    torch.manual_seed(1)
    torch.testing.assert_close(together, torch.stack([network(x) for network in members.networks]), rtol=0, atol=0)
    assert together.shape == (3, 5, 4)


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
    training = Training(replace(method, prepare=lambda members: members), members, task, 60, batch_size=16)
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
