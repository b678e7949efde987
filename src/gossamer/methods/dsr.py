"""DSR, dynamic sparse reparameterization (Mostafa and Wang, ICML 2019): one threshold for all layers, random growth.

Every few steps all weights with |w| < H leave. As many come in, in each layer in proportion to the weights that it has
left, at random entries and with the value zero. H is doubled when fewer than 0.9 of the wanted number left, and halved
when more than 1.1 of it did.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import SparseWeight
from gossamer.methods._parts import by_sgd, update_period_for, with_options_of
from gossamer.methods.sgd import sgd
from gossamer.schedules import step_of
from gossamer.sparsity import Redistribution
from gossamer.sparsity.convert import sparsify
from gossamer.sparsity.moves import WeightBatch
from gossamer.types import Method, Task

__all__ = ["dsr"]

SLOWER_FROM = (0.125, 0.4, 0.7)  # shares of the training after which the period doubles: epochs 25, 80 and 140 of 200
TOLERANCE = 0.1  # of the number that leaves


@with_options_of(sgd, "optimizer")
def dsr(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    update_period: int | None = None,
    replacement_rate: float = 0.1,
    threshold: float = 1e-3,
    until: float = 0.95,
    allocation: str = "erk",
    **training: Any,
) -> Method:
    """DSR: a fixed number of active weights of the whole network, which move between its layers; by Nesterov's SGD.

    Args:
        density: Share of active weights.
        update_period: Steps between the first updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000
            steps. It doubles after an eighth, two fifths and seven tenths of the training.
        replacement_rate: Share of the active weights that should leave at an update. The authors give a number, of the
            same order: 20,000 of 150,000.
        threshold: H of the first update.
        until: Share of the training after which nothing moves.
        allocation: How the active weights are spread over the layers at first. The authors' classifier stays dense; the
            default, ``"erk"``, gives it the same part in the budget as other layers and a high density.
    """

    def rules(model: nn.Module, optimizer: Optimizer) -> list[Reparameterization]:
        if density == 1:  # there is nothing to move
            return []
        first = update_period_for(steps, update_period)
        return [
            Reparameterization(
                model,
                optimizer,
                threshold=threshold,
                replacement_rate=replacement_rate,
                update_period=lambda step: first * 2 ** sum(step > share * steps for share in SLOWER_FROM),
                last_step=step_of(until, steps, "until"),
            )
        ]

    prepare = partial(sparsify, density=density, allocation=allocation)
    return by_sgd(steps, **training, nesterov=True, prepare=prepare, rules=rules)


class Reparameterization(Redistribution):
    """Removes what is below an adaptive threshold, and grows at random where most has survived."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, threshold: float, replacement_rate: float, **clock: Any
    ) -> None:
        super().__init__(model, optimizer, **clock)
        self.threshold, self.replacement_rate = threshold, replacement_rate

    def keep(self, batch: WeightBatch) -> Tensor:
        """All with |w| ≥ H; H follows the number that leaves."""
        kept = batch.vector("mean").abs() >= self.threshold
        n_removed, wanted = int((~kept).sum()), self.replacement_rate * batch.active.total
        if n_removed > (1 + TOLERANCE) * wanted:
            self.threshold /= 2
        elif n_removed < (1 - TOLERANCE) * wanted:
            self.threshold *= 2
        return kept

    def shares(self, batch: WeightBatch, kept: Tensor) -> list[float]:
        """The number of weights that each layer has left."""
        return [float(n) for n in batch.active.counts(kept).tolist()]

    def scores(self, name: str, weight: SparseWeight, removed: Tensor) -> Tensor:
        """Random, and last those that have just left."""
        score = torch.rand(weight.shape.numel()).to(weight.mean.device)  # the same on every device
        score[removed] = -1.0
        return score

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"threshold": self.threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.threshold = float(state["threshold"])
