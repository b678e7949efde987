"""IVON, the improved variational online Newton method (Shen et al., ICML 2024, Algorithm 1).

A Gaussian N(m, σ²) over every weight, σ² = T / N(h + δ), with h the curvature of the mean loss and δ that of the prior.
The parameters are m. Step t:

    ε ~ N(0, 1),  w = m + σε,  ĝ = dL/dw,  ĥ = ĝ ε/σ                           inside ``sampled()``
    g ← β1 g + (1 - β1) ĝ
    h ← β2 h + (1 - β2) ĥ + ½ (1 - β2)² (h - ĥ)²/(h + δ)
    m ← m - l (h₀ + δ) (g/(1 - β1ᵗ) + δ m)/(h + δ)

The square keeps h + δ positive, although ĥ may be negative. The factor h₀ + δ is that of the released code: l is the
rate of a weight that has the first curvature h₀.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gossamer.optim.sampler import LIMITS, DrawingOptimizer, Each, settings
from gossamer.types import Schedule

__all__ = ["IVON"]


class IVON(DrawingOptimizer):
    """Variational inference by a natural-gradient optimizer: the network stays plain, its parameters are the means.

    ``with optimizer.sampled():`` draws weights for a forward and backward pass and restores the means. For a Gaussian
    posterior with independent weights q becomes the posterior.

    Args:
        params: Parameters, or groups of them.
        lr: l; 0.1 to 0.2 for images.
        n_data: N, the number of examples over which the loss is a mean; the paper's λ.
        temperature: T; 1 is the posterior, smaller values sharpen it.
        init_curvature: h₀, the curvature of every weight before the first step, which sets the first σ. A training
            shorter than 1/(1 - β2) steps hardly forgets it.
        momentum: β1.
        curvature_momentum: β2. The published trainings have some 10⁵ steps.
        weight_decay: δ.
        generator: Source of the noise; ``None`` uses torch's global generator.

    Example:
        >>> w = torch.zeros(1000, requires_grad=True)
        >>> noise = torch.Generator().manual_seed(0)
        >>> optimizer = IVON([w], lr=0.1, n_data=100, curvature_momentum=0.99, generator=noise)
        >>> for _ in range(1000):
        ...     optimizer.zero_grad()
        ...     with optimizer.sampled():
        ...         (2 * w.square()).sum().backward()
        ...     _ = optimizer.step()
        >>> abs(float(optimizer.std(w).mean()) - 0.05) < 0.005  # 1/√(N · 4)
        True
    """

    limits = LIMITS | {
        "temperature": (0, False, math.inf),  # at 0 there is no distribution
        "init_curvature": (0, False, math.inf),
        "curvature_momentum": (0, True, 1),
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Schedule,
        *,
        n_data: float,
        temperature: float | Schedule = 1.0,
        init_curvature: float = 1.0,
        momentum: float | Schedule = 0.9,
        curvature_momentum: float | Schedule = 0.99999,
        weight_decay: float | Schedule = 1e-4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(params, settings(locals()), generator)

    def stds(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """σ = √(T / N(h + δ)) of each parameter."""
        scale = math.sqrt(group["temperature"] / group["n_data"])
        offsets, decay = self._buffers(params, "curvature_offset"), _each(self._decay(group, params), len(params))
        pairs = zip(offsets, decay, strict=True)
        return [scale * (group["init_curvature"] + offset + delta).rsqrt() for offset, delta in pairs]

    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        noises, stds = self._drawn_noise(params), self.stds(group, params)
        averages, offsets = self._buffers(params, "momentum_buffer"), self._buffers(params, "curvature_offset")
        decay, start = _each(self._decay(group, params), len(params)), group["init_curvature"]
        beta = group["momentum"]
        for m, g, grad, offset, delta, noise, std in zip(
            params, averages, grads, offsets, decay, noises, stds, strict=True
        ):
            g.lerp_(grad, 1 - beta)
            change = curvature_step(start + offset, grad * noise / std, delta, 1 - group["curvature_momentum"])
            offset.add_(change * (noise != 0))  # a weight that a subspace has activated since was not drawn
            step = (g / (1 - beta ** (group["step"] + 1)) + delta * m) / (start + offset + delta)
            m.sub_(group["lr"] * (start + delta) * step)
        self._forget_draw(params)


def curvature_step(h: Tensor, estimate: Tensor, damping: float | Tensor, rate: float) -> Tensor:
    """What is added to h: r (ĥ - h) + ½ r² (h - ĥ)²/(h + δ), after which h + δ > 0 whatever ĥ is.

    Example:
        >>> h = torch.tensor(1.0)
        >>> [round(float(h + curvature_step(h, torch.tensor(e), 0.1, 0.1)), 3) for e in (1.0, 3.0, -1000.0)]
        [1.0, 1.218, 4455.45]
    """
    step = rate * (estimate - h)
    return step * (1 + step / (2 * (h + damping)))  # at low temperatures the square alone would overflow


def _each(values: Each, n: int) -> list[float] | list[Tensor]:
    return values if isinstance(values, list) else [values] * n
