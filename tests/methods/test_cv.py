"""cv_adam and cv_sghmc: presets of the paper, options before presets, the cycles of the released code."""

import math

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.models import mlp
from gossamer.optim import SGHMC
from gossamer.posterior import SnapshotPosterior
from gossamer.train import fit

STEPS = 2000


@pytest.fixture(scope="module")
def task():
    return digits.load()


def group_of(name, task, **options):
    return methods.build(name, task, STEPS, **options).optimizer(nn.Linear(2, 2)).param_groups[0]


# Section 2.6 of the paper's released scripts: rate, decay, power of N in k, cycles, epochs.
PAPER = {
    "paper_cifar": (1.0, 5e-4, -1.0, 4, 200),
    "paper_example1": (0.01, 2e-4, -0.5, 6, 3000),
    "paper_example2": (0.01, 5e-4, -0.5, 6, 6000),
    "paper_example3": (0.1, 5e-4, -0.5, 6, 3000),
}


@pytest.mark.parametrize("name", ["cv_adam", "cv_sghmc"])
@pytest.mark.parametrize("preset", PAPER)
def test_a_preset_in_reference_mode_is_the_paper(task, name, preset):
    lr, decay, power, cycles, epochs = PAPER[preset]
    group = group_of(name, task, preset=preset, mode="reference")
    assert (group["lr"], group["weight_decay"], group["momentum"], group["scale_lr"]) == (lr, decay, 0.1, 0.1)
    assert group["temperature"] == pytest.approx(task.n_data**power)
    assert group["mode"] == "reference"
    rate, ahead = methods.build(name, task, STEPS, preset=preset, mode="reference").lr, round(STEPS / epochs)
    for step in (0, 7, 500, STEPS - 1):
        phase = (step + ahead) * cycles % STEPS / STEPS
        assert rate(step) == pytest.approx(lr / 2 * (1 + math.cos(math.pi * phase)))


@pytest.mark.parametrize("name", ["cv_adam", "cv_sghmc"])
def test_reference_mode_without_a_preset_is_that_of_the_images(task, name):
    plain, images = (group_of(name, task, mode="reference", preset=preset) for preset in (None, "paper_cifar"))
    assert {**plain, "params": None} == {**images, "params": None}


@pytest.mark.parametrize("name", ["cv_adam", "cv_sghmc"])
def test_what_is_given_comes_before_the_preset(task, name):
    given = {"lr": 0.7, "weight_decay": 0.0125, "momentum": 0.0, "temperature": 0.5, "scale_lr": 0.25}
    given = {key: value for key, value in given.items() if key in methods.options_of(name)}
    for mode in ("default", "reference"):
        group = group_of(name, task, preset="paper_example1", mode=mode, **given)
        assert {key: group[key] for key in given} == given


@pytest.mark.parametrize("name", ["cv_adam", "cv_sghmc"])
def test_a_preset_in_the_default_mode_leaves_the_temperature_its_meaning(task, name):
    preset, plain = group_of(name, task, preset="paper_example3"), group_of(name, task)
    assert (preset["lr"], preset["momentum"]) == (0.1, 0.1)
    assert preset["temperature"] == plain["temperature"]
    assert preset["scale_lr"] == plain["scale_lr"]


@pytest.mark.parametrize("name", ["cv_adam", "cv_sghmc"])
def test_an_unknown_preset_is_named(task, name):
    with pytest.raises(ValueError, match=r"preset must be one of paper_cifar, .*; got 'paper'"):
        methods.build(name, task, STEPS, preset="paper")


def test_snapshots_are_where_the_rate_is_lowest(task):
    method = methods.build("cv_sghmc", task, STEPS, cycles=5)
    at = sorted(method.collector().at)
    assert at == [400, 800, 1200, 1600, 2000]
    rates = [method.lr(step) for step in range(STEPS)]
    lowest = [step + 1 for step in range(STEPS) if step + 1 == STEPS or rates[step + 1] > rates[step]]
    assert lowest == at


def test_the_released_code_keeps_other_networks(task):
    method = methods.build("cv_sghmc", task, STEPS, mode="reference")
    epochs = [step // 10 - 1 for step in sorted(method.collector().at)]
    assert epochs == [46, 47, 48, 95, 96, 97, 144, 145, 146, 193, 194, 195]
    assert method.lr(STEPS - 5) > 0.99  # and its last epoch is at the highest rate


def test_the_same_seed_gives_the_same_noise_whatever_else_is_drawn(task):
    """The optimizer's generator is its own, seeded where the training starts."""
    torch.manual_seed(0)
    noise = [methods.build("cv_sghmc", task, 10, cycles=1).optimizer(nn.Linear(2, 2)).noise for _ in range(2)]
    torch.manual_seed(0)
    again = methods.build("cv_sghmc", task, 10, cycles=1).optimizer(nn.Linear(2, 2)).noise
    first = [one.like(torch.zeros(4)) for one in noise]
    assert not torch.equal(first[0], first[1])
    assert torch.equal(again.like(torch.zeros(4)), first[0])


def test_too_short_a_training_says_what_to_do(task):
    with pytest.raises(ValueError, match="cycles must be between 1 and the number of steps; got 4 cycles in 3 steps"):
        methods.build("cv_sghmc", task, 3)


def test_the_reference_mode_runs_to_the_end(task):
    for preset in (None, "paper_example3"):
        torch.manual_seed(0)
        method = methods.build("cv_sghmc", task, 240, mode="reference", preset=preset)
        posterior = fit(method, mlp(64, (32,)), task, 240)
        assert isinstance(posterior, SnapshotPosterior)
        assert evaluate(posterior, task, n_draws=12, split="val")["accuracy"] > 0.4  # 0.1 by chance
    assert isinstance(method.optimizer(mlp(64, (4,))), SGHMC)
