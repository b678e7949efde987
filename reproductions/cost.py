"""What runs will cost, before any is made: operations, and time on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from gossamer import methods, models
from gossamer.lab.runs.accounting import work_of
from gossamer.layers import sparse_weights
from gossamer.likelihoods import Categorical
from gossamer.metrics import LayerCost, dense_macs, training_macs
from gossamer.models import mlp
from gossamer.train import Training
from gossamer.types import Task

__all__ = ["Cost", "cost_of", "macs_per_second", "n_weights"]

Told = Mapping[str, Any]


class Set(NamedTuple):
    """What a cost depends on, so that no data are needed to know it."""

    n: int
    shape: tuple[int, ...]
    n_outputs: int


SETS = {
    "cifar10": Set(50_000, (3, 32, 32), 10),
    "cifar100": Set(50_000, (3, 32, 32), 100),
    "reproductions.imagenet:load": Set(1_281_167, (3, 224, 224), 1000),
    "digits": Set(959, (1, 8, 8), 10),
    "sun1": Set(10_000, (1000,), 1),
    "sun2": Set(10_000, (2000,), 1),
    "sun3": Set(10_000, (1000,), 2),
    "reproductions.small:cifar10": Set(5000, (3, 16, 16), 10),
    "reproductions.small:cifar100": Set(5000, (3, 16, 16), 20),
}
STAND_IN = Set(100, (3, 16, 16), 10)  # on which a method is asked for its share of the products


class Cost(NamedTuple):
    """Multiply-adds of a training: those of active weights, and those that dense arithmetic does."""

    macs: float
    dense: float


def cost_of(told: Told) -> Cost:
    """The cost of a run, from the network and from the first step of its method: about, where a method prunes later."""
    if "model" not in told:  # a multilayer perceptron, from several starts; other baselines are nothing beside it
        return Cost(
            *2 * (3.0 * n_weights(told) * SETS[told["data"]].n * told.get("epochs", 0) * told.get("starts", 1),)
        )
    forward = _forward(told["model"], SETS[told["data"]])
    share, dense = _shares(told["method"], json.dumps(told["options"], sort_keys=True))
    examples = SETS[told["data"]].n * told["epochs"]
    return Cost(share * forward * examples, dense * forward * examples)


def n_weights(told: Told) -> int:
    """Parameters of the network of a run; none for data that are not known here."""
    found = SETS.get(told["data"])
    if found is None or not {"model", "hidden"} & told.keys():
        return 0
    with torch.device("meta"):
        network = (
            _network(told["model"], found) if "model" in told else mlp(found.shape[0], told["hidden"], found.n_outputs)
        )
    return sum(p.numel() for p in network.parameters())


@cache
def macs_per_second() -> float:
    """What this machine does in a step of a small residual network, dense."""
    network, x = models.build("resnet8", STAND_IN.shape, STAND_IN.n_outputs), torch.randn(64, *STAND_IN.shape)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        network(x).square().mean().backward()
        times.append(time.perf_counter() - start)
    return 3 * 64 * sum(dense_macs(network, x[:1]).values()) / min(times)


@cache
def _network(model: str, of: Set) -> nn.Module:
    with torch.device("meta"):
        return models.build(model, of.shape, of.n_outputs)


@cache
def _forward(model: str, of: Set) -> int:
    return sum(dense_macs(_network(model, of), torch.zeros(1, *of.shape, device="meta")).values())


@cache
def _shares(method: str, options: str) -> tuple[float, float]:
    """Multiply-adds of a training step for each one of a dense forward pass, with and without skipping zeros."""
    x, y = torch.zeros(STAND_IN.n, *STAND_IN.shape), torch.arange(STAND_IN.n) % STAND_IN.n_outputs
    task = Task((x, y), (x[:0], y[:0]), (x, y), Categorical(), STAND_IN.n_outputs, class_names=tuple("0123456789"))
    network = models.build("resnet8", STAND_IN.shape, STAND_IN.n_outputs)
    macs = dense_macs(network, x[:1])
    sizes = {name: network.get_parameter(f"{name}.weight").numel() for name in macs}
    own = methods.build(method, task, 1000, **json.loads(options))
    training = Training(own, network, task, 1000, batch_size=50, seed=0)
    weights = sparse_weights(training.model)
    work = work_of(weights, training)
    layers = []
    for name, count in macs.items():
        weight = weights.get(name)
        noisy = weight is not None and weight.noises_outputs and weight.noise == "local"
        active, formed = work.get(name, (sizes[name], 0))
        layers.append(LayerCost(name, "", count, active / sizes[name], noisy, formed / sizes[name]))
    dense = [layer._replace(density=1.0, formed=0.0) for layer in layers]
    return tuple(training_macs(some) / sum(macs.values()) for some in (layers, dense))  # type: ignore[return-value]
