"""SM, sparse momentum (Dettmers and Zettlemoyer, 2019): layers and entries with much momentum get the active weights.

With the momentum m ← β m + g + λ w of all entries, the inactive ones too, λ the weight decay, an update

1. removes a share p of the active weights of each layer, the smallest |w|;
2. gives layer l the share c_l / Σ c of all that left, where c_l is the mean |m| of its active weights;
3. takes in the entries of a layer with the largest |m| that are not active, at zero and with their momentum.

p falls along a cosine. A layer of more than 80 % density with a c above the average loses no more than it has zeros.
"""

import math
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import SparseWeight
from gossamer.methods._parts import by_sgd, update_period_for
from gossamer.schedules import cosine, step_of
from gossamer.sparsity import Redistribution
from gossamer.sparsity.convert import sparsify
from gossamer.sparsity.gradients import collect
from gossamer.sparsity.moves import Moved, WeightBatch
from gossamer.types import Method, Schedule, Task

__all__ = ["sm"]

LAST_RATE = 0.005  # p at the end of the training
FULL = 0.2  # share of zeros below which a layer counts as full
FORGOTTEN = 0.01  # weight in m of the newest gradient that is left out


def sm(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    update_period: int | None = None,
    replacement_rate: float = 0.5,
    until: float = 1.0,
) -> Method:
    """Sparse momentum: a fixed number of active weights of the whole network, moved to where momentum is largest.

    The momentum of inactive entries needs dense gradients. They are formed in the last steps before an update, from the
    first whose weight βᵏ in m is at least 1 %: 44 steps for β = 0.9. (After an update the released code sets the
    momentum of inactive entries to a mean near zero, so nothing older is missed.) The budget is exact where that code
    rounds up and corrects later.

    Args:
        density: Share of active weights.
        lr: Learning rate at the start of a cosine; 0.1.
        momentum: Nesterov momentum of SGD, and β.
        weight_decay: Weight decay of SGD.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps; the
            authors' is an epoch.
        replacement_rate: p, the share of the active weights that the first update replaces.
        until: Share of the training after which nothing moves.
    """

    def rules(model: nn.Module, optimizer: Optimizer) -> list[SparseMomentum]:
        if density == 1:  # there is nothing to move
            return []
        period, last = update_period_for(steps, update_period), step_of(until, steps, "until")
        return [
            SparseMomentum(
                model,
                optimizer,
                momentum=momentum,
                weight_decay=weight_decay,
                rate=cosine(replacement_rate, max(1, last), end=min(LAST_RATE, replacement_rate)),
                update_period=lambda step: period,
                last_step=last,
            )
        ]

    prepare = partial(sparsify, density=density, allocation="global", keep_dense=())
    return by_sgd(
        steps, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=True, prepare=prepare, rules=rules
    )


class SparseMomentum(Redistribution):
    """Removes the smallest weights, and grows by momentum: between layers by its mean size, within them by its size.

    ``momentum`` is β of m, ``weight_decay`` λ, that of the optimizer, and ``rate`` p, the share that an update removes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        momentum: float,
        rate: Schedule,
        weight_decay: float = 0.0,
        **clock: Any,
    ) -> None:
        super().__init__(model, optimizer, **clock)
        self.beta, self.rate, self.weight_decay = momentum, rate, weight_decay
        self.window = math.ceil(math.log(FORGOTTEN) / math.log(momentum)) if momentum > 0 else 1
        self.momentum: dict[str, Tensor] = {}  # m of the last steps before an update, dense
        self._listen()

    def step(self) -> bool:
        """Count a step and take in its dense gradients, and redistribute if an update is due."""
        for name, grad in collect(self.weights).items():
            decayed = self._decayed(self.weights[name], grad)
            before = self.momentum.get(name)
            self.momentum[name] = decayed if before is None else before.mul_(self.beta).add_(decayed)
        is_due = super().step()
        if is_due:
            self.momentum = {}
        self._listen()
        return is_due

    def keep(self, batch: WeightBatch) -> Tensor:
        """All but a share p of each layer, the smallest."""
        contributions, p = self.shares(batch), self.rate(self.index)
        n_kept = []
        for weight, share in zip(batch.weights, contributions, strict=True):
            zeros = 1 - weight.support.n_active / weight.support.size
            is_full = zeros < FULL and share * len(contributions) > sum(contributions)
            n_kept.append(
                weight.support.n_active - math.ceil((min(p, zeros) if is_full else p) * weight.support.n_active)
            )
        return batch.active.top_mask(batch.vector("mean").abs(), n_kept)

    def shares(self, batch: WeightBatch, kept: Tensor | None = None) -> list[float]:
        """The mean |m| of the active entries of each layer before the update."""
        return [
            float(weight.support.gather(self._of(name, weight)).abs().mean())
            for name, weight in zip(batch.names, batch.weights, strict=True)
        ]

    def scores(self, name: str, weight: SparseWeight, removed: Tensor) -> Tensor:
        """|m|, also of those that have just left."""
        return self._of(name, weight).abs()

    def moved(self, batch: WeightBatch, to: Moved) -> None:
        """Give the new entries of SGD the momentum that their gradients have built up."""
        parts = zip(batch.names, batch.weights, to.is_new.split(to.entries.lengths), strict=True)
        for name, weight, is_new in parts:
            buffer = self.optimizer.state.get(weight.mean, {}).get("momentum_buffer")
            if buffer is not None:
                buffer[is_new] = weight.support.gather(self._of(name, weight))[is_new]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"momentum": dict(self.momentum)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.momentum = {name: value.to(self.weights[name].mean) for name, value in state["momentum"].items()}
        self._listen()

    def _decayed(self, weight: SparseWeight, grad: Tensor) -> Tensor:
        """The gradient with weight decay, g + λ w, flat; inactive entries have w = 0."""
        decay = weight.support.scatter(self.weight_decay * weight.mean.detach())
        return (grad + decay.to(grad)).flatten()

    def _of(self, name: str, weight: SparseWeight) -> Tensor:
        """The momentum of a weight, zero where it took no part in the loss."""
        known = self.momentum.get(name)
        return weight.mean.detach().new_zeros(weight.shape.numel()) if known is None else known

    def _listen(self) -> None:
        """Ask the coming backward pass for dense gradients, if they count at the next update."""
        collect(self.weights)
        coming = range(self.index + 1, self.index + 1 + self.window)
        if any(map(self.is_due, coming)):
            for weight in self.weights.values():
                weight.arm()
