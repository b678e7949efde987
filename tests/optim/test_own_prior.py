"""Priors with means of their own: an ensemble of maxima is a sample of the posterior; means belong to positions."""

import copy

import pytest
import torch
from scipy.stats import kstest
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import two_moons
from gossamer.layers import Support, sparse_weights
from gossamer.layers.curvature import AS_IS, CurvatureWeight, attach
from gossamer.layers.support import normals_at
from gossamer.models import mlp
from gossamer.train import Training
from gossamer.train.capture.flat_weights import FlatWeights

MEMBERS, N_DATA, N_IN, NOISE, PRIOR_STD = 4000, 8, 6, 0.5, 0.8


def test_maxima_under_own_priors_and_noisy_targets_have_the_covariance_of_the_posterior():
    """Linear regression: every output of one layer is a member, with a prior and noise of the targets of its own."""
    torch.manual_seed(0)
    x = torch.randn(N_DATA, N_IN, dtype=torch.float64) @ torch.randn(N_IN, N_IN, dtype=torch.float64)
    y = x[:, :1] + NOISE * torch.randn(N_DATA, MEMBERS, dtype=torch.float64)
    model = gossamer.bayesianize(nn.Linear(N_IN, MEMBERS, bias=False).double(), density=1.0, prior_std=PRIOR_STD)
    optimizer = torch.optim.LBFGS(
        gossamer.param_groups(model),
        max_iter=100,
        tolerance_grad=1e-13,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    gossamer.Curvature(model, optimizer, N_DATA, temperature=1.0, weight_decay=None, own_prior=True)
    model.weight.noisy = False

    def loss():
        optimizer.zero_grad()
        error = (y - model(x)) / NOISE
        value = 0.5 * error.square().sum(1).mean()
        value.backward()
        return value

    optimizer.step(loss)
    found = model.weight.dense_mean().detach()
    prior_mean = model.weight.prior_mean.view(MEMBERS, N_IN)
    covariance = torch.linalg.inv(x.T @ x / NOISE**2 + torch.eye(N_IN, dtype=torch.float64) / PRIOR_STD**2)
    exact = (y.T @ x / NOISE**2 + prior_mean / PRIOR_STD**2) @ covariance
    torch.testing.assert_close(found, exact, rtol=1e-7, atol=1e-7)
    variances = covariance.diagonal()
    error = ((variances.outer(variances) + covariance.square()) / MEMBERS).sqrt()  # standard error of each entry
    assert ((found.T.cov() - covariance).abs() < 5 * error).all()


def test_the_numbers_are_normal_and_a_function_of_seed_and_position():
    position = torch.arange(100_000)
    first, second = normals_at(position, 1), normals_at(position, 2)
    assert kstest(first.numpy(), "norm").pvalue > 1e-4
    n = len(position)
    pairs = [(first, second), (first[:-1], first[1:]), (first.square(), second.square())]
    for one, other in pairs:
        assert torch.stack([one, other]).corrcoef()[0, 1].abs() < 5 / n**0.5
    some = torch.tensor([5, 70, 99_999], dtype=torch.int32)
    assert torch.equal(normals_at(some, 1), first[some.long()])


def trainings(method_options, n=2, seed=3):
    task = two_moons.load()
    options = {"density": 0.3, "update_period": 5, "prior": "own", **method_options}
    return [
        Training(methods.build("ssvi", task, 40, **options), mlp(2, (16, 16), 2), task, 40, seed=seed) for _ in range(n)
    ]


def test_means_of_priors_follow_the_moves_and_a_state():
    (training,) = trainings({}, n=1)
    weight = training.model[3].weight
    whole = weight.prior_spread * normals_at(torch.arange(weight.shape.numel()), weight.prior_seed)
    before = weight.support.position.clone()
    for _ in range(10):
        training.advance()
    position = weight.support.position.long()
    assert not torch.equal(position, before)
    assert torch.equal(weight.prior_mean, whole[position])
    state = copy.deepcopy(training.state_dict())
    others = [trainings({}, n=1, seed=seed)[0] for seed in (4, 3)]
    assert others[0].model[3].weight.prior_seed != weight.prior_seed
    for other in others:
        other.load_state_dict(copy.deepcopy(state))
        assert torch.equal(other.model[3].weight.prior_mean, weight.prior_mean)
    training.load_state_dict(copy.deepcopy(state))
    expected = [training.advance()["loss"] for _ in range(5)]
    others[1].load_state_dict(state)
    assert [others[1].advance()["loss"] for _ in range(5)] == expected


def test_flat_weights_feel_the_same_pull_before_and_after_a_move():
    (training,) = trainings({"weight_decay": 0.7}, n=1)
    weights = list(sparse_weights(training.model).values())
    flat = FlatWeights(training.model, torch.float32)
    middle = weights[1]
    for _ in range(2):
        flat.mean_grad.zero_()
        flat.estimate.copy_(flat.curvature)
        flat.learn()
        expected = torch.cat([0.7 * (weight.mean.detach() - weight.prior_mean) for weight in weights])
        torch.testing.assert_close(flat.mean_grad, expected, rtol=1e-6, atol=0)
        before = middle.prior_mean.clone()
        inactive = torch.ones(middle.shape.numel(), dtype=torch.bool)
        inactive[middle.support.position.long()] = False
        middle.support.set_position(inactive.nonzero().flatten()[: middle.support.n_active].int())
        assert not torch.equal(middle.prior_mean, before)
        flat.refresh()
    flat.close()


def test_the_kl_is_that_to_the_prior_with_its_mean():
    weight = CurvatureWeight(Support((50, 40)), torch.randn(2000), torch.full((2000,), 0.2), prior_std=0.7)
    weight.prior_seed, weight.prior_spread = 9, 0.7
    q, p = torch.distributions.Normal(weight.mean, weight.std), torch.distributions.Normal(weight.prior_mean, 0.7)
    torch.testing.assert_close(weight.kl(), torch.distributions.kl_divergence(q, p).sum())


def test_a_file_without_means_of_priors_has_none():
    weight = CurvatureWeight(Support((2, 2)), torch.zeros(4), torch.ones(4), prior_std=1.0)
    state = weight.get_extra_state()
    assert len(state) == 12  # as before there were any
    weight.prior_seed, weight.prior_spread = 9, 0.7
    weight.set_extra_state(state)
    assert not weight.prior_mean.any()


def test_standard_deviations_by_gradient_have_one_prior():
    with pytest.raises(ValueError, match="prior can only be given with std='curvature'"):
        methods.build("ssvi", two_moons.load(), 40, prior="own", std="gradient")


@pytest.mark.parametrize("build", [None, lambda: mlp(2, (16, 16), 2)])
def test_each_member_has_an_anchor_of_its_own(build):
    task, members = two_moons.load(), 5
    method = methods.build("ssvi", task, 12, density=0.5, update_period=3, prior="own", members=members)
    posterior = gossamer.fit(method, mlp(2, (16, 16), 2), task, 12, build=build)
    assert len(posterior.posteriors) == members
    every = torch.arange(16 * 16)
    layers = [sparse_weights(one.model)["3"] for one in posterior.posteriors]
    anchors = torch.stack([layer.prior_spread * normals_at(every, layer.prior_seed) for layer in layers])
    for layer, anchor in zip(layers, anchors, strict=True):
        assert torch.equal(layer.prior_mean, anchor[layer.support.position.long()])
        assert not torch.equal(layer.mean, layer.prior_mean)
    correlations = anchors.corrcoef()[*torch.triu_indices(members, members, 1)]
    assert correlations.abs().max() < 5 / len(every) ** 0.5


def test_numbers_of_a_state_say_what_they_are():
    """12 without a mean of the prior, 14 with one; 4 and 8 in files of earlier versions."""
    weight = CurvatureWeight(Support((2, 2)), torch.zeros(4), torch.full((4,), 0.3), prior_std=0.7)
    attach(weight, 0.01, 0.02)
    weight.shrinkage = torch.tensor([0.5, 0.25, 0.05, 2.0])
    weight.prior_seed, weight.prior_spread = 9, 0.7
    whole = weight.get_extra_state()
    weight.prior_spread = 0.0
    assert torch.equal(weight.get_extra_state(), whole[:12])
    for length, learns, shrinkage, spread in [
        (4, False, AS_IS, 0.0),
        (8, True, AS_IS, 0.0),
        (12, True, (0.5, 0.25, 0.05, 2.0), 0.0),
        (14, True, (0.5, 0.25, 0.05, 2.0), 0.7),
    ]:
        other = CurvatureWeight(Support((2, 2)), torch.zeros(4), torch.full((4,), 0.3), prior_std=0.1)
        other.prior_seed, other.prior_spread = 3, 0.1
        other.set_extra_state(whole[:length])
        assert other.prior_std == pytest.approx(weight.prior_std)
        assert (other.n_estimates, other.damping == 0.02) == ((0, True) if learns else (-1, False))
        assert torch.equal(other.shrinkage, torch.tensor(shrinkage))
        assert (other.prior_seed, other.prior_spread) == ((9, 0.7) if spread else (0, 0.0))
    for length in (5, 9, 11, 13):
        with pytest.raises(ValueError, match="not enough values"):
            other.set_extra_state(whole[:length])
