"""Stochastic gradient Langevin dynamics (Welling and Teh, ICML 2011; cyclical: Zhang et al., ICLR 2020)."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gossamer.optim.sampler import Sampler, pulls, settings
from gossamer.types import Schedule


class SGLD(Sampler):
    """Gradient descent with noise: w ← w - l (g + d w) + √(2 l T / N) ε.

    For small rates it samples exp(-N (L + d/2 ‖w‖²) / T), L the mean loss. On a quadratic of curvature λ the variance
    is T/(Nλ) · 1/(1 - lλ/2): keep lλ well below 1. The noise of mini-batches comes on top.

    Args:
        params: Parameters, or groups of them.
        lr: l, as in SGD.
        n_data: N, the number of examples over which the loss is a mean.
        temperature: T; 1 samples the posterior, 0 is gradient descent. The released code of cyclical SGLD has 1/N.
        weight_decay: d = δ/N, for a prior N(0, 1/δ) on each weight.
        generator: Source of the noise; ``None`` uses torch's global generator.

    Example:
        >>> w = torch.zeros(1000, requires_grad=True)
        >>> sampler = SGLD([w], lr=0.1, n_data=100, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(100):
        ...     sampler.zero_grad()
        ...     (w.square() / 2).sum().backward()
        ...     _ = sampler.step()
        >>> abs(float(w.detach().std()) - 0.1) < 0.01  # 1/√N
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Schedule,
        *,
        n_data: float,
        temperature: float | Schedule = 1.0,
        weight_decay: float | Schedule = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(params, settings(locals()), generator)

    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        noises = [self.noise.like(parameter) for parameter in params]
        noise_std = math.sqrt(2 * group["lr"] * group["temperature"] / group["n_data"])
        pulled = pulls(params, grads, self._decay(group, params))
        torch._foreach_sub_(params, torch._foreach_mul(pulled, group["lr"]))
        torch._foreach_add_(params, torch._foreach_mul(noises, noise_std))
