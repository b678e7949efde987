"""The nouns of Gossamer: criteria, allocations, rules, penalties, posteriors, tasks and methods.

The base classes declare everything that the package uses of them, with defaults, so that nothing is probed for. The
glossary is in ``docs/notation.md``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = [
    "Allocation",
    "Collector",
    "Criterion",
    "Kind",
    "LayerStats",
    "Likelihood",
    "Method",
    "Mode",
    "Noise",
    "Penalty",
    "PenaltyFunction",
    "Posterior",
    "Rule",
    "Schedule",
    "Split",
    "Std",
    "Step",
    "Task",
    "VariationalOptimizer",
    "WeightStats",
    "as_penalty",
    "identity",
    "no_penalty",
]

Mode = Literal["default", "reference"]
"""``"default"`` is the corrected mathematics; ``"reference"`` does what the released code of the paper does."""

Noise = Literal["local", "weights"]
"""Noise of a training pass: ``"local"`` draws one value per output, ``"weights"`` one per active weight and batch."""

Std = Literal["curvature", "gradient"]
"""How standard deviations learn: from an estimate of the curvature, or as parameters of the optimizer."""

Schedule = Callable[[int], float]
"""Step -> value; every rate in the library is a number or one of these."""


class WeightStats(NamedTuple):
    """What a criterion sees of one weight tensor: vectors with one element per entry."""

    mean: Tensor
    std: Tensor | None = None
    grad: Tensor | None = None  # the dense gradient, only at an update
    momentum: Tensor | None = None


Criterion = Callable[[WeightStats], Tensor]
"""A score per entry; high scores are kept, or added."""


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
"""(layers, density) -> number of active entries of each layer."""

Split = tuple[Tensor, Tensor]
"""Inputs and targets, one row per example."""


Kind = Literal["classification", "regression"]
"""Whether targets are classes or numbers."""


class Likelihood(ABC):
    """p(y | network output): the loss, and how several draws combine into one predictive.

    A new likelihood needs ``loss`` and ``log_predictive``; the rest has defaults.
    """

    @abstractmethod
    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood of ``y`` over the batch."""

    @abstractmethod
    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density of each ``y`` under the mixture of the draws: ``(draws, batch, out), (batch, …) -> (batch,)``."""

    @property
    def kind(self) -> Kind:
        """What the targets are."""
        return "regression"

    def constant(self, y: Tensor) -> Tensor | None:
        """The output with the least loss of those that no input changes, ``(1, out, …)``; ``None`` if unknown.

        A training that ends no better is reported.
        """
        return None


def identity(x: Tensor) -> Tensor:
    """The input as it is."""
    return x


class Task(NamedTuple):
    """A data set as a method sees it. ``val`` is held out of training, for choosing hyper-parameters.

    Inputs are stored compactly (images as bytes, ``(n, channels, height, width)``); ``transform`` turns a batch into
    what the network reads, ``augment`` changes a training batch at random before that. Targets of a regression are
    standardised; ``target_mean`` and ``target_std`` convert back to the original units. ``total_weight`` is the sum of
    the weights of the training examples, where they have any (:class:`gossamer.likelihoods.Weighted`). ``record``
    describes data of the user's own in plain values, for the run folder.
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
    record: Mapping[str, Any] | None = None

    @property
    def n_data(self) -> int:
        """N, the number of training examples, by which the KL is divided.

        An example of weight 3 counts as three.
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


class Rule(ABC):
    """Acts after the backward pass of every step. A new rule needs ``__call__`` alone; the rest has defaults.

    Attributes:
        record: What the rule has done since it was made or loaded, one dictionary per action, with its ``"step"`` among
            the entries. A run folder keeps all of it; it is no part of the state, which would grow with every action.
        capturable: Whether captured steps may go on after this rule has acted: shapes stay as they are, and the loss is
            not evaluated again.

    Example:
        >>> class SkipOddSteps(Rule):
        ...     def __call__(self, step: Step) -> bool:
        ...         return step.number % 2 == 1
        >>> rule = SkipOddSteps()
        >>> rule.record, rule.capturable, rule.acts, rule.state_dict()
        ((), False, True, {})
    """

    record: Sequence[dict[str, Any]] = ()
    capturable: bool = False

    @abstractmethod
    def __call__(self, step: Step) -> bool:
        """Act on one step; ``True`` means that the gradient is spent and ``optimizer.step()`` is skipped."""

    @property
    def acts(self) -> bool:
        """Whether the coming call may change weights or their positions; what was copied from them is then renewed."""
        return True

    @property
    def held(self) -> Mapping[str, tuple[int, int]]:
        """By layer: stored entries that it holds at zero in the network, and how many of them get a gradient still."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact resume needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (a rule without state has nothing to load)
        """Continue from ``state_dict``."""


class Penalty(ABC):
    """What is added to the likelihood: the KL or the negative log prior, already weighted.

    Attributes:
        is_gaussian: Whether :meth:`unscaled` is the KL of Gaussian weights, whose gradient captured steps know.
    """

    is_gaussian: bool = False

    @abstractmethod
    def __call__(self, model: nn.Module, step: int) -> Tensor:
        """The penalty of a converted network at a step, counted from 1: a scalar with a gradient."""

    def scale(self, step: int) -> float | None:
        """The factor s of a penalty s · unscaled(model), which a graph may hold; ``None`` for any other penalty."""
        return None

    def unscaled(self, model: nn.Module) -> Tensor:
        """What :meth:`scale` multiplies: a function of the network alone."""
        raise NotImplementedError(f"{type(self).__name__} has a scale, so it needs unscaled(model), too")


PenaltyFunction = Callable[[nn.Module, int], Tensor]
"""A penalty as a plain function of (model, step)."""


def as_penalty(penalty: Penalty | PenaltyFunction) -> Penalty:
    """The penalty itself, or a plain function as one.

    Example:
        >>> penalty = as_penalty(lambda model, step: torch.tensor(2.0) * step)
        >>> penalty(nn.Linear(1, 1), 3), penalty.scale(3)
        (tensor(6.), None)
    """
    return penalty if isinstance(penalty, Penalty) else _FunctionPenalty(penalty)


@dataclass(frozen=True)
class _FunctionPenalty(Penalty):
    function: PenaltyFunction

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        return self.function(model, step)


class _NoPenalty(Penalty):
    is_gaussian = True

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        return torch.zeros(())

    def scale(self, step: int) -> float:
        return 0.0

    def unscaled(self, model: nn.Module) -> Tensor:
        return torch.zeros(())


no_penalty: Penalty = _NoPenalty()
"""Nothing is added to the likelihood."""


class Posterior(ABC):
    """What ``fit`` returns, for every method.

    Attributes:
        model: The network that the draws are made from.
        refresh: What the posterior calls with each network that it draws, such as one that makes the statistics of
            batch normalisation anew; ``None`` where a draw is used as it is.

    Example:
        >>> class Twice(Posterior):
        ...     def __init__(self, model: nn.Module) -> None:
        ...         self.model = model
        ...     def draws(self, n: int) -> Iterator[nn.Module]:
        ...         yield from (self.model, self.model)
        >>> Twice(nn.Linear(3, 2)).n_bytes
        32
    """

    model: nn.Module
    refresh: Callable[[nn.Module], None] | None = None

    @abstractmethod
    def draws(self, n: int) -> Iterator[nn.Module]:
        """Real networks, weights drawn once each; a draw is valid until the next one is taken."""

    def mean_network(self) -> nn.Module:
        """The plain network at the mean of the weights, in evaluation mode; an error where that means nothing."""
        raise ValueError(f"{type(self).__name__} has no mean network: take several draws of it instead")

    @property
    def n_bytes(self) -> int:
        """Memory that predictions need: by default the parameters and buffers of ``model``."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Collector(ABC):
    """Watches training and makes a posterior of it. A new collector needs ``posterior`` alone."""

    @abstractmethod
    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        """The posterior of the trained network; ``optimizer`` is given for methods whose optimizer holds a part."""

    def observe(self, model: nn.Module, step: int) -> None:  # noqa: B027 (most collectors have nothing to observe)
        """Look at the network after step ``step``; called only where a subclass overrides it."""

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact resume needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (a collector may have no state)
        """Continue from ``state_dict``."""


@runtime_checkable
class VariationalOptimizer(Protocol):
    """An optimizer that holds a posterior around the parameters, such as :class:`gossamer.optim.CVAdam`."""

    def sampled(self) -> AbstractContextManager[None]:
        """Drawn weights inside the block, the means again afterwards."""

    def std(self, parameter: Tensor) -> Tensor:
        """Standard deviations of a parameter, in its shape."""


@dataclass(frozen=True)
class Method:
    """The whole uniform interface: a method is its parts.

    Attributes:
        prepare: Converts the user's network.
        optimizer: Builds the optimizer of the converted network.
        lr: The learning rate of the parameter groups without one of their own; groups with their own keep their ratio
            to it.
        collector: Builds what makes the posterior.
        penalty: The KL or the negative log prior, already weighted: a :class:`Penalty` or a function of (model, step).
        rules: Builds what acts after the backward pass.
        adapt: The same method as it suits a network, where its defaults depend on that.
        members: How many networks are trained, one after another from other seeds. Each has an equal share of the
            steps, and all parts count steps from the beginning of the member. Their mixture is the posterior.
        restart: Gives a copy of the plain network other initial weights, in place, for each member after the first.
        one_rate: Whether steps are as long as the gradient times one rate for all weights, as those of SGD and of
            samplers are, and so grow with the steepness of the loss. Adam's, for one, are not.
        lr_is_given: Whether ``lr`` is the user's own and stays as it is. Otherwise, a training of numbers by one rate
            lowers it to what the loss bears.
        share_for_numbers: Of the default rate, the part that estimators take for numbers if there is one rate. A table
            is noisy, and without a KL a network that learns fast learns the noise by heart. The default was chosen for
            SGD and RigL by held-out log density, on two noisy tables and one with noise of a thirtieth of the target.
    """

    prepare: Callable[[nn.Module], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    lr: Schedule
    collector: Callable[[], Collector]
    penalty: Penalty | PenaltyFunction = no_penalty
    rules: Callable[[nn.Module, Optimizer], Sequence[Rule]] = lambda model, optimizer: ()
    adapt: Callable[[nn.Module], Method] | None = None
    members: int = 1
    restart: Callable[[nn.Module], None] = lambda network: None
    one_rate: bool = True
    lr_is_given: bool = False
    share_for_numbers: float = 0.03

    def suited_to(self, network: nn.Module) -> Method:
        """The method with the defaults that suit a plain network."""
        return self if self.adapt is None else self.adapt(network)
