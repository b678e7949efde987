"""The combined prediction of several draws of a network for a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.likelihoods import gaussian_interval
from gossamer.types import Likelihood, at_least_float32


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
