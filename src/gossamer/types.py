"""The nouns of Gossamer: criteria, allocations, rules, penalties, posteriors, tasks and methods.

The base classes declare everything that the package uses of them, with defaults, so that nothing is probed for. The
glossary is in ``docs/notation.md``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.optim import Optimizer

from gossamer.distributed import OwnNoise
from gossamer.files.schema import Entries

__all__ = [
    "Allocation",
    "Collector",
    "Criterion",
    "Formerly",
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
    "Saved",
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


class Formerly(NamedTuple):
    """An option's name in records of earlier versions, in its annotation: ``cycles: Annotated[int, Formerly("…")]``."""

    name: str


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


class Likelihood:
    """p(y | network output): the loss, and what the outputs of several draws say about a target.

    A new one for numbers needs ``distribution`` alone. Everything else follows from it by default; intervals, the
    distribution function and the CRPS by about a thousand samples for each example, always the same ones. One for
    classes needs ``kind``, ``loss`` and ``log_predictive``, and ``probs`` if these are not the softmax of the output.

    Attributes:
        noise_std: Standard deviation of the noise, where that is a known number.

    Example:
        >>> class Poisson(Likelihood):
        ...     def distribution(self, output: Tensor) -> Distribution:
        ...         return torch.distributions.Poisson(output.exp())
        >>> outputs = torch.tensor([[[1.0]], [[2.0]]])  # two draws for one example
        >>> Poisson().log_predictive(outputs, torch.tensor([4.0]))
        tensor([-2.1765])
        >>> Poisson().interval(outputs, 0.9)
        (tensor([[1.]]), tensor([[11.]]))
    """

    noise_std: float | None = None

    @property
    def kind(self) -> Kind:
        """What the targets are."""
        return "regression"

    @property
    def is_native(self) -> bool:
        """Whether the native training steps of the estimators know this likelihood."""
        return False

    def constant(self, y: Tensor) -> Tensor | None:
        """The output with the least loss of those that no input changes, ``(1, out, …)``; ``None`` if unknown.

        A training that ends no better is reported.
        """
        return None

    def distribution(self, output: Tensor) -> Distribution:
        """The distribution of the targets that an output ``(…, batch, out)`` stands for, ``(…, batch, targets)``."""
        raise NotImplementedError(
            f"{type(self).__name__} needs distribution(output), a torch.distributions.Distribution of the targets: "
            "means, stds and intervals follow from it"
        )

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean over the batch of the negative log-likelihood, summed over the targets of an example."""
        return -self._log_density(output, y, 1).mean()

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density of each ``y`` under the mixture of the draws: ``(draws, batch, out), (batch, …) -> (batch,)``."""
        return self._log_density(outputs, y, 2).logsumexp(0) - math.log(len(outputs))

    def probs(self, outputs: Tensor, dim: int) -> Tensor:
        """Probabilities of the classes, which lie along ``dim``."""
        return at_least_float32(outputs).softmax(dim)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and std of the targets by each draw, ``(draws, batch, targets)``."""
        distribution = self.distribution(at_least_float32(outputs))
        return distribution.mean, distribution.stddev

    def interval(self, outputs: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Bounds ``(batch, targets)`` that hold the target with probability ``level``, equal mass outside each."""

        def bound(share: float) -> Tensor:
            return self._of_samples(outputs, lambda x, _: x.sort(0).values[math.ceil(round(share * len(x), 6)) - 1])

        return bound((1 - level) / 2), bound((1 + level) / 2)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """P(target < y) + P(target = y)/2 by the mixture of the draws, ``(batch, targets)``."""
        return self._of_samples(outputs, lambda x, y: ((x < y).double() + (x <= y).double()).mean(0) / 2, y)

    def crps(self, outputs: Tensor, y: Tensor) -> float:
        """Continuous ranked probability score of the mixture, E|t − y| − E|t − t′|/2, averaged over the targets."""

        def score(x: Tensor, y: Tensor) -> Tensor:
            n, x = len(x), x.double().sort(0).values
            rank = 2 * torch.arange(1, n + 1, dtype=x.dtype, device=x.device) - n - 1
            half_spread: Tensor = torch.tensordot(rank, x, 1) / (n * (n - 1))
            return (x - y).abs().mean(0) - half_spread

        return float(self._of_samples(outputs, score, y).mean())

    def _log_density(self, output: Tensor, y: Tensor, examples: int) -> Tensor:
        """One number for each index of the first ``examples`` dimensions: (batch,), or (draws, batch)."""
        distribution = self.distribution(at_least_float32(output))
        y = in_shape(y, (distribution.batch_shape + distribution.event_shape)[examples - 1 :])
        log_density: Tensor = distribution.log_prob(y)
        return log_density.unsqueeze(-1).flatten(examples).sum(-1)

    def _of_samples(
        self, outputs: Tensor, function: Callable[[Tensor, Tensor], Tensor], y: Tensor | None = None
    ) -> Tensor:
        """A function of samples ``(samples, batch, targets)``, as many of each draw, and targets, row by row."""
        values, n = [], -(-N_SAMPLES // len(outputs))
        for start in range(0, max(1, outputs.shape[1]), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            with OwnNoise(0, outputs.device):
                x = self.distribution(at_least_float32(outputs[:, rows])).sample((n,)).flatten(0, 1)
            values.append(function(x, x[0] if y is None else in_shape(y[rows], x.shape[1:])))
        return torch.cat(values)


N_SAMPLES = 1000  # the error of a quantile of 5 % is then 0.7 % of probability
AT_ONCE = 4096


def in_shape(y: Tensor, shape: torch.Size) -> Tensor:
    """``y`` in the shape of what is predicted; the shapes may differ in a last dimension of one only."""
    if y.shape != shape and (*y.shape, 1) != shape and y.shape != (*shape, 1):
        # Broadcasting (batch,) against (batch, 1) would compare every target with every prediction.
        raise ValueError(f"targets of shape {tuple(y.shape)} for predictions of shape {tuple(shape)}")
    return y.reshape(shape)


def at_least_float32(x: Tensor) -> Tensor:
    """``x``, in float32 if it is in half precision: exponentials and their sums need the precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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
    def kind(self) -> Kind:
        """Whether the targets are classes or numbers, which decides what is measured and reported."""
        if not isinstance(self.likelihood, Likelihood):
            raise TypeError(
                f"{type(self.likelihood).__name__} can be trained with but not evaluated, because it does not say what "
                "its targets are: derive it from gossamer.types.Likelihood, with distribution(output) for numbers or "
                "kind = 'classification' for classes"
            )
        return self.likelihood.kind

    @property
    def has_numbers(self) -> bool:
        """Whether the targets are known to be numbers; a likelihood that is no :class:`Likelihood` does not say."""
        return isinstance(self.likelihood, Likelihood) and self.kind == "regression"

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

    @property
    def chosen(self) -> Mapping[str, Any]:
        """What the rule uses where an option of its method was left open, for the records of a run."""
        return {}

    @abstractmethod
    def __call__(self, step: Step) -> bool:
        """Act on one step; ``True`` means that the gradient is spent and ``optimizer.step()`` is skipped."""

    def zero_grad(self) -> None:  # noqa: B027 (most rules read nothing but gradients)
        """Forget what backward passes have left beside the gradients, which :func:`gossamer.train.take_step` clears."""

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

    def chosen(self, model: nn.Module, steps: int) -> Mapping[str, Any]:
        """As :attr:`Method.chosen`; a KL says its ``kl_weight`` β at the end of a training of so many steps."""
        return {}


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


def answer(output: Any) -> Any:
    """What a network says: what it returns, or the logits in it, as the networks of transformers call them."""
    return getattr(output, "logits", output)


class OfOneDraw(nn.Module):
    """Outputs of a drawn network as those of a list of draws, ``(1, batch, …)``."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = answer(self.network(*args, **kwargs))
        return output.unsqueeze(0) if isinstance(output, Tensor) else output


class Posterior(ABC):
    """What ``fit`` returns, for every method.

    Attributes:
        model: The network that the draws are made from.
        refresh: What the posterior calls with each network that it draws, such as one that makes the statistics of
            batch normalisation anew; ``None`` where a draw is used as it is.
        temperature: Divisor of the logits of all draws, by which :func:`gossamer.predict` divides; fitted by
            :func:`gossamer.calibrate`.
        by_weights: Whether its draws are networks like ``model`` that differ by their weights alone, so that the state
            of a draw is all of it.

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
    temperature: float = 1.0
    by_weights: bool = True

    def to_tree(self) -> dict[str, Any]:
        """What :func:`gossamer.save` writes: tensors, plain values, posteriors, and lists and dictionaries of these.

        The entry ``"network"`` is a network, of which the file gets how it was converted, and its state.
        """
        raise TypeError(
            f"a {type(self).__name__} cannot be saved as it is: give it to_tree and from_tree, or save draws of it, "
            "gossamer.save(posterior, file, n_draws=20)"
        )

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        """The posterior that :meth:`to_tree` described, for :func:`gossamer.load`."""
        raise TypeError(f"{cls.__name__} has to_tree, so it needs from_tree, too")

    @abstractmethod
    def draws(self, n: int) -> Iterator[nn.Module]:
        """Real networks, weights drawn once each; a draw is valid until the next one is taken."""

    def networks(self) -> Iterator[nn.Module]:
        """Every network that is kept for predicting, with its own active weights; each is valid until the next."""
        yield self.model

    def passes(self, n: int) -> Iterator[tuple[nn.Module, list[int]]]:
        """What computes the outputs of some of ``draws(n)``, ``(draws, batch, …)``, and how often each counts.

        The modules are valid until the next is taken.
        """
        return ((OfOneDraw(network), [1]) for network in self.draws(n))

    def fixed(self, n: int) -> Posterior | None:
        """``n`` draws, made now, as positions and values; ``None`` where draws differ by more than active entries."""
        return None

    def n_drawn(self, n: int) -> int:
        """How many networks ``draws(n)`` gives: fewer than ``n`` where the posterior has no more."""
        return n

    def at_mean(self) -> Posterior:
        """The posterior of one network, that at the mean of the weights; an error where that means nothing."""
        raise ValueError(f"{type(self).__name__} has no mean network: take several draws of it instead")

    def mean_network(self) -> nn.Module:
        """The plain network at the mean of the weights, in evaluation mode; an error where that means nothing."""
        return next(iter(self.at_mean().draws(1)))

    def at_width(self, factor: float, generator: torch.Generator | None = None) -> Posterior:
        """This posterior with its variances times ``factor``, which shares its tensors; itself if it has no width."""
        return self

    def set_width(self, factor: float) -> None:  # noqa: B027 (not every posterior has a width)
        """Multiply the variances of draws by ``factor`` from now on, instead of by the one before."""

    @property
    def n_bytes(self) -> int:
        """Memory that predictions need: by default the parameters and buffers of ``model``."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Saved(Entries, ABC):
    """The tree of a posterior in a file, as :meth:`Posterior.from_tree` gets it; entries are checked as they are read.

    Attributes:
        refresh: What :func:`gossamer.load` was given to call with each draw.
    """

    refresh: Callable[[nn.Module], None] | None

    @abstractmethod
    def network(self, prepare: Callable[[nn.Module], nn.Module] | None = None) -> nn.Module:
        """The entry ``"network"``: the network that :func:`gossamer.load` was given, prepared, converted and loaded."""

    @abstractmethod
    def posteriors(self, key: str) -> list[Posterior]:
        """The entry ``key``, a list of posteriors."""


class Collector(ABC):
    """Watches training and makes a posterior of it. A new collector needs ``posterior`` alone."""

    @abstractmethod
    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        """The posterior of the trained network; ``optimizer`` is given for methods whose optimizer holds a part."""

    def observe(self, model: nn.Module, step: int) -> None:  # noqa: B027 (most collectors have nothing to observe)
        """Look at the network after step ``step``."""

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


@dataclass(frozen=True, kw_only=True)
class Method:
    """The whole uniform interface: a method is its parts.

    Attributes:
        optimizer: Builds the optimizer of the converted network.
        lr: The learning rate of the parameter groups without one of their own; groups with their own keep their ratio
            to it.
        collector: Builds what makes the posterior.
        prepare: Converts the user's network, which otherwise stays plain.
        penalty: The KL or the negative log prior, already weighted: a :class:`Penalty` or a function of (model, step).
        rules: Builds what acts after the backward pass.
        adapt: The same method as it suits a network, where its defaults depend on that.
        members: How many networks are trained, one after another from other seeds. All parts count steps from the
            beginning of the member. Their mixture is the posterior.
        shares_steps: Whether the members share the steps of the training, an equal part each. Otherwise each takes all
            of them, and the training is as many times as long.
        fresh: Whether each member after the first starts from other random weights, not from the given ones.
        chosen: What is used where an option was left open, under the option's name and as plain values, for the records
            of a run. What depends on the network is said by :attr:`Rule.chosen` and :meth:`Penalty.chosen`.
        calibrates: Whether a training fits the width of the posterior and a temperature of its logits on the held-out
            examples, where these are many enough. Not where the numbers of a paper are to be made.
        one_rate: Whether steps are as long as the gradient times one rate for all weights, as those of SGD and of
            samplers are, and so grow with the steepness of the loss. Adam's, for one, are not.
        lr_is_given: Whether ``lr`` is the user's own and stays as it is. Otherwise, a training of numbers by one rate
            lowers it to what the loss bears.
        share_for_numbers: What estimators multiply the default rate by, for numbers and if there is one rate. A table
            is noisy, and without a KL a network that learns fast learns the noise by heart. The default was chosen for
            SGD and RigL by held-out log density, on two noisy tables and one with noise of a thirtieth of the target.
    """

    optimizer: Callable[[nn.Module], Optimizer]
    lr: Schedule
    collector: Callable[[], Collector]
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model
    penalty: Penalty | PenaltyFunction = no_penalty
    rules: Callable[[nn.Module, Optimizer], Sequence[Rule]] = lambda model, optimizer: ()
    adapt: Callable[[nn.Module], Method] | None = None
    members: int = 1
    shares_steps: bool = True
    fresh: bool = False
    chosen: Mapping[str, Any] = field(default_factory=dict)
    calibrates: bool = True
    one_rate: bool = True
    lr_is_given: bool = False
    share_for_numbers: float = 0.03

    def suited_to(self, network: nn.Module) -> Method:
        """The method with the defaults that suit a plain network."""
        return self if self.adapt is None else self.adapt(network)
