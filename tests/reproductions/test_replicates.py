"""Networks trained side by side are the networks that would be trained alone."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from gossamer import methods
from gossamer.data import sun1
from gossamer.models import mlp
from gossamer.train import Training
from reproductions.replicates import Replicates, Tables

STEPS, SEEDS = 40, (0, 1, 2)


@pytest.mark.parametrize("feedback", [False, True])
def test_a_stack_trains_every_network_as_if_alone(feedback):
    """With next to no noise; groups fall into the spike and are pruned on the way."""
    tasks = [sun1.load(n_train=60, n_test=20, seed=seed) for seed in SEEDS]
    torch.manual_seed(0)
    networks = [mlp(1000, (5, 3), 1) for _ in tasks]
    options = {"temperature": 1e-12, "lr": 0.02, "update_period": 5, "feedback": feedback, "hard_threshold": 4e-4}
    together = Replicates(
        methods.build("em_mcmc", tasks[0], STEPS, **options),
        copy.deepcopy(networks),
        tasks,
        batch_size=20,
        seeds=SEEDS,
    )
    for _ in range(STEPS):
        together.advance()
    outputs = together.outputs(Tables.of([task.test for task in tasks]))
    n_left = together.model.selected().sum(1)
    assert (n_left < 1000).all()
    for number, (network, task, seed) in enumerate(zip(networks, tasks, SEEDS, strict=True)):
        method = methods.build("em_mcmc", task, STEPS, **options)
        alone = Training(method, network, task, STEPS, batch_size=20, seed=seed)
        for _ in range(STEPS):
            alone.advance()
        with torch.no_grad():
            expected = alone.model(task.transform(task.test[0]))
        torch.testing.assert_close(outputs[number], expected, rtol=1e-3, atol=1e-4)


def test_the_penalty_of_a_method_counts():
    """Networks that are penalised side by side are those that are penalised alone."""
    tasks = [sun1.load(n_train=60, n_test=20, seed=seed) for seed in SEEDS]
    torch.manual_seed(0)
    networks = [mlp(1000, (5, 3), 1) for _ in tasks]

    def method(task):
        ridge = lambda model, step: 0.05 * sum(p.square().sum() for p in model.parameters())  # noqa: E731
        return replace(methods.build("sgd", task, 10, lr=0.01), penalty=ridge)

    together = Replicates(method(tasks[0]), copy.deepcopy(networks), tasks, batch_size=20, seeds=SEEDS)
    for _ in range(10):
        together.advance()
    outputs = together.outputs(Tables.of([task.test for task in tasks]))
    for number, (network, task, seed) in enumerate(zip(networks, tasks, SEEDS, strict=True)):
        alone = Training(method(task), network, task, 10, batch_size=20, seed=seed)
        for _ in alone.run():
            pass
        with torch.no_grad():
            expected = alone.model(task.transform(task.test[0]))
        torch.testing.assert_close(outputs[number], expected, rtol=1e-3, atol=1e-4)


def test_a_method_with_gaussian_weights_is_rejected():
    """It would train without its noise, and without its KL."""
    task = sun1.load(n_train=60, n_test=20, seed=0)
    with pytest.raises(ValueError, match="one value per weight"):
        Replicates(methods.build("vi", task, 10), [mlp(1000, (5,), 1)], [task], batch_size=20, seeds=[0])
