"""Likelihoods p(y | network output): the loss, and the predictive density of several draws."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.types import Kind, Likelihood, at_least_float32, in_shape

__all__ = [
    "Categorical",
    "Gaussian",
    "RuleOfSuccession",
    "Weighted",
    "gaussian_interval",
    "gaussian_mixture_crps",
    "noise_std",
]

TINY = 1e-6  # the least frequency of a class and std of a constant target


@dataclass(frozen=True)
class Categorical(Likelihood):
    """Outputs are logits, ``(batch, classes, …)``; targets are class numbers, ``(batch, …)``.

    Example:
        >>> likelihood = Categorical()
        >>> round(likelihood.loss(torch.zeros(4, 10), torch.zeros(4, dtype=torch.long)).item(), 4)
        2.3026
    """

    @property
    def kind(self) -> Kind:
        return "classification"

    @property
    def is_native(self) -> bool:
        return True

    def constant(self, y: Tensor) -> Tensor:
        """The logarithms of the class frequencies, of the classes up to the largest in ``y``."""
        counts = torch.bincount(y.flatten())
        return (counts / counts.sum()).clamp_min(TINY).log().view(1, -1, *[1] * (y.dim() - 1))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y)

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log of the mean over draws of p(y): ``(draws, batch, classes, …), (batch, …) -> (batch, …)``."""
        log_probs = at_least_float32(outputs).log_softmax(2)
        index = y.expand(len(outputs), *y.shape).unsqueeze(2)
        return log_probs.gather(2, index).squeeze(2).logsumexp(0) - math.log(len(outputs))


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Outputs are means, and stds too unless ``noise_std`` is given; targets are numbers.

    With ``noise_std=None`` the last dimension of the output holds means, then raw stds (through a softplus): the
    network learns its noise as a function of the input.

    Args:
        noise_std: The noise, if it is known.
        reach: A target further than so many noise stds from its mean counts as one at that distance. This is for a
            training whose network learns its noise: while it is still wrong about a few rows, their squared errors
            would drown all other gradients.
        least: The least noise std of each target, whatever a network has learnt.

    Example:
        >>> likelihood = Gaussian(noise_std=0.1)
        >>> mean, std = likelihood.split(torch.zeros(4, 1))
        >>> mean.shape, std[0].item()
        (torch.Size([4, 1]), 0.10000000149011612)
    """

    noise_std: float | None = None
    reach: float = math.inf
    least: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        """Reject a noise or a reach that is not positive."""
        if not self.reach > 0:
            raise ValueError(f"reach must be positive, in noise stds; got {self.reach}")
        if self.noise_std is not None and not 0 < self.noise_std < math.inf:
            raise ValueError(
                f"noise_std must be positive, or None for a network that predicts it; got {self.noise_std}"
            )

    def constant(self, y: Tensor) -> Tensor:
        """Mean of the targets, and their std where the noise is not known."""
        y = y.reshape(len(y), -1)
        mean, std = y.mean(0, keepdim=True), y.std(0, keepdim=True, correction=0).clamp_min(TINY)
        return mean if self.noise_std is not None else torch.cat([mean, std.expm1().log()], 1)

    def split(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and noise std of each target, from the network's output; in float32 where that is half precision."""
        output = at_least_float32(output)
        if self.noise_std is not None:
            return output, torch.full_like(output, self.noise_std)
        if output.dim() < 2 or output.shape[-1] % 2:
            raise ValueError(
                f"Gaussian() splits the output into means and stds, but its last dimension is {output.shape[-1]}: give "
                "the network twice as many outputs as targets, or the noise, Gaussian(noise_std=…)"
            )
        mean, raw = output.chunk(2, -1)
        return mean, torch.maximum(noise_std(raw), raw.new_tensor(self.least))

    @property
    def is_native(self) -> bool:
        return self.noise_std is None

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.noise_std is None and outputs.dim() < 3:
            raise ValueError("Gaussian() needs outputs (batch, 2 · targets), means and stds; this network gives one")
        return self.split(outputs)

    def interval(self, outputs: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Exact quantiles of the mixture."""
        return gaussian_interval(*self.moments(outputs), level)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over the draws of Φ((y - mean)/std)."""
        mean, std = self.moments(outputs)
        below: Tensor = torch.special.ndtr((in_shape(y, mean.shape[1:]).double() - mean.double()) / std.double())
        return below.mean(0)

    def crps(self, outputs: Tensor, y: Tensor) -> float:
        return gaussian_mixture_crps(*self.moments(outputs), y)

    def _log_density(self, output: Tensor, y: Tensor, examples: int) -> Tensor:
        """One number for each index of the first ``examples`` dimensions: (batch,), or (draws, batch)."""
        mean, std = self.split(output)
        y = in_shape(y, mean.shape[examples - 1 :])
        if self.reach < math.inf:
            y = mean + (y - mean).clamp(-self.reach * std, self.reach * std)
            y = y.detach()  # it is the target that moves
        error = (y - mean) / std
        log_density = -0.5 * error.square() - std.log() - 0.5 * math.log(2 * math.pi)
        return log_density.unsqueeze(-1).flatten(examples).sum(-1)


@dataclass(frozen=True)
class Weighted(Likelihood):
    """A likelihood of examples with weights, which are the last column of the targets.

    A weight multiplies the log-likelihood of its example, log p(y)·w. With a mean of 1 over the training examples, and
    their sum as ``Task.total_weight``, weights are counts: an example of weight 3 counts as three.

    Example:
        >>> y = torch.tensor([[1.0, 0.5], [2.0, 1.5]])  # numbers 1 and 2, weights 0.5 and 1.5
        >>> Weighted(Gaussian(noise_std=1.0)).loss(torch.tensor([[1.0], [3.0]]), y).round(decimals=4)
        tensor(1.2939)
    """

    likelihood: Likelihood

    @property
    def kind(self) -> Kind:
        return self.likelihood.kind

    def constant(self, y: Tensor) -> Tensor | None:
        return self.likelihood.constant(self.targets(y))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean over the batch of weight times negative log-likelihood."""
        return -(y[:, -1] * self.log_predictive(output.unsqueeze(0), y)).mean()

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log density without the weights: ``(draws, batch, out), (batch, targets + 1) -> (batch,)``."""
        return self.likelihood.log_predictive(outputs, self.targets(y))

    def targets(self, y: Tensor) -> Tensor:
        """The targets without the weights: ``(batch, targets + 1) -> (batch, targets)``."""
        return y[:, 0].long() if self.kind == "classification" else y[:, :-1]


@dataclass(frozen=True)
class RuleOfSuccession(Likelihood):
    """Predictions of standardised numbers by a network that learns their noise, after ``n_rows`` rows.

    After n rows, the next is like none of them with probability 1/(n + 1), by Laplace's rule of succession. Its density
    is then that of all targets, and its error e is larger than all of the known rows. With w = n/(n + 1),

        p(y) = w p_network(y) + (1 - w) N(y; 0, 1),    E(y - m)² = w s² + (1 - w) e²

    where m and s are mean and std by a draw. The second is the variance of that draw here, so that a noise learnt to be
    tiny is not believed. Without it one row may cost hundreds of nats. Means, intervals and the CRPS are those of all
    other rows.

    Args:
        likelihood: What reads the outputs for rows that are like the known ones.
        n_rows: n, or the sum of their weights.
        error: e of each target, as far as it is known.

    Example:
        >>> likelihood = RuleOfSuccession(Gaussian(noise_std=1e-3), n_rows=99, error=(1.0,))
        >>> [round(float(moment), 3) for moment in likelihood.moments(torch.zeros(1, 1, 1))]
        [0.0, 0.1]
        >>> likelihood.log_predictive(torch.zeros(1, 1, 1), torch.ones(1, 1))  # log N(1; 0, 1) - log 100
        tensor([-6.0241])
    """

    likelihood: Likelihood
    n_rows: float
    error: tuple[float, ...] = (0.0,)

    def constant(self, y: Tensor) -> Tensor | None:
        return self.likelihood.constant(y)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        # Networks are trained on rows that are known.
        return self.likelihood.loss(output, y)

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        like_known_rows = self.likelihood.log_predictive(outputs, y)
        y = y.reshape(len(y), -1).to(like_known_rows)
        like_none = -0.5 * (y.square() + math.log(2 * math.pi)).sum(1)
        return torch.logaddexp(like_known_rows + math.log(self.n_rows), like_none) - math.log(self.n_rows + 1)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.likelihood.moments(outputs)
        known, error = self.n_rows / (self.n_rows + 1), std.new_tensor(self.error)
        return mean, (known * std.square() + (1 - known) * error.square()).sqrt()

    def interval(self, outputs: Tensor, level: float) -> tuple[Tensor, Tensor]:
        return self.likelihood.interval(outputs, level)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.cdf(outputs, y)

    def crps(self, outputs: Tensor, y: Tensor) -> float:
        return self.likelihood.crps(outputs, y)


def noise_std(raw: Tensor) -> Tensor:
    """The noise std of a raw one: a noise of exactly zero has no density."""
    return F.softplus(raw) + 1e-6


def gaussian_mixture_crps(means: Tensor, stds: Tensor, y: Tensor) -> float:
    """Continuous ranked probability score of an equal mixture of Gaussians, one per draw (Grimit et al. 2006).

    CRPS = ∫ (F(t) − 1[t ≥ y])² dt, in the units of y, averaged over the targets. For M components,

        (1 / M) Σ_i A(y − μ_i, σ_i) − (1 / 2M²) Σ_i Σ_j A(μ_i − μ_j, √(σ_i² + σ_j²)),
        A(m, s) = E|m + s Z| = m (2 Φ(m / s) − 1) + 2 s φ(m / s);

    where σ = 0 it is the score of an ensemble of numbers. Time grows with M², memory with M.

    Args:
        means: μ, ``(draws, n…)``.
        stds: σ, ``(draws, n…)`` or what broadcasts to it.
        y: Targets, ``(n…)``.

    Example:
        >>> round(gaussian_mixture_crps(torch.zeros(1, 1), torch.ones(1, 1), torch.zeros(1)), 4)  # (√2 − 1) / √π
        0.2337
    """
    if (stds < 0).any():
        raise ValueError(f"stds must not be negative; got {float(stds.min())}")
    means = means.double()
    stds = stds.double().expand(means.shape)
    distance = _mean_abs(y.reshape(means.shape[1:]).double() - means, stds).mean()
    spread = [_mean_abs(mean - means, torch.hypot(std, stds)).mean() for mean, std in zip(means, stds, strict=True)]
    return float(distance - torch.stack(spread).mean() / 2)


def _mean_abs(mean: Tensor, std: Tensor) -> Tensor:
    """E|θ| of θ ~ N(mean, std²), also where ``std`` is 0."""
    z = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    return mean * torch.erf(z / math.sqrt(2)) + std * math.sqrt(2 / math.pi) * torch.exp(-z.square() / 2)


def gaussian_interval(mean: Tensor, std: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Quantiles of an equal mixture of Gaussians, one per draw, with a share ``level`` between them."""
    tail = (1 - level) / 2
    return _lower_quantile(mean, std, tail), -_lower_quantile(-mean, std, tail)


def _lower_quantile(mean: Tensor, std: Tensor, level: float) -> Tensor:
    """The x at which the mean over draws of Φ((x - mean)/std) is ``level`` < 1/2, by bisection."""
    # The quantile of a mixture lies among those of its parts, at most |Φ⁻¹(level)| stds below their means.
    reach = math.sqrt(2) * abs(torch.erfinv(torch.tensor(2 * level - 1, dtype=torch.float64)).item()) + 1
    low, high = (mean - reach * std).amin(0), mean.amax(0)
    scale = -1 / (math.sqrt(2) * std.clamp_min(torch.finfo(std.dtype).tiny))
    for _ in range(60):
        middle = (low + high) / 2
        # By erfc, which keeps the digits of a small tail; 1 + erf loses them.
        below = torch.special.erfc((middle - mean) * scale).mean(0) / 2 < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
