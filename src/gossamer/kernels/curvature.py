"""σ from the curvature of the loss, and the running means of its estimates: one number for each active entry.

On a CPU one native pass computes what takes torch a dozen. The equations are in :mod:`gossamer.layers.curvature`.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import library

MOST = 1e30  # of an estimate: a mean of larger ones could not be told from infinity


def std_of_means(
    curvature: Tensor, square: Tensor, shrinkage: Tensor, variance: float | Tensor, damping: float | Tensor
) -> Tensor:
    """σ = √(variance / (h + δ)), with h from the running means."""
    means = curvature, square, shrinkage
    if isinstance(variance, Tensor) or not _may_read(*means):
        return (variance / (shrunk_curvature(*means) + damping)).sqrt_()
    return _filled("std_of_curvature", means, variance, damping)


def shrunk_curvature(curvature: Tensor, square: Tensor, shrinkage: Tensor) -> Tensor:
    """H = cv + w (h̄ - cv), but not below a tenth of cv: ``(n,), (n,), (4,) or (4, n) -> (n,)``.

    Example:
        >>> square = torch.tensor([1.0, 2.0, 1.0])
        >>> shrunk_curvature(torch.tensor([-3.0, 1.0, 3.0]), square, torch.tensor([1.0, 0.5, 0.1, 0.0]))
        tensor([0.1000, 1.5000, 2.0000])
    """
    if _may_read(curvature, square, shrinkage):
        return _filled("shrunk_curvature", (curvature, square, shrinkage))
    factor, share, least, _ = shrinkage.unbind()
    return torch.maximum(torch.lerp(factor * square, curvature, share), least * square)


def _may_read(curvature: Tensor, square: Tensor, shrinkage: Tensor) -> bool:
    fit = curvature.shape == square.shape and shrinkage.shape == (4,)
    return fit and library.may_read(curvature, square, shrinkage)


def _filled(name: str, means: tuple[Tensor, ...], *numbers: Any) -> Tensor:
    found = torch.empty_like(means[0])
    library.LIBRARY[name](found.numel(), *(one.data_ptr() for one in means), *numbers, found.data_ptr())
    return found


def move_means(curvature: Tensor, square: Tensor, estimate: Tensor, grad: Tensor, rate: float | Tensor) -> None:
    """Move the running means, in place: h̄ to h̄ + ``rate`` · (ĥ - h̄), and v to v + ``rate`` · (g² - v).

    h̄ is unbiased, and may be negative for a time. What is not finite, or next to it, does not count.

    Example:
        >>> h, v = torch.tensor([1.0, 1.0]), torch.tensor([4.0, 4.0])
        >>> move_means(h, v, torch.tensor([3.0, torch.nan]), torch.tensor([1.0, torch.nan]), 0.25)
        >>> h, v
        (tensor([1.5000, 1.0000]), tensor([3.2500, 4.0000]))
    """
    vectors = curvature, square, estimate, grad
    if isinstance(rate, float) and len({one.shape for one in vectors}) == 1 and library.may_read(*vectors):
        library.LIBRARY["move_means"](curvature.numel(), *(one.data_ptr() for one in vectors), rate, MOST)
        return
    new = grad.to(square).square()
    counts = estimate.abs() + new < MOST  # false for NaN, too
    curvature.lerp_(torch.where(counts, estimate, curvature), rate)
    square.lerp_(torch.where(counts, new, square), rate)
