"""SPLBNN and SVBNN on the simulated examples: the rows of Table 4 that Ke and Fan compare with, trained here.

A variable is selected if a path of weights leads from it to the output, as Sun et al. count; predictions are those of
the mean network. Settings were chosen on held-out rows of other data (seed 100).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from gossamer import methods
from gossamer.evaluate import evaluate
from gossamer.models import mlp
from gossamer.posterior import SingleNetwork
from gossamer.train import Training
from gossamer.types import Task
from reproductions.parts import PartSettings, Row, Tick

__all__ = ["RIVALS", "Rival", "measure", "selected"]

BATCH = 500  # that of both papers, nearly: 500 and 512


class Rival(NamedTuple):
    """A method, how its training is called in the table, its length and its options."""

    method: str
    training: str
    epochs: int
    options: dict[str, Any]


RIVALS = {
    "SPLBNN": Rival("splbnn", "best of 3 starts by evidence", 300, {"starts": 3, "lr": 0.02}),
    "SVBNN": Rival("svbnn", "one start", 100, {"lr": 0.01}),
}


def measure(settings: PartSettings, tasks: list[Task], tick: Tick) -> list[Row]:
    """A row for each repetition: loss on the training data, score on fresh ones, variables selected."""
    rows = []
    steps = settings["epochs"] * -(-tasks[0].n_data // settings["batch_size"])
    for number, task in enumerate(tasks):
        seed = settings["seed"] + number
        torch.manual_seed(seed)
        network = mlp(task.input_shape[0], settings["hidden"], task.n_outputs)
        method = methods.build(RIVALS[settings["method"]].method, task, steps, **settings["options"])
        training = Training(method, network, task, steps, batch_size=settings["batch_size"], seed=seed)
        for values in training.run():
            if training.step % max(1, steps // 20) == 0:
                done = number * steps + training.step
                tick(done, len(tasks) * steps, f"repetition {number + 1}, loss {float(values['nll']):.3f}")
        posterior = SingleNetwork(training.posterior().model)
        scores = evaluate(posterior, task, n_draws=1)
        score = scores["accuracy"] if "accuracy" in scores else scores["rmse"] ** 2
        train_nll = float(evaluate(posterior, task._replace(test=task.train), n_draws=1)["nll"])
        found = selected(next(iter(posterior.draws(1))))
        row = {"train_nll": round(train_nll, 5), "score": round(float(score), 5), "selected": found}
        rows.append({"repetition": number, "start": 0, **row})
    return rows


def selected(network: nn.Module) -> list[int]:
    """Inputs from which a path of weights that are not zero leads to the output of a multilayer perceptron.

    Example:
        >>> network = mlp(3, (2,), 1)
        >>> network[1].weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
        >>> network[3].weight.data = torch.tensor([[0.0, 1.0]])  # the first unit is not read
        >>> selected(network)
        [1, 2]
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    reached = torch.ones(layers[-1].out_features, dtype=torch.bool)
    for layer in reversed(layers):
        reached = (layer.weight.detach()[reached] != 0).any(0)
    inputs: list[int] = reached.nonzero().flatten().tolist()
    return inputs
