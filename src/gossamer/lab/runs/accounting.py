"""What a training has done and cost: the work of its steps, its records, its memory, the time of a prediction."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer import metrics
from gossamer.distributed import (
    average_over_ranks,
    from_every_rank,
    largest_over_ranks,
    rank,
    sum_over_ranks,
    world_size,
)
from gossamer.evaluate import evaluate
from gossamer.lab.record import Run
from gossamer.layers import SparseModule, SparseWeight, density, sparse_weights
from gossamer.layers.swap import plain_weights
from gossamer.metrics import LayerCost
from gossamer.posterior import SingleNetwork, draw
from gossamer.types import Posterior, Task

if TYPE_CHECKING:
    from gossamer.train import Training

PREDICTED = 128  # examples of the batch whose prediction is timed
ROUNDS, PATIENCE = 7, 5.0  # at most this many rounds, or this many seconds

Work = dict[str, tuple[int, int]]
"""By weight: the entries that the network computes with, and the others whose gradient is formed as well."""


def work_of(weights: Mapping[str, SparseWeight], training: Training) -> Work:
    """The work of the coming step: of sparse weights, and of plain ones of which a rule holds a part at zero."""
    work = {
        name: (weight.support.n_active, 0 if weight.probe is None else weight.support.size - weight.support.n_active)
        for name, weight in weights.items()
    }
    for rule in training.rules:
        for name, (held, learning) in rule.held.items():
            active, formed = work.get(name) or (training.model.get_parameter(f"{name}.weight".strip(".")).numel(), 0)
            work[name] = (active - held, formed + learning)
    return work


def n_held(training: Training) -> int:
    """Entries that are stored, but zero in the network."""
    return sum(held for rule in training.rules for held, _ in rule.held.values())


def density_of(training: Training) -> float:
    """Share of the weights that the network computes with."""
    model, weights = training.model, sparse_weights(training.model)
    total = sum(w.support.size for w in weights.values()) + sum(p.numel() for _, _, p in plain_weights(model))
    return density(model) - n_held(training) / total if total else 1.0


@dataclass
class Tally:
    """Sums over the steps of a training; a checkpoint holds them, so that a resumed run ends with the same ones."""

    sums: dict[str, Tensor] = field(default_factory=dict)  # since the last row of metrics
    count: int = 0
    seconds: float = 0.0  # of the whole training
    seconds_before: float = 0.0  # at the last row of metrics
    steps: int = 0  # that the two below sum over
    active: dict[str, int] = field(default_factory=dict)  # active entries of each weight
    formed: dict[str, int] = field(default_factory=dict)  # inactive entries of each weight whose gradient was formed
    examples: int = 0  # that were passed forward and back, by steps and by rules that evaluate the loss, on all ranks
    uncounted: int = 0  # of these: on this rank, since the last checkpoint
    peak_memory: int | None = None  # the largest growth of tensors on a GPU, of any rank, in bytes

    def add(self, values: Mapping[str, Tensor], work: Work, seconds: float) -> None:
        """One step: its losses, which stay on their device, its work and its time."""
        self.sums = {name: self.sums.get(name, 0) + value.double() for name, value in values.items()}
        self.count += 1
        self.steps += 1
        self.seconds += seconds
        for name, (active, formed) in work.items():
            self.active[name] = self.active.get(name, 0) + active
            self.formed[name] = self.formed.get(name, 0) + formed

    @contextlib.contextmanager
    def counting(self, model: nn.Module) -> Iterator[None]:
        """Count the examples that the network sees with gradients; replays of captured passes are not seen."""

        def see(module: nn.Module, args: tuple[Any, ...]) -> None:
            if torch.is_grad_enabled() and args and isinstance(args[0], Tensor):
                self.uncounted += len(args[0])

        handle = model.register_forward_pre_hook(see)
        try:
            yield
        finally:
            handle.remove()

    def means(self) -> dict[str, float]:
        """The means since the last call, over all ranks, which must call this together."""
        totals = average_over_ranks(torch.stack(list(self.sums.values()))).tolist()
        means = {name: total / self.count for name, total in zip(self.sums, totals, strict=True)}
        means["steps_per_second"] = self.count / max(self.seconds - self.seconds_before, 1e-9)
        self.sums, self.count, self.seconds_before = {}, 0, self.seconds
        return means

    def state_dict(self, device: torch.device | None = None) -> dict[str, Any]:
        """For the checkpoint, with the sums of each rank: all must call this together."""
        self.examples, self.uncounted = self.examples + sum_over_ranks(self.uncounted, device), 0
        peak = largest_over_ranks(-1 if self.peak_memory is None else self.peak_memory, device)
        self.peak_memory = None if peak < 0 else peak
        if world_size() == 1 or not self.sums:
            return dict(vars(self))
        every = from_every_rank(torch.stack(list(self.sums.values()))).unbind(1)
        return vars(self) | {"sums": dict(zip(self.sums, every, strict=True))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From the checkpoint; one of an earlier version has neither counted the work of its steps nor memory."""
        later = ("steps", "active", "formed", "examples", "uncounted", "peak_memory")
        for name, value in vars(self).items():
            setattr(self, name, state.get(name, value) if name in later else state[name])
        self.sums = {name: _own(total) for name, total in self.sums.items()}


def _own(totals: Tensor) -> Tensor:
    """This rank's part of the sums of all ranks; the mean of them if the number of ranks is another one now."""
    if not totals.dim():  # of one rank
        return totals
    return totals[rank()] if len(totals) == world_size() else totals.mean()


def record_epoch(
    run: Run, task: Task, training: Training, means: Mapping[str, float], seconds: float
) -> dict[str, Any]:
    """Write down the epoch that just ended, by the means of its steps, and return its row."""
    unit = math.log(task.target_std)  # densities in original units, as in the validation
    row: dict[str, Any] = {
        "step": training.step,
        "epoch": training.step // training.batches.per_epoch,
        "loss": means["loss"] + unit,
        "nll": means["nll"] + unit,
        "kl": means["penalty"],
        "lr": training.lr,
        "density": density_of(training),
    }
    if len(task.val[1]):
        # The network at its means draws no random number, so this evaluation does not change the training.
        values = evaluate(SingleNetwork(training.model), task, n_draws=1, split="val")
        row |= {f"val_{name}": values[name] for name in ("accuracy", "rmse", "nll") if name in values}
    row |= {"examples_per_second": means["steps_per_second"] * training.batches.batch_size, "seconds": seconds}
    run.append(row)
    return row


def describe(row: Mapping[str, Any], epochs: int) -> str:
    """The row of an epoch in words."""
    parts = [f"epoch {row['epoch']}/{epochs}", f"loss {row['loss']:.3f}"]
    if "val_accuracy" in row:
        parts.append(f"val accuracy {row['val_accuracy']:.1%}")
    elif "val_rmse" in row:
        parts.append(f"val rmse {row['val_rmse']:.3f}")
    if row["kl"]:  # most methods have none in their loss
        parts.append(f"KL {row['kl']:.3f}")
    parts += [f"density {row['density']:.1%}", f"{row['examples_per_second']:,.0f} examples/s"]
    return "  ".join(parts)


def watch_memory(device: torch.device) -> int:
    """Count the peak of a GPU's memory from now on; returns the bytes of what is there already, 0 on a CPU.

    A CPU has no such count: the system keeps one largest size per process, whatever else that process has done.
    """
    if device.type != "cuda":
        return 0
    torch.cuda.init()  # type: ignore[no-untyped-call]  # a device that nothing has used yet has no statistics
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


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
    """Median time of predicting one batch of inputs, its draws included."""
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
        is_noisy = weight is not None and weight.noises_outputs and weight.noise == "local"
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
    """The weights of a network by name; of a plain network's, the entries that are not zero count as active."""
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
