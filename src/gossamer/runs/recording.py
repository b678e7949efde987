"""What a training writes down as it goes: a line an epoch, a line an update of the subspace."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gossamer.evaluate import evaluate
from gossamer.layers import density, sparse_weights
from gossamer.posterior import SingleNetwork
from gossamer.record import Run
from gossamer.train import Training
from gossamer.types import Task

__all__ = ["Tally", "record_epoch", "record_updates"]


@dataclass
class Tally:
    """Sums since the last line of metrics, and the time spent.

    Example:
        >>> import torch
        >>> tally = Tally()
        >>> tally.add({"loss": torch.tensor(1.0)})
        >>> tally.add({"loss": torch.tensor(2.0)})
        >>> tally.means(), tally.count
        ({'loss': 1.5}, 0)
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0
    seconds: float = 0.0
    seconds_before: float = 0.0  # at the last line of metrics
    n_updates: int = 0  # how many updates of the subspace are in the record

    def add(self, values: dict[str, Tensor]) -> None:
        """One step's values; they stay on their device."""
        self.sums = {name: self.sums.get(name, 0) + value.double() for name, value in values.items()}
        self.count += 1

    def means(self) -> dict[str, float]:
        """The means since the last call."""
        means = {name: float(total) / self.count for name, total in self.sums.items()}
        self.sums, self.count, self.seconds_before = {}, 0, self.seconds
        return means

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From the checkpoint."""
        for name in vars(self):
            setattr(self, name, state[name])


def record_updates(run: Run, training: Training, tally: Tally) -> None:
    """Write down the updates of the subspace that are not in the record yet."""
    updates = [update for rule in training.rules for update in rule.record]
    for update in updates[tally.n_updates :]:
        run.append_update(update)
    tally.n_updates = len(updates)


def record_epoch(run: Run, task: Task, training: Training, tally: Tally) -> dict[str, Any]:
    """Write down the epoch that just ended; returns its line. A loss that is not finite is an error."""
    speed = tally.count * training.batches.batch_size / max(tally.seconds - tally.seconds_before, 1e-9)
    means = tally.means()
    row: dict[str, Any] = {
        "step": training.step,
        "epoch": training.step // training.batches.per_epoch,
        "loss": means["loss"],
        "nll": means["nll"],
        "kl": means["penalty"],
        "lr": training.method.lr(training.step - 1),
        "density": density(training.model) if sparse_weights(training.model) else 1.0,
    }
    if not math.isfinite(row["loss"]):  # it stays so for ever, and nobody should wait for the end of it
        raise FloatingPointError(f"the loss is {row['loss']} in epoch {row['epoch']}: try again with a smaller lr")
    if len(task.val[1]):
        # The network at its means: no random number is drawn, so looking does not change the training.
        values = evaluate(SingleNetwork(training.model), task, n_draws=1, split="val")
        row |= {f"val_{name}": values[name] for name in ("accuracy", "rmse", "nll") if name in values}
    row |= {"examples_per_second": speed, "seconds": tally.seconds}
    run.append_metrics(row)
    return row
