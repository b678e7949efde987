"""em_mcmc: presets of the paper and our own, options before presets, snapshots after the burn-in."""

import pytest
import torch

from gossamer import methods
from gossamer.data import two_moons
from gossamer.models import mlp
from gossamer.train import Training

STEPS = 3000

# Of the released scripts: rate, decays of slab and spike, soft and hard threshold, epochs before the first pruning.
PAPER = {
    "paper_example1": (0.01, 2e-4, 1e-2, 1e-2, 1e-3, 50 / 3000),
    "paper_example2": (0.01, 5e-4, 1e-2, 1e-2, 1e-3, 50 / 6000),
    "paper_example3": (0.1, 5e-4, 1e-2, 2e-2, 1e-3, 50 / 3000),
}


@pytest.fixture(scope="module")
def task():
    return two_moons.load()


def training(task, **options):
    torch.manual_seed(0)
    method = methods.build("em_mcmc", task, STEPS, **options)
    return Training(method, mlp(2, (4,), 2), task, STEPS)


@pytest.mark.parametrize("preset", PAPER)
def test_a_preset_in_reference_mode_is_the_paper(task, preset):
    lr, slab, spike, soft, hard, warmup = PAPER[preset]
    found = training(task, preset=preset, mode="reference")
    group, (prune, decay) = found.optimizer.param_groups[0], found.rules
    assert (group["lr"], group["weight_decay"], group["momentum"], group["scale_lr"]) == (lr, slab, 0.1, 0.1)
    assert group["temperature"] == pytest.approx(task.n_data**-0.5)
    assert (decay.spike_decay, decay.threshold, prune.threshold) == (spike, soft, hard)
    assert prune.warmup_steps == decay.warmup_steps == round(warmup * STEPS)


@pytest.mark.parametrize("preset", ["example1", "example2_wide", "example3"])
def test_a_preset_of_ours_is_not_the_papers(task, preset):
    with pytest.raises(ValueError, match="is not the paper's: take one that is called paper_…, or mode='default'"):
        methods.build("em_mcmc", task, STEPS, preset=preset, mode="reference")


def test_what_may_return_has_a_spike_of_its_own(task):
    decays = [training(task, preset="example2", feedback=feedback).rules[1].spike_decay for feedback in (False, True)]
    assert decays == [0.3, 3.0]


def test_thresholds_of_a_wide_network_are_lower(task):
    narrow, wide = (training(task, preset=name).rules for name in ("example1", "example1_wide"))
    assert wide[0].threshold < narrow[0].threshold
    assert wide[1].threshold < narrow[1].threshold
    assert wide[1].spike_decay == narrow[1].spike_decay


def test_snapshots_are_the_ends_of_cycles_after_the_burn_in(task):
    """Six cycles of 500 steps, of which a half is burn-in."""
    at = sorted(methods.build("em_mcmc", task, STEPS, preset="example1").collector().at)
    assert at == [2000, 2500, 3000]


def test_there_are_few_options():
    """What an experiment needs beside them is in its preset."""
    assert len(methods.options_of("em_mcmc")) <= 13
