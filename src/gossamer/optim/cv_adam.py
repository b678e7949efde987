"""Constrained variational Adam: Algorithm 1 of Ke and Fan (arXiv 2210.12957).

A Gaussian N(μ, (ατ)²) over every weight: α > 0 is shared, τ in (0, 1) its own. The parameters are μ. One step:

    ε ~ N(0, 1),  w = μ + ατε,  g = dL/dw                          inside ``sampled()``
    m ← β1 m + β2 (g + d w)
    ρ ← ρ - η (Nτ/T · α (α d τ + ε g) - 1),  τ = 1/(1 + e^-ρ)
    μ ← μ - l τ m

The weight decay enters m, but not the ε g in the line of ρ, where the paper's text counts it twice. The step of ρ is η
times the slope of the divergence in log τ: near the minimum, the distance in log τ shrinks by 1 - 2η (1 - τ) per step,
for every N, T and τ. The paper's, of ``mode="reference"``, is T/(Nτ) of it, so that τ hardly moves
(:mod:`gossamer.optim.sghmc`).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gossamer.optim.sampler import LIMITS, DrawingOptimizer, pulls, scale_, settings, times
from gossamer.optim.sghmc import ScaledSampler, logit, published_scale
from gossamer.types import Mode, Schedule

LARGEST_STEP = 1.0  # of ρ: an outlying draw in a steep valley may ask for thousands, from which τ would not recover
LARGEST_LOGIT = 20.0  # beyond it float32 cannot tell 1 - τ from 0


class CVAdam(DrawingOptimizer, ScaledSampler):
    """Variational inference by an optimizer: the network stays plain, its parameters are the means.

    ``with optimizer.sampled():`` draws weights for a forward and backward pass and restores the means.

    In the default mode q minimises E_q N (L + d/2 ‖w‖²)/T - entropy: at temperature 1 the negative ELBO. For a Gaussian
    posterior with independent weights q becomes the posterior.

    Args:
        params: Parameters, or groups of them.
        lr: l; a mean moves by l τ m.
        n_data: N, the number of examples over which the loss is a mean.
        temperature: T; 1 is the posterior, smaller values sharpen it. In reference mode it is the paper's k, which only
            sets the global scale. ``None`` is 1, and 1/√N in reference mode.
        momentum: β1; ``None`` is 0.9, and 0.1 in reference mode.
        gradient_weight: β2.
        weight_decay: d = δ/N, for a prior N(0, 1/δ) on each weight.
        scale_lr: η, the rate of the local scales; ``None`` is 0.01, and 0.1 in reference mode. The two have different
            units.
        init_std: σ = ατ of every weight before the first step; ``None`` is 0.01, or α/2 if that is less. In reference
            mode τ starts at ½.
        global_scale: α, a bound on every σ; ``None`` is the std of the prior, √(T/(N d)), and k l^¾ in reference mode.
        mode: ``"reference"`` for the paper's steps of ρ, global scale and first values.
        generator: Source of the noise; ``None`` uses torch's global generator.

    Example:
        >>> w = torch.zeros(1000, requires_grad=True)
        >>> optimizer = CVAdam([w], lr=0.5, n_data=100, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(500):
        ...     optimizer.zero_grad()
        ...     with optimizer.sampled():
        ...         (2 * w.square()).sum().backward()
        ...     _ = optimizer.step()
        >>> abs(float(optimizer.std(w).mean()) - 0.05) < 0.005  # 1/√(N · 4)
        True
    """

    limits = LIMITS | {"temperature": (0, False, math.inf)}  # at 0 there is no distribution
    usual_scale_lr = 0.01

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Schedule,
        *,
        n_data: float,
        temperature: float | Schedule | None = None,
        momentum: float | Schedule | None = None,
        gradient_weight: float | Schedule = 1.0,
        weight_decay: float | Schedule = 5e-4,
        scale_lr: float | Schedule | None = None,
        init_std: float | None = None,
        global_scale: float | Schedule | None = None,
        mode: Mode = "default",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(params, settings(locals()), generator)

    def stds(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """σ = ατ of each parameter."""
        alpha = published_scale(group) if group["mode"] == "reference" else group["global_scale"]
        return [alpha * scale for scale in self._scales(group, params)]

    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        decay, noises = self._decay(group, params), self._drawn_noise(params)
        scales, buffers = self._scales(group, params), self._buffers(params, "momentum_buffer")
        is_reference, drawn = group["mode"] == "reference", params
        if is_reference:  # by default the decay is that of the mean: that of the draw on average, with less noise
            shifts = torch._foreach_mul(torch._foreach_mul(scales, published_scale(group)), noises)
            drawn = list(torch._foreach_add(params, shifts))
        scale_(buffers, group["momentum"])
        torch._foreach_add_(buffers, torch._foreach_mul(pulls(drawn, grads, decay), group["gradient_weight"]))
        if is_reference:
            self._learn_as_published(group, params, noises, grads, decay)
        else:
            alpha, offsets = group["global_scale"], self._buffers(params, "scale_logit")
            steps = torch._foreach_mul(scales, times(alpha, decay))
            torch._foreach_add_(steps, torch._foreach_mul(noises, grads))
            torch._foreach_mul_(steps, torch._foreach_mul(scales, group["n_data"] / group["temperature"] * alpha))
            torch._foreach_sub_(steps, 1)
            steps = torch._foreach_mul(steps, group["scale_lr"])
            torch._foreach_clamp_min_(steps, -LARGEST_STEP)
            torch._foreach_clamp_max_(steps, LARGEST_STEP)
            torch._foreach_sub_(offsets, steps)
            start = logit(group["local_scale"])
            torch._foreach_clamp_min_(offsets, -LARGEST_LOGIT - start)
            torch._foreach_clamp_max_(offsets, LARGEST_LOGIT - start)
        rates = torch._foreach_mul(self._scales(group, params), group["lr"])
        torch._foreach_sub_(params, torch._foreach_mul(rates, buffers))
        self._forget_draw(params)

    def _complete(self, group: dict[str, Any], schedules: dict[str, Schedule]) -> None:
        super()._complete(group, schedules)
        group["local_scale"] = 0.5
        if group["mode"] == "reference":
            if group["init_std"] is not None:
                raise ValueError("in reference mode every local scale starts at ½: leave init_std out")
            if group["global_scale"] is not None:
                raise ValueError("in reference mode the global scale is k · lr^¾: leave global_scale out")
            return
        if group["global_scale"] is None:
            if group["weight_decay"] == 0:
                raise ValueError(
                    "to learn scales without a prior (weight_decay=0) give global_scale, a bound on the posterior stds"
                )
            group["global_scale"] = math.sqrt(group["temperature"] / (group["n_data"] * group["weight_decay"]))
        bound = group["global_scale"]
        first = min(0.01, bound / 2) if group["init_std"] is None else group["init_std"]
        if not 0 < first < bound:
            raise ValueError(f"init_std must be between 0 and the global scale, {bound:g}; got {first}")
        group["local_scale"] = first / bound
