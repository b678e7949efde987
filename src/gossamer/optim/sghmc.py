"""Stochastic gradient Hamiltonian Monte Carlo with a preconditioner: Algorithm 2 of Ke and Fan (arXiv 2210.12957).

It discretises dw = τ r dt, dr = -β2 (g + d w) dt - h r dt + noise, with (Δt)² = l and β1 = 1 - h Δt:

    r ← β1 r - β2 √l (g + d w) + n ε,   w ← w + √l τ r,   n = √(2 (1 - β1) β2 T / (N τ))

For a fixed τ this samples exp(-N (L + d/2 ‖w‖²) / T). On a quadratic of curvature λ the variance is T/(Nλ) times
1/(1 - a/(2 (1 + β1))) with a = β2 l τ λ: keep a well below 1. The rate may change from step to step, because the
distribution of r does not depend on it.

``mode="reference"`` is the paper's update of v = √l r, as released:

    v ← β1 v - β2 l (g + d w) + √(2 + 2 β1²) k l^¾ ε,   w ← w + τ v

Its noise gives each weight its own temperature, N k² τ √l (1 + β1²) / ((1 - β1) β2), and when the rate falls, v is
too large for 1/(1 - β1) steps. In both modes τ = 1/(1 + e^-ρ) can be learnt, see ``scales``.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.optim.sampler import Each, pulls, scale_, settings, times
from gossamer.optim.scales import ScaledSampler, global_scale
from gossamer.types import Mode, Schedule


class SGHMC(ScaledSampler):
    """Momentum, friction and noise in balance; each weight w may have its own step size τ, learnt during training.

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
        scale_lr: η, the rate at which the local scales τ are learnt; ``None`` is 0, and 0.1 in reference mode. Only a
            constant τ leaves the target invariant: let a schedule bring it to 0 before you sample.
        local_scale: τ before the first step; ``None`` is 1 (no preconditioner), or ½ where τ is learnt or published.
        global_scale: α: the local scale of a weight tends to min(1, std/α), with the std of its posterior. ``None`` is
            the std of the prior, √(T/(N d)). In reference mode it is k l^¾ and cannot be given.
        mode: ``"reference"`` for the paper's noise, the released code's order of updates and its first values.
        maximize: Whether the loss is a mean log-likelihood.
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
        global_scale: float | Schedule | None = None,
        mode: Mode = "default",
        maximize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(params, settings(locals()), generator)

    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        decay = self._decay(group, params)
        velocities = self._buffers(params, "velocity", partial(self._first_velocity, group))
        scales: Each = group["local_scale"]
        if group["learns_scales"]:
            scales = self._learn(group, params, grads, decay)
        noises = [self.noise.like(parameter) for parameter in params]
        if group["learns_scales"]:
            for parameter, noise in zip(params, noises, strict=True):
                self.state[parameter]["noise"] = noise
        is_reference, rate = group["mode"] == "reference", group["lr"]
        kick, drift = (rate, 1.0) if is_reference else (math.sqrt(rate), math.sqrt(rate))
        kicks = torch._foreach_mul(pulls(params, grads, decay), group["gradient_weight"] * kick)
        scale_(velocities, group["momentum"])
        torch._foreach_sub_(velocities, kicks)
        torch._foreach_add_(velocities, torch._foreach_mul(noises, _noise_std(group, scales)))
        torch._foreach_add_(params, torch._foreach_mul(velocities, times(drift, scales)))

    def _complete(self, group: dict[str, Any], schedules: dict[str, Schedule]) -> None:
        group["learns_scales"] = bool(group["scale_lr"]) or "scale_lr" in schedules
        usual = 0.5 if group["learns_scales"] or group["mode"] == "reference" else 1.0
        group["local_scale"] = usual if group["local_scale"] is None else float(group["local_scale"])
        super()._complete(group, schedules)

    def _learn(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], decay: Each) -> list[Tensor]:
        """Step the local scales, using the noise of the last step and the gradient after it, and return them."""
        scales = self._scales(group, params)
        if group["mode"] == "reference":
            probes = self._buffers(params, "noise", self.noise.like)
        elif group["lr"] * group["temperature"] * group["scale_lr"] > 0:
            # The last noise moved w by √l τ n ε, not by ατ ε, so its ε g shows a curvature √l n/α times as large.
            factor = group["global_scale"] / math.sqrt(group["lr"])
            scaled = torch._foreach_mul(self._buffers(params, "noise"), factor)
            probes = list(torch._foreach_div(scaled, _noise_std(group, scales)))
        else:
            return scales  # without noise there is nothing to learn from
        self._learn_scales(group, params, scales, probes, grads, decay)
        return self._scales(group, params)

    def _first_velocity(self, group: dict[str, Any], parameter: Tensor) -> Tensor:
        # The released code starts from velocities of this size.
        return 0.001 * self.noise.like(parameter) if group["mode"] == "reference" else torch.zeros_like(parameter)


def _noise_std(group: dict[str, Any], scales: Each) -> Each:
    """n, the standard deviation of the noise in a velocity: one number, or one per weight."""
    momentum = group["momentum"]
    if group["mode"] == "reference":
        return math.sqrt(2 + 2 * momentum**2) * global_scale(group)
    variance = 2 * (1 - momentum) * group["gradient_weight"] * group["temperature"] / group["n_data"]
    if isinstance(scales, float):
        return math.sqrt(variance / scales)
    stds = torch._foreach_reciprocal(scales)
    torch._foreach_mul_(stds, variance)
    torch._foreach_sqrt_(stds)
    return list(stds)
