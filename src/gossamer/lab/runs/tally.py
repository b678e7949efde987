"""What a training records as it goes: a row per epoch, a row per update of the subspace, the work of its steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gossamer.distributed.ranks import (
    average_over_ranks,
    from_every_rank,
    largest_over_ranks,
    rank,
    sum_over_ranks,
    world_size,
)
from gossamer.evaluate import evaluate
from gossamer.lab.record import Run
from gossamer.layers import SparseWeight, density, sparse_weights
from gossamer.layers.swap import plain_weights
from gossamer.posterior import SingleNetwork
from gossamer.types import Task

if TYPE_CHECKING:
    from gossamer.train import Training

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
    peak_memory: int | None = None  # the largest growth of any process that has trained here, of any rank, in bytes

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

    def see_memory(self, growth: int | None) -> None:
        """Raise the peak of memory."""
        if growth is not None:
            self.peak_memory = max(growth, self.peak_memory or 0)

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


def record_updates(run: Run, training: Training) -> None:
    """Write down the updates of the subspace that are not in the record yet."""
    for update in training.updates:
        run.append_update(update)
    training.updates.clear()


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
    run.append_metrics(row)
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
