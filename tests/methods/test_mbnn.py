"""mBNN: frequencies of masks against all of them, the proposal against all orders, and networks without their masks."""

import math
from itertools import combinations, permutations, product

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.compaction.masks import governed, without_masks
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.layers.modules import Masked
from gossamer.methods._birth_death import BirthDeath, log_prior, log_probability
from gossamer.methods.mbnn import AfterBatches, AfterTrajectories, masks_of, with_masks
from gossamer.models import conv_net, mlp, resnet18
from gossamer.train import Training, fit

N, COST = 30, 0.4


@pytest.fixture(scope="module")
def task():
    return digits.load()


def tiny():
    """Six units in two layers: 49 masks that leave a unit in each."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    network = with_masks(network, torch.zeros(1, 2).double())
    x = torch.randn(N, 2).double()
    y = x.prod(1, keepdim=True)
    return network, lambda: (network(x) - y).square().mean()


def posterior_of_masks(network, loss):
    """By summing over all masks."""
    first, second = masks_of(network)
    log = {}
    for state in product((0.0, 1.0), repeat=6):
        own = [sum(state[:3]), sum(state[3:])]
        if min(own) > 0:
            first.mask.copy_(torch.tensor(state[:3]))
            second.mask.copy_(torch.tensor(state[3:]))
            prior = sum(-COST * s**2 - math.log(math.comb(3, int(s))) for s in own)
            log[state] = prior - N * float(loss().detach())
    total = torch.tensor(list(log.values())).double().logsumexp(0)
    return {state: math.exp(value - float(total)) for state, value in log.items()}


def test_the_chain_visits_masks_with_their_posterior_frequencies():
    network, loss = tiny()
    expected = posterior_of_masks(network, loss)
    assert sum(p > 0.01 for p in expected.values()) > 10  # spread over many masks, or little would be tested
    chain = BirthDeath(masks_of(network), N, COST, torch.Generator().manual_seed(1))
    n, batches = 6000, 30
    states = list(expected)
    visits = torch.zeros(batches, len(states)).double()
    for i in range(n):
        chain.move(loss)
        visits[i * batches // n, states.index(tuple(chain.state.tolist()))] += batches / n
    # The standard error of correlated visits, from means over batches that are long against the correlation.
    error = visits.std(0) / math.sqrt(batches)
    gap = (visits.mean(0) - torch.tensor(list(expected.values())).double()).abs()
    # A mask seen in few batches has no error of its own: there, that of 1 in n.
    assert bool((gap < 4 * error + 1 / n).all())
    assert 0.1 < chain.n_accepted / n < 0.9


def test_a_wrong_proposal_is_noticed(monkeypatch):
    """The test above has the power to see that the probabilities of proposals are left out."""
    network, loss = tiny()
    expected = torch.tensor(list(posterior_of_masks(network, loss).values())).double()
    monkeypatch.setattr("gossamer.methods._birth_death.log_probability", lambda *_: 0.0)
    chain = BirthDeath(masks_of(network), N, COST, torch.Generator().manual_seed(1))
    states = list(posterior_of_masks(network, loss))
    visits = torch.zeros(10, len(states)).double()
    for i in range(5000):
        chain.move(loss)
        visits[i // 500, states.index(tuple(chain.state.tolist()))] += 1 / 500
    error = visits.std(0) / math.sqrt(10)
    assert bool(((visits.mean(0) - expected).abs() > 6 * error + 1e-3).any())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_sets_drawn_without_replacement_have_their_probability(n):
    weights = torch.rand(6, generator=torch.Generator().manual_seed(0)).double()
    total = 0.0
    for chosen in combinations(range(6), n):
        by_hand = sum(
            math.prod(float(weights[j] / (weights.sum() - weights[list(order[:i])].sum())) for i, j in enumerate(order))
            for order in permutations(chosen)
        )
        log = log_probability(weights.log(), torch.tensor(chosen))
        assert math.exp(log) == pytest.approx(by_hand, rel=1e-12)
        total += math.exp(log)
    assert total == pytest.approx(1, rel=1e-12)


def test_a_layer_is_never_empty():
    network, loss = tiny()
    for masked in masks_of(network):
        masked.mask.copy_(torch.tensor([1.0, 0.0, 0.0]))
    chain = BirthDeath(masks_of(network), N, 100.0, torch.Generator().manual_seed(0))  # a prior against all units
    for _ in range(200):
        chain.move(loss)
        assert all(float(masked.mask.sum()) >= 1 for masked in masks_of(network))
    assert log_prior(0, 3, 1.0) == -math.inf


def halved(network, example):
    torch.manual_seed(3)
    network = with_masks(network, example, start=0.5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
            nn.init.normal_(module.bias)
    return network.eval()


@pytest.mark.parametrize(
    ("build", "shape", "n_masks", "n_left"),
    [
        (lambda: mlp(64, (32, 32)), (64,), 2, 0),
        (conv_net, (1, 8, 8), 3, 0),
        (lambda: resnet18(10), (3, 16, 16), 17, 8),  # the sums of the eight blocks keep theirs
    ],
)
def test_zero_weights_take_the_place_of_masks(build, shape, n_masks, n_left):
    network, x = halved(build(), torch.zeros(1, *shape)), torch.randn(4, *shape)
    assert len(masks_of(network)) == n_masks
    plain = without_masks(network)
    assert len(masks_of(plain)) == n_left
    torch.testing.assert_close(plain(x), network(x), rtol=1e-4, atol=1e-4)
    for name, layer in governed(network).items():
        assert int((plain.get_submodule(name).weight == 0).sum()) == layer.n_dead()


@pytest.mark.parametrize(
    ("build", "shape"),
    [(lambda: mlp(64, (32, 32)), (64,)), (conv_net, (1, 8, 8)), (lambda: resnet18(10), (3, 16, 16))],
)
def test_compact_removes_masked_units(build, shape):
    network, x = halved(build(), torch.zeros(1, *shape)), torch.randn(4, *shape)
    for start in (network, without_masks(network)):
        small = gossamer.compact(start)
        torch.testing.assert_close(small(x), network(x), rtol=1e-4, atol=1e-4)
        before, after = small.compaction.n_weights
        assert after < 0.75 * before
    if len(shape) == 1:
        assert [layer.out_features for layer in small if isinstance(layer, nn.Linear)] == [16, 16, 10]
        assert not masks_of(gossamer.compact(network))


def test_a_shared_activation_and_a_network_without_any_say_what_to_do():
    relu = nn.ReLU()
    with pytest.raises(ValueError, match="called in several places: give each place its own module"):
        with_masks(nn.Sequential(nn.Linear(2, 3), relu, nn.Linear(3, 3), relu, nn.Linear(3, 1)), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"found none: write them as modules, such as nn.ReLU\(\)"):
        with_masks(nn.Linear(2, 1), torch.zeros(1, 2))


def test_an_activation_of_the_outputs_has_no_mask():
    network = with_masks(
        nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Softplus()), torch.zeros(1, 2), start=0.5
    )
    assert [type(layer) for layer in network] == [nn.Linear, Masked, nn.Linear, nn.Softplus]


def test_small_networks_are_sampled_by_hmc_and_others_by_sgld(task):
    method = methods.build("mbnn", task, 20)
    for network, rule in ((mlp(64, (16,)), AfterTrajectories), (mlp(64), AfterBatches)):
        assert isinstance(Training(method, network, task, 20).rules[0], rule)


def test_hmc_learns_digits(task):
    torch.manual_seed(0)
    posterior = fit(methods.build("mbnn", task, 100, samples=5), mlp(64, (16,)), task, 100)
    assert evaluate(posterior, task, n_draws=5, split="val")["accuracy"] > 0.8


def test_snapshots_hold_active_units_only(task):
    torch.manual_seed(0)
    training = Training(methods.build("mbnn", task, 60, start=0.5, samples=2), mlp(64, (64, 64)), task, 60)
    for _ in training.run():
        pass
    posterior = training.posterior()
    dense = sum(4 * parameter.numel() for parameter in training.model.parameters())
    assert posterior.n_bytes < dense  # of two networks
    for drawn in posterior.draws(2):
        assert not masks_of(drawn)
        small = gossamer.compact(drawn)
        x = task.test[0][:20]
        torch.testing.assert_close(small(x), drawn(x), rtol=1e-4, atol=1e-5)
        assert small[1].out_features < 40


def test_samples_that_do_not_fit_are_refused(task):
    with pytest.raises(ValueError, match="kept in the last 5 steps, at most one per step; got 6"):
        methods.build("mbnn", task, 10, sampler="sgld", samples=6)
