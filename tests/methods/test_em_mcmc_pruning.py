"""em_mcmc as it trains: the budget at every step, storage that shrinks, networks that can be compacted."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.layers import sparse_weights
from gossamer.models import conv_net, mlp
from gossamer.schedules import cubic
from gossamer.sparsity import Prune, SpikeSlabDecay
from gossamer.sparsity.groups import grouped_weights
from gossamer.train import Training, fit

STEPS, DENSITY, END, PERIOD = 80, 0.3, 60, 4
BEGIN = END * 2 // 3


@pytest.fixture(scope="module")
def task():
    return digits.load()


def training_of(task, model=None, **options):
    torch.manual_seed(0)
    told = {"density": DENSITY, "update_period": PERIOD, "until": END / STEPS} | options
    method = methods.build("em_mcmc", task, STEPS, **told)
    return Training(method, mlp(64, (20, 16)) if model is None else model, task, STEPS)


def counts(model):
    """Entries of each weight that are not zero: what the network computes with."""
    return [int((weight.values() != 0).sum()) for weight in grouped_weights(model).values()]


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("group", ["channel", "output"])
def test_the_budget_is_kept_at_every_forward_pass(task, group, feedback):
    training = training_of(task, group=group, feedback=feedback)
    weights = list(grouped_weights(training.model).values())
    sizes = [weight.size for weight in weights]
    whole = [weight.members("input" if group == "channel" else group).shape[1] for weight in weights]
    share = cubic(1.0, DENSITY, BEGIN, END)
    seen = []
    training.model.register_forward_pre_hook(lambda model, _: seen.append(counts(model)))
    for _ in range(STEPS):
        training.advance()
    for step, active in enumerate(seen):  # what the pass of step + 1 finds is what the checks up to step left
        last = min(step // PERIOD * PERIOD, END)
        asked = share(last) if last > BEGIN else 1.0
        assert active == [round(asked * n) // size * size for n, size in zip(sizes, whole, strict=True)], step
    assert counts(training.model) == seen[-1]


def test_what_is_cut_is_stored_nowhere(task):
    training = training_of(task)
    for _ in range(STEPS):
        training.advance()
    optimizer, weights = training.optimizer, sparse_weights(training.model)
    kept, size = (sum(w.support.n_active for w in weights.values()), sum(w.shape.numel() for w in weights.values()))
    assert kept == round(DENSITY * size)
    for weight in weights.values():
        n = weight.support.n_active
        assert n == int((weight.dense_mean() != 0).sum())
        state = [value for value in optimizer.state[weight.mean].values() if torch.is_tensor(value) and value.dim()]
        assert {tuple(tensor.shape) for tensor in [weight.mean, weight.mean.grad, *state]} == {(n,)}


@pytest.mark.parametrize("build", [lambda: mlp(64, (20, 16)), lambda: conv_net(width=8)], ids=["mlp", "conv_net"])
def test_every_draw_has_the_density_and_its_compact_network_the_same_outputs(task, build):
    torch.manual_seed(0)
    method = methods.build("em_mcmc", task, 3 * STEPS, density=DENSITY, group="channel")
    posterior = fit(method, build(), task, 3 * STEPS)
    x, n_draws = task.transform(task.test[0][:16]), 0
    for drawn in posterior.draws(20):
        n_draws += 1
        pruned = [layer for layer in drawn.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        share = sum(int((layer.weight != 0).sum()) for layer in pruned) / sum(layer.weight.numel() for layer in pruned)
        assert 0.2 < share <= DENSITY
        small = gossamer.compact(drawn)
        torch.testing.assert_close(small(x), drawn(x), rtol=1e-4, atol=1e-4)
        assert small.compaction.n_weights[1] < small.compaction.n_weights[0] / 2
    assert n_draws == 3  # of four, those of the cycles that end after the last check
    assert evaluate(posterior, task, n_draws=3, split="val")["accuracy"] > 0.5


def test_the_rules_are_told_what_the_method_was(task):
    model = conv_net(width=8)
    method = methods.build(
        "em_mcmc",
        task,
        1000,
        group="kernel",
        feedback=True,
        until=0.6,
        preset="paper_cifar",
    )
    model = method.prepare(model)
    prune, decay = method.rules(model, method.optimizer(model))
    assert isinstance(prune, Prune)
    assert isinstance(decay, SpikeSlabDecay)
    assert (prune.feedback_steps, prune.warmup_steps, prune.update_period, prune.scoring.groups) == (
        600,
        250,
        20,
        "kernel",
    )
    assert (decay.groups, decay.threshold) == ("kernel", 1e-4)
    assert all(weight.is_conv for weight in prune.weights.values())  # the linear layers of a CNN stay whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0.1, "hard_threshold": 0.1}, "give density or hard_threshold, not both"),
        ({"preset": "paper"}, "preset must be one of paper_cifar"),
        ({"preset": "paper_cifar", "until": 0.2}, "prunes from 0.25 of the training on: until must be later; got 0.2"),
        ({"density": 0.1, "until": 1.0}, "no network would be kept: .* give a smaller until, or train longer"),
    ],
)
def test_options_that_contradict_are_named(task, options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("em_mcmc", task, 1000, **options)


@pytest.mark.parametrize("options", [{"density": 0.2, "group": "channel"}, {"density": 0.05}])
def test_with_feedback_noise_brings_nothing_back(task, options):
    """What is held back meets no curvature: at the slab's decay it would grow, return, and push out what was learnt."""
    accuracy = {}
    for feedback in (False, True):
        torch.manual_seed(0)
        method = methods.build("em_mcmc", task, 300, feedback=feedback, **options)
        accuracy[feedback] = evaluate(fit(method, mlp(64), task, 300), task, n_draws=3, split="val")["accuracy"]
    assert accuracy[True] > accuracy[False] - 0.05
    assert accuracy[True] > 0.85


def test_the_spike_of_feedback_is_narrower_than_the_threshold(task):
    def decay_of(**options):
        method = methods.build("em_mcmc", task, 3000, **options)
        model = method.prepare(mlp(64, (8,)))
        return method.rules(model, method.optimizer(model))[1].spike_decay

    assert decay_of() == decay_of(feedback=True) == 1e-2  # there is no noise as long as something is held back
    noisy = {"feedback": True, "preset": "paper_cifar", "lr": 0.1}  # noise from the start
    assert decay_of(**noisy) == pytest.approx(0.1 / (task.n_data * 0.01))
    assert decay_of(**noisy, hard_threshold=0.001) == pytest.approx(0.1 / (task.n_data * 0.001))
    assert decay_of(**noisy, temperature=1e6) == pytest.approx(1 / 0.1)
    assert decay_of(feedback=True, mode="reference") == 1e-3


def test_the_spike_of_a_short_training_is_narrower(task):
    """Between em_warmup and until, 28 % of the training, the square of what is in the spike falls to e^-4."""
    method = methods.build("em_mcmc", task, 400)
    model = method.prepare(mlp(64, (8,)))
    _, decay = method.rules(model, method.optimizer(model))
    left = 1.0
    for step in range(decay.warmup_steps, 150):
        left *= (1 - method.lr(step) / (1 - 0.9) * decay.spike_decay) ** 2
    assert 2e-3 < left < 0.1  # the rate is not its mean at every step
