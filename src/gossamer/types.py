"""The nouns of Gossamer: what criteria, allocations, rules, posteriors, tasks and methods are.

Everything here is a type; all behaviour lives elsewhere. The glossary is in ``docs/notation.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = [
    "Allocation",
    "Collector",
    "Criterion",
    "LayerStats",
    "Likelihood",
    "Method",
    "Mode",
    "Noise",
    "Posterior",
    "Rule",
    "Schedule",
    "Split",
    "Step",
    "Task",
    "WeightStats",
    "identity",
    "no_penalty",
]

Mode = Literal["default", "reference"]
"""``"default"`` is the corrected mathematics; ``"reference"`` is what the released code of the paper does."""

Noise = Literal["local", "weights"]
"""Of a training pass: ``"local"`` draws one noise an output, ``"weights"`` one an active weight for the whole batch."""

Schedule = Callable[[int], float]
"""Step -> value; every rate in the library is a number or one of these."""


class WeightStats(NamedTuple):
    """What a criterion sees of one weight tensor: vectors with one element an entry."""

    mean: Tensor
    std: Tensor | None = None
    grad: Tensor | None = None  # the dense gradient, only at an update
    momentum: Tensor | None = None


Criterion = Callable[[WeightStats], Tensor]
"""A score per entry; higher is kept, or taken in."""


class LayerStats(NamedTuple):
    """What an allocation sees of one weight tensor."""

    name: str
    shape: tuple[int, ...]
    keep_dense: bool = False
    n_frozen: int = 0  # entries that can never be active (the padding row of an embedding)

    @property
    def size(self) -> int:
        """Number of entries that may be active."""
        return math.prod(self.shape) - self.n_frozen


Allocation = Callable[[Sequence[LayerStats], float], list[int]]
"""(layers, density) -> how many active entries each layer gets."""

Split = tuple[Tensor, Tensor]
"""Inputs and targets, one row an example."""


class Likelihood(Protocol):
    """p(y | network output): the loss, and how several draws combine into one predictive."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood of ``y`` over the batch."""
        ...

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density of each ``y`` under the mixture of the draws: ``(draws, batch, out), (batch, …) -> (batch,)``."""
        ...


def identity(x: Tensor) -> Tensor:
    """The input as it is."""
    return x


class Task(NamedTuple):
    """A data set as a method sees it. ``val`` is held out of training and is what choices are made on.

    Inputs are stored as they take least room (images as bytes, ``(n, channels, height, width)``); ``transform`` makes
    of a batch what the network reads, ``augment`` changes a training batch at random before that. Targets of a
    regression are standardised; ``target_mean`` and ``target_std`` lead back to the original units. ``total_weight`` is
    the sum of the weights of the training examples, where they have any (:class:`gossamer.likelihoods.Weighted`).
    """

    train: Split
    val: Split
    test: Split
    likelihood: Likelihood
    n_outputs: int
    name: str = "task"
    transform: Callable[[Tensor], Tensor] = identity
    augment: Callable[[Tensor], Tensor] = identity
    target_mean: float = 0.0
    target_std: float = 1.0
    class_names: tuple[str, ...] = ()
    total_weight: float | None = None

    @property
    def n_data(self) -> int:
        """N, the number of training examples: what the KL is divided by.

        Where examples have weights (``total_weight`` is their sum), one of weight 3 counts as three.
        """
        return len(self.train[1]) if self.total_weight is None else max(1, round(self.total_weight))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example as the network reads it."""
        return tuple(self.transform(self.train[0][:1]).shape[1:])


class Step(NamedTuple):
    """What a rule may see and use, after the backward pass of step ``number`` (counted from 1)."""

    number: int
    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[], Tensor]  # evaluates this batch again, with fresh noise


class Rule(Protocol):
    """Acts after the backward pass; ``True`` means this gradient is spent, skip ``optimizer.step``."""

    def __call__(self, step: Step) -> bool:
        """Act on one step."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Everything an exact resume needs."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from ``state_dict``."""
        ...


class Posterior(Protocol):
    """What ``fit`` returns, for every method."""

    def draws(self, n: int) -> Iterator[nn.Module]:
        """Real networks, weights drawn once each; a draw is valid until the next one is taken."""
        ...


class Collector(Protocol):
    """Watches training and makes the posterior of it."""

    def observe(self, model: nn.Module, step: int) -> None:
        """Look at the network after step ``step``."""
        ...

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        """The posterior of what training has come to: the network, and the optimizer where that holds the rest."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Everything an exact resume needs."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from ``state_dict``."""
        ...


def no_penalty(model: nn.Module, step: int) -> Tensor:
    """Nothing is added to the likelihood."""
    return torch.zeros(())


@dataclass(frozen=True)
class Method:
    """The whole uniform interface: a method is its parts.

    ``prepare`` converts the user's network, ``optimizer`` is built on the result, ``lr`` multiplies nothing: it *is*
    the rate of the groups without one of their own, and groups with their own keep their ratio to it. ``penalty`` is
    the KL or the negative log prior, already weighted, for (model, step). ``rules`` builds what acts after the
    backward pass. ``collector`` builds what makes the posterior.
    """

    prepare: Callable[[nn.Module], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    lr: Schedule
    collector: Callable[[], Collector]
    penalty: Callable[[nn.Module, int], Tensor] = no_penalty
    rules: Callable[[nn.Module, Optimizer], Sequence[Rule]] = lambda model, optimizer: ()
