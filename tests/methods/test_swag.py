"""swag: when it collects, at which rate, and with which statistics of batch normalisation."""

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import two_moons
from gossamer.train import fit

STEPS = 600


@pytest.fixture(scope="module")
def task():
    return two_moons.load()


def test_the_rate_is_the_papers(task):
    """Constant until half of the beginning of the collection, swag_lr from 0.9 of it."""
    rate = methods.build("swag", task, STEPS, lr=0.1, swag_lr=0.02, begin=0.5).lr
    assert [round(rate(step), 6) for step in (0, 150, 210, 270, 599)] == [0.1, 0.1, 0.06, 0.02, 0.02]


def test_the_rate_of_the_path_is_half_the_rate_before(task):
    for given, last in (({}, 0.05), ({"lr": 0.003}, 0.0015), ({"lr": 0.003, "swag_lr": 0.01}, 0.01)):
        assert methods.build("swag", task, STEPS, **given).lr(STEPS) == pytest.approx(last)


def test_it_collects_after_each_epoch_of_the_papers_training(task):
    collector = methods.build("swag", task, STEPS).collector()
    for step in range(1, STEPS + 1):
        collector.observe(nn.Linear(2, 2), step)
    assert (collector.begin, collector.every, collector.n) == (321, 2, 140)


def test_batch_normalisation_is_refreshed_for_each_draw(task):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    posterior = fit(methods.build("swag", task, STEPS), network, task, STEPS)
    x = task.transform(task.train[0])
    for drawn in posterior.draws(2):
        assert bool((drawn[1].running_mean - drawn[0](x).mean(0)).abs().max() < 1e-2)


def test_a_share_out_of_range_is_refused(task):
    with pytest.raises(ValueError, match="begin is a share of the training, at least 0 and less than 1; got 1"):
        methods.build("swag", task, STEPS, begin=1.0)
