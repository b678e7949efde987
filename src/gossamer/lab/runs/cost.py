"""What a run cost: operations counted, time and memory measured, and how long a prediction takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer import metrics
from gossamer.lab.record import Run
from gossamer.lab.runs.tally import Tally, n_held, work_of
from gossamer.layers import SparseModule, sparse_weights
from gossamer.metrics import LayerCost
from gossamer.posterior import draw
from gossamer.types import Posterior, Task

if TYPE_CHECKING:  # the training loop is slow to import, and reading a run does not need it
    from gossamer.train import Training

PREDICTED = 128  # examples of the batch whose prediction is timed
ROUNDS, PATIENCE = 7, 5.0  # so often, but no longer than so many seconds


def cost_of(
    training: Training, posterior: Posterior, task: Task, tally: Tally, run: Run
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The entries of ``cost`` but for the time of a prediction, and a row for each layer.

    Operations are those of the steps that were taken, with the densities that the steps had. The members of an ensemble
    are trained one after another, so that the steps of all are counted. Where a rule evaluates the loss itself, such as
    a trajectory of HMC on all examples, each pass costs as much as that of a step.

    Active weights are those of all networks that predict (members of an ensemble, snapshots), and the density is the
    mean of theirs.
    """
    layers, rows = _layers(training, posterior, task)
    kept = [sizes_of(network) for network in posterior.networks()]
    # A rule may still hold stored entries of the network at zero, if that itself is the posterior's.
    held = n_held(training) if posterior.model is training.model and len(kept) == 1 else 0
    active = sum(size.active for sizes in kept for size in sizes.values()) - held
    total = sum(size.total for sizes in kept for size in sizes.values())
    per_example = metrics.training_macs(_over_steps(layers, rows, tally))
    n_examples = len(task.train[1]) * training.step / training.batches.per_epoch  # of the steps alone
    cost = {
        "active_parameters": active,
        "total_parameters": total,
        "density": active / total,
        "checkpoint_bytes": (run.checkpoint_folder / f"step-{training.step}.safetensors").stat().st_size,
        "inference_macs": metrics.inference_macs(_over_networks(layers, kept)),
        "training_macs_per_example": per_example,
        "training_macs": per_example * max(n_examples, tally.examples),
        "parameter_bytes": posterior.n_bytes,
        "seconds": tally.seconds,
        "peak_memory_bytes": tally.peak_memory,
    }
    return cost, rows


def prediction_seconds(predict: Callable[[Tensor], object], x: Tensor) -> float:
    """Median time of predicting one batch of inputs, its draws included.

    Example:
        >>> prediction_seconds(lambda x: x @ x.T, torch.zeros(500, 300)) > 0
        True
    """
    # One thread's CPU time is disturbed least by other work on the machine.
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    clock = time.thread_time if alone else time.perf_counter
    batch, times, start = x[:PREDICTED], list[float](), time.perf_counter()
    predict(batch)  # warms up
    while len(times) < ROUNDS and (not times or time.perf_counter() - start < PATIENCE):
        before = clock()
        predict(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(clock() - before)
    return median(times)


def _layers(training: Training, posterior: Posterior, task: Task) -> tuple[list[LayerCost], list[dict[str, Any]]]:
    """What the cost of each layer depends on, and its row in the result."""
    weights = sparse_weights(training.model)
    work = work_of(weights, training)
    example = task.transform(task.test[0][:1]).to(training.fabric.device)
    plain = draw(training.model, at_mean=True) if weights else next(posterior.draws(1))
    modules = dict(plain.named_modules())
    shapes = {name.removesuffix(".weight"): list(p.shape) for name, p in plain.named_parameters()}
    kinds = {
        id(weight): type(module.template).__name__
        for module in training.model.modules()
        if isinstance(module, SparseModule)
        for weight in module.named_weights().values()
    }
    layers, rows = [], []
    for name, macs in metrics.dense_macs(plain, example).items():
        weight = weights.get(name)
        shape = shapes.get(name, []) if weight is None else list(weight.support.shape)
        total = (math.prod(shape) if shape else 0) if weight is None else weight.support.size
        active = work[name][0] if name in work else total
        kind = type(modules.get(name, plain)).__name__ if weight is None else kinds[id(weight)]
        is_noisy = weight is not None and weight.n_products == 2
        layer = LayerCost(name, kind, macs, active / total if total else 1.0, is_noisy)
        layers.append(layer)
        size = {"shape": shape, "active": active, "total": total}
        rows.append({"name": name, "kind": layer.kind, "dense_macs": macs} | size)
    return layers, rows


class Size(NamedTuple):
    """Entries of a weight."""

    active: int
    total: int


def sizes_of(network: nn.Module) -> dict[str, Size]:
    """The weights of a network by name; of a plain network's, the entries that are not zero count as active.

    Example:
        >>> sizes_of(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
        {'0': Size(active=8, total=8)}
    """
    if weights := sparse_weights(network):
        return {name: Size(weight.support.n_active, weight.support.size) for name, weight in weights.items()}
    return {
        f".{name}".removesuffix(".weight").removesuffix("_weight").strip("."): Size(int(p.count_nonzero()), p.numel())
        for name, p in network.named_parameters()
        if name.endswith("weight") and p.dim() > 1
    }


def _over_networks(layers: list[LayerCost], kept: Sequence[Mapping[str, Size]]) -> list[LayerCost]:
    """The layers as they are on average over several networks that are kept; the one network is counted already."""
    if len(kept) == 1:
        return layers
    return [
        layer._replace(density=fmean(sizes[layer.name].active / sizes[layer.name].total for sizes in kept))
        if all(layer.name in sizes for sizes in kept)
        else layer
        for layer in layers
    ]


def _over_steps(layers: list[LayerCost], rows: list[dict[str, Any]], tally: Tally) -> list[LayerCost]:
    """The layers as they were on average over the steps of the training, not as they are at its end."""
    if not tally.steps:  # trained to its end by an earlier version, which did not count
        return layers
    entries = {row["name"]: tally.steps * row["total"] for row in rows}
    return [
        layer._replace(
            density=tally.active[layer.name] / entries[layer.name],
            formed=tally.formed[layer.name] / entries[layer.name],
        )
        if layer.name in tally.active
        else layer
        for layer in layers
    ]
