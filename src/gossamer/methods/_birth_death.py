"""Metropolis moves of masks: units of all layers are born and die (Kong et al., ICML 2023, section 3.2)."""

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from gossamer.distributed import average_over_ranks
from gossamer.layers.modules import Masked

MOST_FLIPS = 3


class BirthDeath:
    """A Markov chain over masks whose stationary distribution is exp(-N · loss) p(m), for the weights as they are.

    ``cost`` is the (λ log N)⁵ of :func:`log_prior`; ``generator`` is in the same state on all ranks.
    """

    def __init__(self, masks: Sequence[Masked], n_data: float, cost: float, generator: torch.Generator) -> None:
        self.masks, self.n_data, self.cost, self.generator = list(masks), n_data, cost, generator
        self.n_moves = self.n_accepted = 0

    @property
    def state(self) -> Tensor:
        """All masks end to end, on the CPU in float64."""
        return torch.cat([masked.mask.detach().cpu().double() for masked in self.masks])

    def move(self, loss: Callable[[], Tensor]) -> bool:
        """Propose one move and take it or not; ``loss`` is evaluated at the present masks and at the proposed ones."""
        self.n_moves += 1
        dies, n = self._random() < 0.5, 1 + int(self._random() * MOST_FLIPS)
        before = self.state
        if int((before == dies).sum()) < n:
            return False
        energy, effect = self._energy(loss, of_units=dies)
        there = death_weights(before, effect) if dies else birth_weights(before)
        chosen = (there + self._gumbel(len(there))).topk(n).indices
        after = before.clone()
        after[chosen] = 1 - after[chosen]
        gain = self._log_prior(after) - self._log_prior(before)
        if gain == -math.inf:
            return False
        self._write(after)
        new_energy, new_effect = self._energy(loss, of_units=not dies)
        back = birth_weights(after) if dies else death_weights(after, new_effect)
        gain += energy - new_energy + log_probability(back, chosen) - log_probability(there, chosen)
        is_taken = math.log1p(-self._random()) < gain  # false where the energy is not a number
        if not is_taken:
            self._write(before)
        self.n_accepted += is_taken
        return is_taken

    def _energy(self, loss: Callable[[], Tensor], of_units: bool) -> tuple[float, Tensor]:
        """N · loss, and its derivatives by the masks if they are wanted; otherwise nothing."""
        if not of_units:
            with torch.no_grad():
                return self.n_data * float(average_over_ranks(loss().detach().double())), torch.empty(0)
        masks = [masked.mask.requires_grad_() for masked in self.masks]
        try:
            with torch.enable_grad():
                value = loss()
                slopes = torch.cat(torch.autograd.grad(value, masks))
        finally:
            for mask in masks:
                mask.requires_grad_(False)
        both = average_over_ranks(torch.cat([value.detach().double().reshape(1), slopes.double()])).cpu()
        return self.n_data * float(both[0]), self.n_data * both[1:]

    def _log_prior(self, state: Tensor) -> float:
        layers = state.split([len(masked.mask) for masked in self.masks])
        return sum(log_prior(int(layer.sum()), len(layer), self.cost) for layer in layers)

    def _write(self, state: Tensor) -> None:
        for masked, values in zip(self.masks, state.split([len(m.mask) for m in self.masks]), strict=True):
            masked.mask.copy_(values)

    def _random(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self.generator))

    def _gumbel(self, n: int) -> Tensor:
        return -torch.empty(n, dtype=torch.float64).exponential_(generator=self.generator).log()

    def state_dict(self) -> dict[str, Any]:
        """The generator and the counts; the masks are the network's."""
        return {"generator": self.generator.get_state(), "n_moves": self.n_moves, "n_accepted": self.n_accepted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.generator.set_state(state["generator"].cpu())
        self.n_moves, self.n_accepted = int(state["n_moves"]), int(state["n_accepted"])


def log_prior(n_active: int, width: int, cost: float) -> float:
    """Log p(m) of a layer, up to a constant: -(λ log N)⁵ s² - log C(p, s); a layer without units is impossible."""
    return -cost * n_active**2 - math.log(math.comb(width, n_active)) if n_active else -math.inf


def death_weights(state: Tensor, effect: Tensor) -> Tensor:
    """Log weights of active units in a death, -|∂U/∂m|/2; of inactive ones -∞."""
    return torch.where(state == 1, -0.5 * effect.abs(), -torch.inf)


def birth_weights(state: Tensor) -> Tensor:
    """Log weights of inactive units in a birth, all 0; of active ones -∞."""
    return torch.where(state == 0, 0.0, -torch.inf).double()


def log_probability(log_weights: Tensor, chosen: Tensor) -> float:
    """Log probability that a draw without replacement gives this set, in any order.

    Σ over the orders of Π_i w_i / (W - w of those before i).
    """
    left: dict[frozenset[int], float] = {}  # log of the weight that is left when these are gone

    def rest(gone: frozenset[int]) -> float:
        if gone not in left:
            others = log_weights.index_fill(0, torch.tensor(sorted(gone), dtype=torch.long), -torch.inf)
            left[gone] = float(others.logsumexp(0))
        return left[gone]

    numbers = [int(number) for number in chosen]
    orders = [-sum(rest(frozenset(order[:i])) for i in range(len(order))) for order in permutations(numbers)]
    return float(log_weights[chosen].sum()) + float(torch.tensor(orders, dtype=torch.float64).logsumexp(0))
