r"""A Gaussian weight whose standard deviations follow from the curvature of the loss.

Mean-field variational inference minimises, per example, the mean loss plus T/N times the KL to the prior N(0, s²).
Where its derivative with respect to σ² is zero,

.. math::
    \sigma^2 = \frac{T}{N (h + \delta)}, \qquad h = E_q \frac{\partial^2 L}{\partial\theta^2}, \qquad
    \delta = \frac{T}{N s^2}

so σ needs no parameter, no learning rate and no momentum: it is the curvature h, kept as a running mean. A backward
pass gives an estimate of h for both kinds of noise, ĥ = (∂L/∂σ)/σ. For weights drawn as μ + σε that is gε/σ, with g the
gradient at the drawn weight; for noise of the outputs it is 2 ∂L/∂σ².
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.reference import Function
from gossamer.layers.gaussian import GaussianWeight, mean_among, std_of
from gossamer.layers.normals import normals_at
from gossamer.layers.passes import GradientSum
from gossamer.layers.support import version_of
from gossamer.layers.weight import RegrowStd
from gossamer.priors import normal_kl

LEAST_MEMORY = 10  # estimates: the first ones are those of a network that knows nothing yet
WIDEST = 1e-6  # of δ, the least h + δ: float32 cannot tell much less from zero
IDLE = (
    "the standard deviations of this network do not learn: give them gossamer.Curvature(model, optimizer, n_data), or "
    "convert with gossamer.bayesianize(model, std='gradient') and add gossamer.kl(model) / n_data to the loss"
)
COUNTED = (
    "gossamer.Curvature puts the prior into the gradients, and the KL would count it twice: leave gossamer.kl(model) "
    "out of the loss, and compute it under torch.no_grad() to look at it"
)


class CurvatureWeight(GaussianWeight):
    """Active entries with a mean and a curvature h, from which the standard deviation follows.

    ``noise_scale`` is T/N and ``damping`` δ. Until :class:`gossamer.Curvature` sets them, ``noise_scale`` is 1 and h a
    precision: the weight is the Gaussian that it was made as. The prior N(m, T/Nδ) has m = 0 or, with a
    ``prior_spread``, normal numbers of that standard deviation.

    Example:
        >>> from gossamer.layers import Support
        >>> weight = CurvatureWeight(Support((2, 2)), torch.zeros(4), torch.full((4,), 0.5), prior_std=1.0)
        >>> weight.std, weight.curvature
        (tensor([0.5000, 0.5000, 0.5000, 0.5000]), tensor([3., 3., 3., 3.]))
        >>> weight.attach(noise_scale=0.01)
        >>> weight.std.detach(), weight.curvature, weight.damping
        (tensor([0.5000, 0.5000, 0.5000, 0.5000]), tensor([0.0300, 0.0300, 0.0300, 0.0300]), 0.01)
    """

    vectors = ("mean", "curvature")
    alike_on_ranks = ("curvature",)
    curvature: Tensor

    def _start(self, std: Tensor, prior_std: float) -> None:
        self.noise_scale, self.damping = 1.0, prior_std**-2
        self.memory, self.n_estimates = 0.1, -1  # of the running mean; -1 before anything learns
        self.prior_seed, self.prior_spread = 0, 0.0  # of the prior's mean, which is zero without a spread
        self._prior_mean: tuple[Tensor | None, Any, Tensor] | None = None  # and the positions that it was computed for
        self.learner: object = None  # who takes the estimates; the last one that asked
        self.estimate: Tensor | None = None  # while h learns: zeros whose gradient is the sum of the estimates
        self._sum: GradientSum | None = None
        # In float32 at least, whatever the network is in: a running mean moves by less than bfloat16 can show.
        std = std.to(torch.promote_types(std.dtype, torch.float32))
        self.register_buffer("curvature", curvature_of_std(std, self.noise_scale, self.damping))

    @property
    def prior_std(self) -> float:
        """Standard deviation of the prior, √(T / Nδ)."""
        return math.sqrt(self.noise_scale / self.damping)

    @prior_std.setter
    def prior_std(self, value: float) -> None:
        self.damping = self.noise_scale / value**2

    @property
    def prior_mean(self) -> Tensor:
        """Mean of the prior: zero, or normal numbers of its own, which follow from a seed and the positions alone."""
        if not self.prior_spread:
            return self.mean.new_zeros(())
        position = self.support.position
        now = version_of(position), self.mean.device, self.mean.dtype
        if self._prior_mean is None or self._prior_mean[0] is not position or self._prior_mean[1] != now:
            numbers = normals_at(self.support.positions(self.mean.device), self.prior_seed)
            self._prior_mean = position, now, (self.prior_spread * numbers).to(self.mean)
        return self._prior_mean[2]

    @property
    def deviation(self) -> Tensor:
        """μ - m, the distance from the mean of the prior."""
        return self.mean - self.prior_mean if self.prior_spread else self.mean

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of what training learns, before any calibration: summed over the active entries, in nats."""
        return normal_kl(self.deviation, self.learnt_std, self.prior_std)

    @property
    def std(self) -> Tensor:
        """σ of draws and evaluations: as learnt, times the root of the calibration."""
        return self._std(self.calibration * self.noise_scale)

    @property
    def learnt_std(self) -> Tensor:
        """σ = √(T / N(h + δ)). Its gradient, if it is asked for, goes to the estimate of h."""
        return self._std(self.noise_scale)

    def _std(self, variance: float) -> Tensor:
        dtype = self.mean.dtype
        if self.learner is None or not (torch.is_grad_enabled() and self.mean.requires_grad):
            return std_of_curvature(self.curvature, variance, self.damping).to(dtype)
        if self.estimate is None or self.estimate.shape != self.curvature.shape:  # was frozen, or has another length
            self._listen()
        std: Tensor = _Std.apply(self.estimate, self.curvature, variance, self.damping)
        return std.to(dtype)

    @torch.no_grad()
    def set_std(self, std: Tensor) -> None:
        """Hold these standard deviations from now on, without a calibration."""
        self.calibration = 1.0
        self.curvature.copy_(curvature_of_std(std.to(self.curvature), self.noise_scale, self.damping))

    @torch.no_grad()
    def attach(
        self, noise_scale: float, damping: float | None = None, memory: float = 0.1, learner: object = None
    ) -> None:
        """Learn h from now on, with T/N and δ as given; the prior stays as it is where δ is ``None``.

        σ is the same before and after the first call, but not wider than the prior. Later calls keep h, which does not
        depend on T and N; the estimates then go to the last ``learner``.
        """
        std, prior_std, old_damping = self.learnt_std, self.prior_std, self.damping
        self.learner = learner or object()
        self.noise_scale = noise_scale
        self.damping = noise_scale / prior_std**2 if damping is None else damping
        self.calibration, self.memory = 1.0, memory
        if self.n_estimates < 0:
            self.n_estimates = 0
            self.set_std(std)
            self.curvature.clamp_min_(0)
        elif self.damping != old_damping:
            self.curvature.clamp_min_(-0.99 * self.damping)
        self._listen()

    def take_estimate(self) -> Tensor | None:
        """The sum of the estimates of the backward passes that ``mean.grad`` holds; ``None`` if there was none."""
        taken = None if self.estimate is None or self.mean.grad is None else self.estimate.grad
        self.set_estimate(None)
        return taken

    def set_estimate(self, estimate: Tensor | None) -> None:
        """What :meth:`take_estimate` is to return, unless a backward pass adds to it."""
        if estimate is not None and (self.estimate is None or self.estimate.shape != estimate.shape):
            self._listen()
        if self.estimate is not None:
            self.estimate.grad = estimate

    @property
    def rate(self) -> float:
        """1 - b of the running mean: it averages over a share of the estimates so far, and at least over some."""
        return 1 / (LEAST_MEMORY + self.memory * self.n_estimates)

    def learn(self, estimate: Tensor) -> None:
        """Move h towards an estimate."""
        self.curvature.copy_(running_mean(self.curvature, estimate, self.rate, self.damping))
        self.count_estimate()

    def count_estimate(self) -> None:
        """One more estimate is in h."""
        self.n_estimates += 1

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """A new entry starts at mean 0 and the mean curvature of its layer, or at the curvature of a given σ."""
        among = kept | ~kept.any()  # all of them where none is kept
        fill = mean_among(self.curvature, among)
        return {"mean": self.mean.detach().new_zeros(()), "curvature": self.regrown_curvature(fill, regrow_std)}

    def regrown_curvature(self, mean: Tensor, regrow_std: RegrowStd | None) -> Tensor:
        """Curvature of a new entry, given the mean of those that stay."""
        if regrow_std is None or isinstance(regrow_std, str):
            return mean
        return mean.new_full((), self.noise_scale / regrow_std**2 - self.damping)

    def get_extra_state(self) -> Tensor:
        """What the distribution is besides its vectors: a tensor, as safetensors stores nothing else."""
        own = torch.tensor([self.noise_scale, self.damping, self.memory, self.n_estimates], dtype=torch.float64)
        anchors = [float(self.prior_seed), self.prior_spread] if self.prior_spread else []
        return torch.cat([super().get_extra_state(), own, own.new_tensor(anchors)])

    def set_extra_state(self, state: Tensor) -> None:
        """Take the prior, the temperature, the mode and the noise of the network that is loaded."""
        if len(state) < 8:  # of std="gradient"
            super().set_extra_state(state)
            return
        super().set_extra_state(state[:4])
        # After it, and to the bit: the prior std is a root of their ratio.
        self.noise_scale, self.damping, self.memory, n_estimates, *anchors = state[4:].tolist()
        self.n_estimates = int(n_estimates)
        self.prior_seed, self.prior_spread = (int(anchors[0]), anchors[1]) if anchors else (0, 0.0)
        self._prior_mean = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        raw_std = state_dict.pop(prefix + "raw_std", None)  # of std="gradient", as all networks before version 0.3
        if raw_std is not None:
            state_dict[prefix + "curvature"] = torch.zeros_like(raw_std, dtype=self.curvature.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if raw_std is not None:
            calibration = self.calibration
            self.set_std(std_of(raw_std))
            self.calibration = calibration

    @property
    def objection(self) -> str | None:
        """Why the KL does not belong into the loss."""
        return IDLE if self.learner is None else COUNTED

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"learner": None, "estimate": None, "_sum": None, "_prior_mean": None}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self.curvature
        super()._apply(fn, recurse)
        if self.curvature.dtype in (torch.float16, torch.bfloat16):
            self.curvature = before.to(self.curvature.device)
        if self.learner is not None:
            self._listen()  # on the new device
        return self

    def _listen(self) -> None:
        """Collect estimates in the gradient of a leaf that stands beside h."""
        if self._sum is not None:
            self._sum.detach()
        self._sum = self.estimate = None
        if not self.mean.requires_grad:  # a frozen weight listens when it is used again
            return
        # An expanded zero takes the memory of one number.
        zero = torch.zeros((), dtype=self.curvature.dtype, device=self.curvature.device)
        self.estimate = zero.expand(self.curvature.shape).requires_grad_()
        self._sum = GradientSum(self.mean, partial(self.set_estimate, None))
        self._sum.attach(self.estimate)


def std_of_curvature(curvature: Tensor, variance: float | Tensor, damping: float | Tensor) -> Tensor:
    """σ = √(variance / (h + δ))."""
    return (variance / (curvature + damping)).sqrt_()


def curvature_of_std(std: Tensor, variance: float, damping: float) -> Tensor:
    """The h of a given σ: the largest finite number where that of a tiny σ is none."""
    return (variance / std.square()).clamp_max_(torch.finfo(std.dtype).max) - damping


def running_mean(curvature: Tensor, estimate: Tensor, rate: float | Tensor, damping: float | Tensor) -> Tensor:
    """Moves h to h - d + d²/2(h + δ) with d = ``rate`` · (h - ĥ): a step towards ĥ that keeps h + δ positive.

    A step along the geodesic of the positive numbers, to second order (Lin, Schmidt and Khan 2020): h + δ is halved at
    most. An estimate that is not finite, or too large for the square, does not count.

    Example:
        >>> h = torch.tensor([1.0])
        >>> running_mean(h, torch.tensor([3.0]), 0.001, 0.0), running_mean(h, torch.tensor([-1e6]), 0.001, 0.0) > 0
        (tensor([1.0020]), tensor([True]))
    """
    step = (curvature - estimate) * rate
    moved = torch.addcdiv(curvature - step, step * step, curvature + damping, value=0.5)
    moved = moved.clamp_min((WIDEST - 1) * damping)
    return torch.where(moved < torch.inf, moved, curvature)  # false for NaN too, and one pass where isfinite takes four


class _Std(Function):
    """σ from h; the gradient with respect to σ becomes the estimate ĥ = (∂L/∂σ)/σ, for the leaf beside h."""

    generate_vmap_rule = True

    @staticmethod
    def forward(estimate: Tensor, curvature: Tensor, variance: float, damping: float) -> Tensor:
        return std_of_curvature(curvature, variance, damping)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.device = inputs[0].device

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Replicas of nn.DataParallel have their h on another device, and one leaf for all.
        return (grads[0] / ctx.saved_tensors[0]).to(ctx.device), None, None, None
