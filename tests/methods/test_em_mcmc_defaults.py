"""em_mcmc and cv_sghmc as they are without an option: they learn, prune something, and their draws differ."""

from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.models import conv_net, mlp
from gossamer.posterior import predict
from gossamer.train import Training

STEPS = 450  # 30 epochs
NETWORKS = {"mlp": lambda: mlp(64, (128, 128)), "conv_net": conv_net}


@pytest.fixture(scope="module")
def task():
    return digits.load()


def trained(task, name, network, steps=STEPS, seed=0, **options):
    torch.manual_seed(seed)
    training = Training(methods.build(name, task, steps, **options), NETWORKS[network](), task, steps, seed=seed)
    for _ in range(steps):
        training.advance()
    return training


def nonzero_share(network):
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    return sum(int((layer.weight != 0).sum()) for layer in layers) / sum(layer.weight.numel() for layer in layers)


@pytest.mark.parametrize("network", NETWORKS)
def test_the_defaults_train_a_network_and_prune_it(task, network):
    training = trained(task, "em_mcmc", network)
    posterior = training.posterior()
    assert evaluate(posterior, task, n_draws=20, split="val")["accuracy"] > 0.95
    shares = {nonzero_share(drawn) for drawn in posterior.draws(20)}
    assert len(shares) == 1  # all are drawn after the last cut
    assert 0.2 < shares.pop() < 0.95


def test_the_default_sampler_trains_a_conv_net(task):
    posterior = trained(task, "cv_sghmc", "conv_net").posterior()
    assert evaluate(posterior, task, n_draws=20, split="val")["accuracy"] > 0.95


@pytest.mark.parametrize("network", NETWORKS)
def test_a_density_of_a_twentieth_is_reached_by_every_draw_and_works(task, network):
    posterior = trained(task, "em_mcmc", network, density=0.05).posterior()
    for drawn in posterior.draws(20):
        assert nonzero_share(drawn) == pytest.approx(0.05, abs=1e-3)
    assert evaluate(posterior, task, n_draws=20, split="val")["accuracy"] > 0.93


def test_draws_of_several_cycles_have_one_support_and_differ(task):
    posterior = trained(task, "em_mcmc", "mlp", density=0.05).posterior()
    ends = [drawn[1].weight.detach().clone() for drawn in posterior.draws(3)]  # the ends of the last three cycles
    assert len(list(posterior.draws(20))) == 3
    active = ends[0] != 0
    for before, later in pairwise(ends):
        assert torch.equal(later != 0, active)
        assert float((later - before)[active].std()) > 0.1 * float(before[active].std())
    prediction = predict(posterior, task.transform(task.val[0]), n_draws=3)
    assert float(prediction.mutual_information.mean()) > 1e-3  # 1e-6 where all were of one cycle


def test_noise_begins_where_pruning_ends(task):
    method = methods.build("em_mcmc", task, 800)
    model = method.prepare(mlp(64, (8,)))
    optimizer = method.optimizer(model)
    prune, decay = method.rules(model, optimizer)
    assert (decay.warmup_steps, prune.warmup_steps, prune.last_step) == (75, 200, 300)
    assert min(method.collector().at) > 300
    training, heat = Training(methods.build("em_mcmc", task, 80), mlp(64, (8,)), task, 80), []
    for _ in range(80):
        training.advance()
        heat.append(training.optimizer.param_groups[0]["temperature"])
    assert heat == [0.0] * 30 + [0.1] * 50


@pytest.mark.parametrize(("cycles", "until"), [(1, 600), (2, 600), (3, 400), (8, 150)])
def test_whatever_the_cycles_the_last_is_for_draws(task, cycles, until):
    method = methods.build("em_mcmc", task, 800, cycles=cycles, density=0.1)
    model = method.prepare(mlp(64, (8,)))
    prune, _ = method.rules(model, method.optimizer(model))
    assert prune.last_step == until
    assert prune.target_density(until) == 0.1
    assert len(method.collector().at) == max(1, cycles - 1)


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_thresholds_follow_the_size_of_the_first_weights(task, scale):
    """A wide layer begins with smaller weights: no number serves all."""

    def thresholds(factor):
        torch.manual_seed(0)
        model = mlp(64, (8,))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)
        method = methods.build("em_mcmc", task, 800)
        model = method.prepare(model)
        prune, decay = method.rules(model, method.optimizer(model))
        return prune.threshold, decay.threshold

    (hard, soft), (scaled, _) = thresholds(1.0), thresholds(scale)
    assert hard.keys() == {"1", "3"}
    for name in hard:
        assert scaled[name] == pytest.approx(scale**2 * hard[name], rel=1e-5)
        assert soft[name] == pytest.approx(10 * hard[name])


def test_what_is_given_comes_before_what_the_layer_began_with(task):
    method = methods.build("em_mcmc", task, 800, hard_threshold=0.0)
    model = method.prepare(mlp(64, (8,)))
    prune, _ = method.rules(model, method.optimizer(model))
    assert prune.threshold == 0.0


@pytest.mark.parametrize("name", ["cv_sghmc", "em_mcmc"])
def test_no_two_draws_are_of_one_cycle(task, name):
    """Three of one cycle, a fiftieth of it apart at a rate of almost zero, predicted the same."""
    posterior = trained(task, name, "mlp").posterior()
    x = task.transform(task.val[0])
    probs = torch.stack([drawn(x).softmax(1) for drawn in posterior.draws(50)]).detach()
    assert len(probs) >= 3
    for first, second in combinations(probs, 2):
        assert float((first - second).abs().sum(1).mean() / 2) > 0.01  # total variation; it was 0.001
