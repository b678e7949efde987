"""Hamiltonian Monte Carlo (Neal, 2011), its step size by dual averaging (Hoffman and Gelman, JMLR 2014, eq. 6).

With the acceptances α₁, α₂, … of the trajectories so far, the logarithm of the step size of the next one, and the
average that is taken at the end, are

    x_{t+1} = μ - √t/(γ (t + t₀)) Σ_{i ≤ t} (δ - α_i),    x̄_{t+1} = t^{-κ} x_{t+1} + (1 - t^{-κ}) x̄_t

While it learns, δ is accepted on average; the average of so many different steps is accepted a little more often.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gossamer.optim.sampler import Noise

TARGET = 0.7  # δ, as mBNN's authors set it
LEARNT = "log_step", "log_average", "error", "count"
SHRINKAGE, FIRST, FORGETTING, LARGER = 0.05, 10, 0.75, 10  # γ, t₀, κ and exp(μ) over the first ε, of section 3.2.1


class HMC:
    """Samples exp(-U(w)) by Hamiltonian trajectories, each accepted or undone as a whole.

    With momenta v ~ N(0, 1) a trajectory alternates v ← v - ε/2 ∇U, w ← w + ε v, v ← v - ε/2 ∇U. It is accepted with
    probability min(1, exp(U + ‖v‖²/2 - U′ - ‖v′‖²/2)). The energy must be exact: all data, no dropout.

    Args:
        params: The parameters w.
        energy: U of the parameters as they are, a scalar with a gradient.
        step_size: ε at the start.
        leapfrog: Steps of a trajectory.
        adapting: Trajectories over which ε learns; afterwards it is the average of what it was.
        generator: Source of the noise; ``None`` uses torch's global generator.

    Example:
        >>> w = torch.zeros(1000, requires_grad=True)
        >>> sampler = HMC([w], lambda: w.square().sum() / 2, 0.1, adapting=50, generator=torch.manual_seed(0))
        >>> accepted = [sampler.step() for _ in range(100)]
        >>> abs(float(w.detach().std()) - 1) < 0.1, 0.5 < sum(accepted[50:]) / 50 < 0.9
        (True, True)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        energy: Callable[[], Tensor],
        step_size: float,
        *,
        leapfrog: int = 20,
        adapting: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        self.params, self.energy, self.noise = list(params), energy, Noise(generator)
        self.leapfrog, self.adapting = leapfrog, adapting
        self.log_step = self.log_average = math.log(step_size)
        self.towards = self.log_step + math.log(LARGER)  # μ
        self.error, self.count = 0.0, 0

    def step(self) -> float:
        """One trajectory; returns the probability with which it was accepted."""
        before = [parameter.detach().clone() for parameter in self.params]
        momenta = [self.noise.like(parameter) for parameter in before]
        change = self._move(momenta)
        probability = math.exp(min(0.0, -change)) if math.isfinite(change) else 0.0
        if self.noise.uniform() >= probability:
            with torch.no_grad():
                torch._foreach_copy_(self.params, before)
        self._adapt(probability)
        return probability

    def _move(self, momenta: list[Tensor]) -> float:
        """Follow the trajectory; returns by how much the total energy rose."""
        step_size = math.exp(self.log_step)
        first, grads = self._evaluate()
        start, energy = first + _kinetic(momenta), first
        for _ in range(self.leapfrog):
            with torch.no_grad():
                torch._foreach_add_(momenta, grads, alpha=-step_size / 2)
                torch._foreach_add_(self.params, momenta, alpha=step_size)
            energy, grads = self._evaluate()
            torch._foreach_add_(momenta, grads, alpha=-step_size / 2)
            if not math.isfinite(energy):
                break
        return energy + _kinetic(momenta) - start

    def _evaluate(self) -> tuple[float, tuple[Tensor, ...]]:
        energy = self.energy()
        return float(energy.detach()), torch.autograd.grad(energy, self.params)

    def _adapt(self, probability: float) -> None:
        """Dual averaging: ε falls where too little is accepted, and settles."""
        if self.count < self.adapting:
            self.error += TARGET - probability
            t = self.count + 1
            self.log_step = self.towards - math.sqrt(t) / (SHRINKAGE * (t + FIRST)) * self.error
            self.log_average += math.pow(t, -FORGETTING) * (self.log_step - self.log_average)
        self.count += 1
        if self.count == self.adapting:
            self.log_step = self.log_average

    def state_dict(self) -> dict[str, Any]:
        """The step size, how it learns, and the noise; the parameters are the network's."""
        return {name: getattr(self, name) for name in LEARNT} | {"generator": self.noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        for name in LEARNT:
            setattr(self, name, state[name])
        self.noise.load_state_dict(state["generator"])


def _kinetic(momenta: list[Tensor]) -> float:
    return sum(float(momentum.double().square().sum()) for momentum in momenta) / 2
