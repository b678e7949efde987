"""The quantities that SSVI ranks weights by, for θ ~ N(μ, σ²), accurate over the whole range of floats.

Notation: a = |μ|/σ, t = λσ, φ and Q are the density and the upper tail of N(0, 1), and δ(a) = 2(φ(a) - a Q(a)), so that
E|θ| = |μ| + σδ. Everything is computed in float64 and returned in the dtype of ``mean``.
"""

import math

import torch
from torch import Tensor


def expected_abs_value(mean: Tensor, std: Tensor) -> Tensor:
    """E|θ| = |μ| + σδ(a) (SSVI, eq. 6); both terms are positive.

    >>> expected_abs_value(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([0.7979])
    """
    size, spread, a = _terms(mean, std)
    return (size + spread * _excess(a)).to(mean)


def log_expected_exp_value(mean: Tensor, std: Tensor, rate: float = 1.0) -> Tensor:
    """The log of E e^{λ|θ|}: λ|μ| + t²/2 + log(1 + g), g = e^{-2λ|μ|} Q(a - t) - Q(a + t) in [0, 1).

    All terms are positive, so nothing cancels, and no exponential overflows.

    >>> log_expected_exp_value(torch.tensor([1e4]), torch.tensor([1e-3]))
    tensor([10000.])
    """
    size, spread, a = _terms(mean, std)
    t = _check_rate(rate) * spread
    return (rate * size + t**2 / 2 + _reflection(a, t).log1p()).to(mean)


def log_snr_exp_value(mean: Tensor, std: Tensor, rate: float = 1.0) -> Tensor:
    """The log of SNR(e^{λ|θ|}): -log(e^D - 1)/2, D = log E e^{2λ|θ|} - 2 log E e^{λ|θ|}.

    >>> log_snr_exp_value(torch.tensor([5.0]), torch.tensor([100.0]))
    tensor([-5000.])
    """
    _, spread, a = _terms(mean, std)
    gap = _log_moment_gap(a, _check_rate(rate) * spread)
    return (-(gap + (-torch.expm1(-gap)).log()) / 2).to(mean)


def _check_rate(rate: float) -> float:
    if not rate > 0:
        raise ValueError(f"rate is the λ of e^(λ|θ|), a number > 0, got {rate}")
    return rate


def in_float64(x: Tensor) -> Tensor:
    """``x`` in float64; on the CPU if its device has no float64."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)


def _terms(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|μ|, σ and a = |μ|/σ, which is 0 where both are 0."""
    size, spread = in_float64(mean).abs(), in_float64(std)
    return size, spread, torch.where(size == 0, 0.0, size / spread)


_SURE = 40.0  # Q(40) is 0 in float64, so a larger a changes nothing, and an infinite one would give inf · 0


def _tail(z: Tensor) -> Tensor:
    """Q(z); ``torch.special.ndtr(-z)`` is exact only to 1e-16 of 1, and 0 from z = 9 on."""
    return torch.erfc(z / math.sqrt(2)) / 2


def _excess(a: Tensor) -> Tensor:
    """δ(a) = 2(φ(a) - a Q(a))."""
    a = a.clamp(max=_SURE)
    return 2 * (torch.exp(-(a**2) / 2) / math.sqrt(2 * math.pi) - a * _tail(a))


def _abs_cumulants(a: Tensor) -> tuple[Tensor, Tensor]:
    """κ₂ = 1 - 2aδ - δ² and κ₃ = (4a² - 1)δ + 6aδ² + 2δ³ - 2aQ(a) of |θ|/σ."""
    a = a.clamp(max=_SURE)
    excess = _excess(a)
    variance = 1 - 2 * a * excess - excess**2
    return variance, (4 * a**2 - 1) * excess + 6 * a * excess**2 + 2 * excess**3 - 2 * a * _tail(a)


def _reflection(a: Tensor, t: Tensor) -> Tensor:
    """g(a, t) = e^{-2at} Q(a - t) - Q(a + t); for small t, where that cancels, tδe^{-at}(1 + O(t²))."""
    a = a.clamp(max=_SURE)
    exact = torch.exp(-2 * a * t) * _tail(a - t) - _tail(a + t)
    return torch.where(t < 1e-5, t * _excess(a) * torch.exp(-a * t), exact)


def _log_moment_gap(a: Tensor, t: Tensor) -> Tensor:
    """D = t² + log(1 + g(a, 2t)) - 2 log(1 + g(a, t)); the terms in λ|μ| cancel exactly.

    For small t these terms cancel too: there D = t² κ₂ + t³ κ₃ + O(t⁴), with the cumulants of |θ|/σ. Where the two
    forms meet, both are accurate to 1e-8.
    """
    exact = t**2 + _reflection(a, 2 * t).log1p() - 2 * _reflection(a, t).log1p()
    variance, third = _abs_cumulants(a)
    return torch.where(t < 3e-4, t**2 * (variance + t * third), exact)
