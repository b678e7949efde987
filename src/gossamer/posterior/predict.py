"""Predictions of several draws, batch by batch, and what follows from them together."""

from __future__ import annotations

import contextlib
import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.distributed import OwnNoise
from gossamer.likelihoods import gaussian_interval
from gossamer.posterior.in_layers import InLayers, LocalPasses, SingleNetwork, is_bayesian
from gossamer.types import Likelihood, Posterior, at_least_float32

Kind = Literal["weights", "local", "mean"]
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Arguments = tuple[list[Tensor], dict[str, Tensor]]
Around = Callable[[float, Callable[[], Tensor]], Tensor]
"""How many networks are done, in part by a batch, and what computes the outputs for that batch -> these outputs."""

# Rounding errors of entropies and outputs in float32: below this, draws agree to the last digit.
NUMERICALLY_ZERO = 1e-5
# Logits that spread by more than this share of their size disagree, even where every draw is sure of the same class.
SMALL_SPREAD = 1e-2
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def predict(
    model: nn.Module | Posterior,
    x: Inputs,
    n_draws: int = 5,
    kind: Kind = "weights",
    *,
    likelihood: Likelihood | None = None,
    batch_size: int = 256,
    class_dim: int = 1,
    generator: torch.Generator | None = None,
) -> Prediction:
    """Predict ``x`` with ``n_draws`` networks drawn from the posterior.

    The model itself is not changed, so several threads may predict at once. Draws are made of the active entries alone,
    and multiplied by sparse kernels where that is faster. They have modules of their own and share parameters, buffers
    and whatever else the modules hold.

    Args:
        model: A converted network, or the posterior that :func:`gossamer.fit` returned.
        x: A batch, examples along dimension 0: a tensor, or several for the network's positional or named arguments.
        n_draws: How many networks.
        kind: ``"weights"`` draws whole networks, each used for all of ``x``; ``"local"`` draws the noise of each output
            (local reparameterization), as in training; ``"mean"`` is one network, that at the means of the weights.
        likelihood: ``Categorical()``, or ``Gaussian(…)`` for the noise of regression targets.
        batch_size: Examples on the network's device at a time, wherever ``x`` is; the results do not depend on it for
            ``kind="weights"``.
        class_dim: Dimension of the classes in the network's output.
        generator: Random generator for draws of a network; a posterior has its own.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 3)), density=0.2)
        >>> prediction = gossamer.predict(model, torch.randn(4, 10), n_draws=7)
        >>> prediction.probs.shape, prediction.samples.shape, prediction.mutual_information.shape
        (torch.Size([4, 3]), torch.Size([7, 4, 3]), torch.Size([4]))
    """
    _check(model, n_draws, kind, batch_size, generator)
    inputs = arguments(x)
    seeded: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not isinstance(model, nn.Module):
        posterior = model.at_mean() if kind == "mean" else model
    elif kind == "local":
        posterior = LocalPasses(model)
        if generator is not None:  # the noise of outputs comes from torch's global generator
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            seeded = OwnNoise(seed, next(model.parameters()).device)
    elif kind == "mean":
        posterior = SingleNetwork(model)
    else:
        posterior = InLayers(generator=generator).posterior(model)
    with seeded:
        outputs = outputs_of(posterior, inputs, n_draws, batch_size)
    prediction = Prediction(outputs, likelihood, class_dim)
    if isinstance(model, nn.Module) and n_draws > 1 and kind != "mean":
        _warn_if_certain(model, prediction)
    return prediction


@dataclass(frozen=True, eq=False)  # tensors have no one truth value, so two predictions are equal if they are one
class Prediction:
    """Outputs of the draws, ``(draws, batch, …)``, and what follows from them.

    Read as logits (``probs``, ``entropy``, ``mutual_information``…) or as values (``mean``, ``std``, ``interval``…). A
    likelihood (``Categorical``, ``Gaussian`` or your own) fixes which of the two is meant and adds the noise of the
    targets; without one both can be asked for and the noise of the targets is taken to be zero.

    Example:
        >>> prediction = Prediction(torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))
        >>> prediction.probs
        tensor([[0.5000, 0.5000]])
        >>> bool(prediction.mutual_information > 0.3)
        True
    """

    outputs: Tensor
    likelihood: Likelihood | None = None
    class_dim: int = 1  # of the network's output, as in F.cross_entropy

    def double(self) -> Prediction:
        """The same in float64: in float32 all probabilities above 1 - 6e-8 are one, and their order is lost."""
        return replace(self, outputs=self.outputs.double())

    @property
    def samples(self) -> Tensor:
        """Class probabilities of each draw, ``(draws, batch, classes)``; of numbers, their predicted means."""
        if self.has_numbers:
            return _values(self)[0]
        _check_classes(self)
        if self.likelihood is not None:
            return self.likelihood.probs(self.outputs, self._dim)
        return at_least_float32(self.outputs).softmax(self._dim)

    @property
    def probs(self) -> Tensor:
        """Class probabilities, the mean over the draws, ``(batch, classes)``."""
        _check_classes(self)
        return self.samples.mean(0)

    @property
    def entropy(self) -> Tensor:
        """Entropy of ``probs`` in nats, ``(batch,)``: all uncertainty."""
        return _entropy(self.probs, self._dim - 1)

    @property
    def expected_entropy(self) -> Tensor:
        """Mean entropy of the draws, ``(batch,)``: uncertainty that more data could not remove."""
        _check_classes(self)
        return _entropy(self.samples, self._dim).mean(0)

    @property
    def mutual_information(self) -> Tensor:
        """``entropy - expected_entropy``, ``(batch,)``: how much the draws disagree."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def confidence(self) -> Tensor:
        """Probability of the most probable class, ``(batch,)``."""
        return self.probs.amax(self._dim - 1)

    @property
    def mean(self) -> Tensor:
        """Predicted mean, ``(batch, targets)``."""
        return _values(self)[0].mean(0)

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the draws' means: how much the draws disagree."""
        return _values(self)[0].std(0, correction=0)

    @property
    def aleatoric_std(self) -> Tensor:
        """Root mean square of the noise of the targets over the draws; zero without a likelihood."""
        return _values(self)[1].square().mean(0).sqrt()

    @property
    def std(self) -> Tensor:
        """Standard deviation of the prediction, from both sources."""
        return (self.epistemic_std.square() + self.aleatoric_std.square()).sqrt()

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Bounds, each ``(batch, targets)``, that hold the target with probability ``level``, equal mass outside each.

        With a likelihood they are quantiles of the mixture of the draws' distributions; without, of the Gaussian that
        has the mean and the spread of the draws.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is a probability between 0 and 1, got {level}")
        _values(self)  # which classes do not have
        if self.likelihood is None:
            return gaussian_interval(self.mean.unsqueeze(0), self.std.unsqueeze(0), level)
        return self.likelihood.interval(self.outputs, level)

    @property
    def has_numbers(self) -> bool:
        """Whether a likelihood says that the targets are numbers."""
        return self.likelihood is not None and self.likelihood.kind == "regression"

    @property
    def has_classes(self) -> bool:
        """Whether the outputs can be read as logits of at least two classes."""
        is_inside = 2 <= self._dim < self.outputs.dim()  # before it come the draws and the batch
        return not self.has_numbers and is_inside and self.outputs.shape[self._dim] >= 2

    @property
    def _dim(self) -> int:
        """Dimension of the classes in ``outputs``."""
        return self.class_dim + 1 if self.class_dim >= 0 else self.outputs.dim() + self.class_dim


def arguments(x: Inputs) -> Arguments:
    """Positional and named arguments of the network, each with as many examples."""
    named = dict(x) if isinstance(x, Mapping) else {}
    given: Any = [] if named else [x] if isinstance(x, Tensor) else x
    is_known = isinstance(given, Sequence) and not isinstance(given, str)
    parts = [*given, *named.values()] if is_known else []
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(
            f"x must be a tensor, a sequence of tensors or a mapping of names to tensors, got {type(x).__name__}"
        )
    lengths = {part.shape[:1] for part in parts}  # empty for a number
    if len(lengths) > 1 or torch.Size() in lengths:
        shapes = [tuple(part.shape) for part in parts]
        raise ValueError(f"examples lie along dimension 0 of every input, so all have as many; got shapes {shapes}")
    return list(given), named


def outputs_of(
    posterior: Posterior,
    inputs: Arguments,
    n_draws: int,
    batch_size: int,
    transform: Callable[[Tensor], Tensor] | None = None,
    around: Around | None = None,
) -> Tensor:
    """Outputs of the draws, ``(draws, batch, …)``, over the posterior's temperature; every prediction rests on this."""
    drawn: list[Tensor] = []
    with torch.no_grad():
        number = 0
        for network, times in posterior.passes(n_draws):
            found = forward(network, inputs, batch_size, transform, around, range(number, number + len(times)))
            number += len(times)
            alone = all(count == 1 for count in times)
            drawn.append(found if alone else found.repeat_interleave(torch.tensor(times, device=found.device), 0))
    outputs = torch.cat(drawn)
    return outputs if posterior.temperature == 1 else outputs / posterior.temperature


def forward(
    network: nn.Module,
    inputs: Arguments,
    batch_size: int,
    transform: Callable[[Tensor], Tensor] | None = None,
    around: Around | None = None,
    numbers: range = range(1),
) -> Tensor:
    """Outputs for all inputs, ``(draws, batch, …)``, on their device.

    Only one batch at a time is on the device of the network, and transformed. ``numbers`` are those of its draws.
    """
    first = [*inputs[0], *inputs[1].values()][0]
    there = next((parameter.device for parameter in network.parameters()), first.device)

    def batch(rows: slice) -> Tensor:
        args = [part[rows].to(there) for part in inputs[0]]
        args = args if transform is None else [transform(part) for part in args]
        output = network(*args, **{name: part[rows].to(there) for name, part in inputs[1].items()})
        if not isinstance(output, Tensor):
            raise TypeError(
                f"predict needs a network that returns one tensor, got {type(output).__name__}: wrap it in a module "
                "whose forward returns the tensor to predict"
            )
        return output.to(first.device)

    outputs = []
    for start in range(0, max(1, len(first)), batch_size):
        compute = partial(batch, slice(start, start + batch_size))
        done = numbers.start + len(numbers) * min(1.0, (start + batch_size) / max(1, len(first)))
        outputs.append(compute() if around is None else around(done, compute))
    return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]


def _warn_if_certain(model: nn.Module, prediction: Prediction) -> None:
    """Warn once per model if its draws do not differ, with the usual causes."""
    outputs = prediction.outputs
    if model in _warned or outputs.shape[1] == 0:
        return
    size = float(outputs.abs().amax().clamp_min(1e-12))
    # Two of n numbers that lie d apart have a standard deviation of d / √2n or more: mostly this is enough.
    if float((outputs[1] - outputs[0]).abs().amax()) >= SMALL_SPREAD * size * math.sqrt(2 * len(outputs)):
        return
    spread = float(outputs.std(0, correction=0).amax()) / size
    sure = prediction.has_classes and bool((prediction.mutual_information < NUMERICALLY_ZERO).all())
    if spread < (SMALL_SPREAD if sure else NUMERICALLY_ZERO):
        _warned.add(model)
        warnings.warn(
            "the draws agree to the last digits: mutual information is numerically zero. The standard deviations are "
            "too small to matter: start from a larger init_std (or the default) and let them learn, by "
            "gossamer.Curvature beside the optimizer (a higher temperature makes them larger), or with std='gradient' "
            "by Adam and gossamer.kl(model) / n_data in the loss",
            stacklevel=3,
        )


def _check(
    model: nn.Module | Posterior, n_draws: int, kind: str, batch_size: int, generator: torch.Generator | None
) -> None:
    if not isinstance(model, nn.Module | Posterior):
        raise TypeError(
            f"predict takes a network or a posterior (gossamer.types.Posterior), got {type(model).__name__}"
        )
    if n_draws < 1 or batch_size < 1:
        raise ValueError(f"n_draws and batch_size count from 1; got {n_draws} and {batch_size}")
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be 'weights' or 'local'; got {kind!r}")
    if kind == "local" and not isinstance(model, nn.Module):
        raise ValueError("kind='local' needs the network itself; a posterior gives draws of weights")
    if generator is not None and not isinstance(model, nn.Module):
        raise ValueError("a posterior draws with its own generator: give it that one instead")
    if isinstance(model, nn.Module) and n_draws > 1 and kind != "mean" and not is_bayesian(model):
        raise ValueError(
            "this model has no Gaussian weights, so there is nothing to draw: convert it with "
            "gossamer.bayesianize(model), or ask for n_draws=1"
        )


def _values(prediction: Prediction) -> tuple[Tensor, Tensor]:
    if prediction.likelihood is None:
        values = at_least_float32(prediction.outputs)
        return values, torch.zeros_like(values)
    if prediction.likelihood.kind == "classification":
        raise ValueError("a categorical prediction has probs, not a mean; for regression pass likelihood=Gaussian(…)")
    return prediction.likelihood.moments(prediction.outputs)


def _check_classes(prediction: Prediction) -> None:
    if prediction.has_numbers:
        raise ValueError("a prediction of numbers has a mean and a std, not class probabilities")
    if not prediction.has_classes:
        raise ValueError(
            f"outputs of shape {tuple(prediction.outputs.shape)} (draws, batch, …) have no classes at dimension "
            f"{prediction.class_dim} of the network's output. A classifier needs one output a class, two for yes or "
            "no; for regression ask for mean and std"
        )


def _entropy(probs: Tensor, dim: int) -> Tensor:
    entropy: Tensor = torch.special.entr(probs).sum(dim)
    return entropy
