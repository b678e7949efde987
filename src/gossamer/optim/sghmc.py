"""Stochastic gradient Hamiltonian Monte Carlo with a preconditioner: Algorithm 2 of Ke and Fan (arXiv 2210.12957).

It discretises dw = τ r dt, dr = -β2 (g + d w) dt - h r dt + noise, with (Δt)² = l and β1 = 1 - h Δt:

    r ← β1 r - β2 √l (g + d w) + n ε,   w ← w + √l τ r,   n = √(2 (1 - β1) β2 T / (N τ))

For a fixed τ this samples exp(-N (L + d/2 ‖w‖²) / T). On a quadratic of curvature λ the variance is T/(Nλ) times
1/(1 - a/(2 (1 + β1))) with a = β2 l τ λ: keep a well below 1. The rate may change from step to step, because the
distribution of r does not depend on it.

``mode="reference"`` is the paper's update of v = √l r, as released:

    v ← β1 v - β2 l (g + d w) + √(2 + 2 β1²) k l^¾ ε,   w ← w + τ v

Its noise gives each weight its own temperature, N k² τ √l (1 + β1²) / ((1 - β1) β2), and when the rate falls, v is
too large for 1/(1 - β1) steps. It learns the local scales τ = 1/(1 + e^-ρ) by mirror descent in ρ (section 2.3). With
α = k l^¾ and σ = ατ the divergence from the target, per example, is J = E L + (KL to the prior)/N, and a step is

    ρ ← ρ - η dJ/dτ,   dJ/dτ = α (α d τ + ε g) - 1/(N τ)

J is a mean over N examples, so this step is of order 1/N and τ hardly moves during training.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer.optim.sampler import LIMITS, Each, Sampler, check_settings, pulls, scale_, settings, times
from gossamer.types import Mode, Schedule


class ScaledSampler(Sampler):
    """An optimizer with a local scale τ per weight. It stores ρ less its start: zero stands for a fresh weight."""

    usual_scale_lr: ClassVar[float]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], generator: torch.Generator | None) -> None:
        check_settings({"n_data": defaults["n_data"]}, LIMITS)  # the values below depend on it
        usual = {"temperature": 1.0, "momentum": 0.9, "scale_lr": self.usual_scale_lr}
        if defaults["mode"] == "reference":
            usual = {"temperature": defaults["n_data"] ** -0.5, "momentum": 0.1, "scale_lr": 0.1}
        super().__init__(
            params, usual | {k: v for k, v in defaults.items() if v is not None or k not in usual}, generator
        )

    def _scales(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """τ of each parameter."""
        if not params:
            return []
        offsets = self._buffers(params, "scale_logit")
        return list(torch._foreach_sigmoid(torch._foreach_add(offsets, logit(group["local_scale"]))))

    def _learn_as_published(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        probes: list[Tensor],
        grads: list[Tensor],
        decay: Each,
    ) -> None:
        """Step ρ by dJ/dτ; ``probes`` are the ε of each weight."""
        scales, alpha = self._scales(group, params), published_scale(group)
        steps = torch._foreach_mul(scales, times(alpha, decay))
        torch._foreach_add_(steps, torch._foreach_mul(probes, grads))
        steps = torch._foreach_mul(steps, alpha)
        torch._foreach_sub_(steps, torch._foreach_reciprocal(torch._foreach_mul(scales, group["n_data"])))
        torch._foreach_sub_(self._buffers(params, "scale_logit"), torch._foreach_mul(steps, group["scale_lr"]))


class SGHMC(ScaledSampler):
    """Momentum, friction and noise in balance; each weight w moves by a step size τ of its own.

    Args:
        params: Parameters, or groups of them.
        lr: l = (Δt)², as in SGD with momentum.
        n_data: N, the number of examples over which the loss is a mean.
        temperature: T; 1 samples the posterior, 0 is SGD with momentum. In reference mode it is the paper's k, which is
            not a temperature: the resulting variance is k² τ √l (1 + β1²)/((1 - β1) β2 λ) for a curvature λ.
            ``None`` is 1, and 1/√N in reference mode (for images the paper takes 1/N).
        momentum: β1; ``None`` is 0.9, and 0.1 in reference mode.
        gradient_weight: β2.
        weight_decay: d = δ/N, for a prior N(0, 1/δ) on each weight.
        scale_lr: η, the rate at which the local scales τ are learnt, in reference mode alone; 0.1.
        local_scale: τ, or what it is before the first step; ``None`` is 1 (no preconditioner), and ½ in reference mode.
        mode: ``"reference"`` for the paper's noise, the released code's order of updates and its first values.
        generator: Source of the noise; ``None`` uses torch's global generator.

    Example:
        >>> w = torch.zeros(1000, requires_grad=True)
        >>> sampler = SGHMC([w], lr=0.1, n_data=100, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(200):
        ...     sampler.zero_grad()
        ...     (w.square() / 2).sum().backward()
        ...     _ = sampler.step()
        >>> abs(float(w.detach().std()) - 0.1) < 0.01  # 1/√N
        True
    """

    usual_scale_lr = 0.0

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Schedule,
        *,
        n_data: float,
        temperature: float | Schedule | None = None,
        momentum: float | Schedule | None = None,
        gradient_weight: float | Schedule = 1.0,
        weight_decay: float | Schedule = 0.0,
        scale_lr: float | Schedule | None = None,
        local_scale: float | None = None,
        mode: Mode = "default",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(params, settings(locals()), generator)

    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        decay = self._decay(group, params)
        velocities = self._buffers(params, "velocity", partial(self._first_velocity, group))
        scales: Each = group["local_scale"]
        if group["learns_scales"]:  # by the noise of the last step and the gradient after it
            self._learn_as_published(group, params, self._buffers(params, "noise", self.noise.like), grads, decay)
            scales = self._scales(group, params)
        noises = [self.noise.like(parameter) for parameter in params]
        if group["learns_scales"]:
            for parameter, noise in zip(params, noises, strict=True):
                self.state[parameter]["noise"] = noise
        is_reference, rate = group["mode"] == "reference", group["lr"]
        kick, drift = (rate, 1.0) if is_reference else (math.sqrt(rate), math.sqrt(rate))
        kicks = torch._foreach_mul(pulls(params, grads, decay), group["gradient_weight"] * kick)
        scale_(velocities, group["momentum"])
        torch._foreach_sub_(velocities, kicks)
        torch._foreach_add_(velocities, torch._foreach_mul(noises, _noise_std(group)))
        torch._foreach_add_(params, torch._foreach_mul(velocities, times(drift, scales)))

    def _complete(self, group: dict[str, Any], schedules: dict[str, Schedule]) -> None:
        super()._complete(group, schedules)
        learns, is_reference = bool(group["scale_lr"]) or "scale_lr" in schedules, group["mode"] == "reference"
        if learns and not is_reference:
            raise ValueError(
                "local scales are learnt in reference mode alone: leave scale_lr out, and give local_scale"
            )
        usual = 0.5 if is_reference else 1.0
        start = usual if group["local_scale"] is None else float(group["local_scale"])
        if not (0 < start < 1 or (start == 1 and not learns)):
            raise ValueError(f"a local scale starts between 0 and 1, and at 1 only where none is learnt; got {start}")
        group.update({"learns_scales": learns, "local_scale": start})

    def _first_velocity(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        # The released code starts from velocities of this size.
        return 0.001 * self.noise.like(parameter) if group["mode"] == "reference" else torch.zeros_like(parameter)


def published_scale(group: dict[str, Any]) -> float:
    """α of the paper, k l^¾."""
    alpha: float = group["temperature"] * group["lr"] ** 0.75
    return alpha


def logit(scale: float) -> float:
    """ρ of a local scale τ."""
    return math.log(scale / (1 - scale))


def _noise_std(group: dict[str, Any]) -> float:
    """n, the standard deviation of the noise in a velocity."""
    momentum = group["momentum"]
    if group["mode"] == "reference":
        return math.sqrt(2 + 2 * momentum**2) * published_scale(group)
    variance = 2 * (1 - momentum) * group["gradient_weight"] * group["temperature"] / group["n_data"]
    return math.sqrt(variance / group["local_scale"])
