"""The posterior that an optimizer holds."""

import pickle

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.optim import CVAdam
from gossamer.posterior import AroundMeans, Refresh


def trained(model, x, steps=5):
    torch.manual_seed(0)
    optimizer = CVAdam(model.parameters(), 0.1, n_data=len(x), init_std=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.sampled():
            model(x).square().mean().backward()
        optimizer.step()
    return optimizer


def test_draws_have_the_means_and_stds_of_the_optimizer():
    model, x = nn.Linear(5, 4), torch.randn(30, 5)
    optimizer = trained(model, x)
    posterior = AroundMeans(generator=torch.Generator().manual_seed(0)).posterior(model, optimizer)
    draws = torch.stack([drawn.weight.detach().clone() for drawn in posterior.draws(4000)])
    z = (draws - model.weight.detach()) / optimizer.std(model.weight)
    assert float(z.mean(0).abs().max()) < 4.5 / 4000**0.5
    assert float((z.square().mean(0) - 1).abs().max()) < 4.5 * (2 / 4000) ** 0.5


def test_the_posterior_is_of_its_moment_and_pickles():
    model, x = nn.Linear(5, 4), torch.randn(30, 5)
    optimizer = trained(model, x)
    posterior = AroundMeans().posterior(model, optimizer)
    stds = {name: std.clone() for name, std in posterior.stds.items()}
    trained(model, x, steps=1)
    assert all(torch.equal(posterior.stds[name], stds[name]) for name in stds)
    again = pickle.loads(pickle.dumps(posterior))
    torch.manual_seed(1)
    one = next(posterior.draws(1)).weight.clone()
    torch.manual_seed(1)
    assert torch.equal(next(again.draws(1)).weight, one)


def test_what_is_frozen_stays_and_batch_normalisation_is_refreshed():
    model, x = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), torch.randn(64, 5)
    model[2].weight.requires_grad_(False)
    posterior = AroundMeans(Refresh(x, batch_size=64)).posterior(model, trained(model, x))
    assert "2.weight" not in posterior.stds
    means = [
        (drawn[0].weight.clone(), drawn[2].weight.clone(), drawn[1].running_mean.clone(), drawn[0](x).mean(0))
        for drawn in posterior.draws(2)
    ]
    assert not torch.equal(means[0][0], means[1][0])
    assert torch.equal(means[0][1], means[1][1])
    for _, _, statistics, expected in means:
        torch.testing.assert_close(statistics, expected)


def test_a_sparse_network_stays_sparse():
    torch.manual_seed(0)
    model, x = gossamer.sparsify(nn.Sequential(nn.Linear(20, 30)), density=0.2), torch.randn(40, 20)
    posterior = AroundMeans().posterior(model, trained(model, x))
    position = sparse_weights(model)["0"].support.position.long()
    for drawn in posterior.draws(2):
        weight = drawn[0].weight.detach().flatten()
        assert bool(weight[position].all())
        weight[position] = 0
        assert not weight.any()


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD([torch.zeros(1)], lr=0.1)])
def test_it_needs_an_optimizer_that_holds_a_posterior(optimizer):
    with pytest.raises(TypeError, match="needs an optimizer that holds one, such as CVAdam; got"):
        AroundMeans().posterior(nn.Linear(2, 2), optimizer)
