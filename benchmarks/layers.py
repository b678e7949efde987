"""Single layers: a sparse layer with its noise against the ways that form a dense weight.

Dense LRT is two dense products (images in the faster of two memory formats), a square root and noise that is drawn
beforehand; masked is the same with means and variances multiplied by a mask; deterministic is one dense product. The
sparse layer draws its own noise. Softplus, KL and optimizer are not part of a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measurements import DENSE, MASKED, PLAIN, Effort, Timing, sparse
from benchmarks.rivals import rivals
from benchmarks.timing import Work, alternate
from gossamer import kernels
from gossamer.sparsity.convert import bayesianize

__all__ = ["FORWARD", "LAYERS", "RESIDUAL", "TRAINING", "LayerCase", "measure_layer"]

FORWARD, TRAINING = "forward", "forward+backward"
MASK_DENSITY = 0.05  # a mask takes the same time at any density


class LayerCase(NamedTuple):
    """A layer, the family in which a plot shows it, and the shape of one input."""

    name: str
    family: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _linear(n_in: int, n_out: int) -> LayerCase:
    family = "linear" if n_in * n_out > 100_000 else "linear, small"
    return LayerCase(f"linear {n_in}x{n_out}", family, lambda: nn.Linear(n_in, n_out), (n_in,))


def _conv(channels: int, size: int) -> LayerCase:
    def build() -> nn.Module:
        return nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    return LayerCase(f"conv {channels}@{size}x{size}", "conv 3x3", build, (channels, size, size))


RESIDUAL = tuple(_conv(channels, size) for channels, size in ((64, 32), (128, 16), (256, 8), (512, 4)))
"""The four kinds of 3x3 convolution with stride 1 of a ResNet-18 on 32x32 images."""

LAYERS = (
    *(_linear(n_in, n_out) for n_in, n_out in ((784, 1024), (1024, 1024), (4096, 4096), (2000, 6))),
    *RESIDUAL,
    LayerCase(
        "conv 128@16x16 to 256, stride 2",
        "conv 3x3, stride 2",
        lambda: nn.Conv2d(128, 256, 3, 2, 1, bias=False),
        (128, 16, 16),
    ),
    LayerCase("conv 256@8x8, 1x1", "conv 1x1", lambda: nn.Conv2d(256, 256, 1, bias=False), (256, 8, 8)),
)


def measure_layer(case: LayerCase, batch: int, work: str, effort: Effort) -> Timing:
    """Milliseconds of a forward pass, or of one with its backward pass, in every way.

    Example:
        >>> case = LayerCase("tiny", "linear", lambda: nn.Linear(32, 16), (32,))
        >>> row = measure_layer(case, 8, FORWARD, Effort(densities=(0.1,), rival_densities=(), rounds=1))
        >>> list(row.ms)
        ['dense LRT', 'masked', 'deterministic', 'sparse 0.1']
    """
    torch.manual_seed(0)
    x, learns = torch.randn(batch, *case.shape), work == TRAINING
    works: dict[str, list[Work]] = {DENSE: dense_works(case.build(), x, learns, draws=True)}
    if effort.with_masked:
        works[MASKED] = dense_works(case.build(), x, learns, draws=True, density=MASK_DENSITY)
    works[PLAIN] = dense_works(case.build(), x, learns, draws=False)
    for density in effort.densities:
        works[sparse(density)] = [sparse_work(case.build(), density, x, learns)]
    for density in effort.rival_densities:
        works |= rivals(case.build(), density, x, learns)
    with torch.set_grad_enabled(learns), kernels.use("sparse"):
        times = alternate(works, effort.rounds, effort.clock)
    return Timing(case.name, case.family, work, batch, times)


def dense_works(layer: Any, x: Tensor, learns: bool, *, draws: bool, density: float | None = None) -> list[Work]:
    """One dense product, or two and noise, in each memory format; with a density the weights are masked."""
    formats = [torch.contiguous_format] if x.dim() == 2 else [torch.contiguous_format, torch.channels_last]
    return [_dense_work(layer, x.to(memory_format=memory), learns, draws, density, memory) for memory in formats]


def sparse_work(plain: nn.Module, density: float, x: Tensor, learns: bool) -> Work:
    """The native kernel with its own noise; gradients of input, means and stds."""
    layer: Any = bayesianize(plain, density=density, keep_dense=())
    own, mean = x.clone().requires_grad_(learns), layer.weight.mean.detach().requires_grad_(learns)
    std = layer.weight.std.detach().requires_grad_(learns)
    weight_map = getattr(layer, "map", None) or kernels.LinearMap()
    where = (layer.support.position, layer.support.shape, weight_map)
    grad = torch.randn_like(layer(own)).detach()

    def work() -> None:
        y = kernels.noisy_product(own, mean, std, None, *where)
        if learns:
            torch.autograd.grad(y, [own, mean, std], grad)

    return work


def _dense_work(
    layer: Any, x: Tensor, learns: bool, draws: bool, density: float | None, memory: torch.memory_format
) -> Work:
    own = x.detach().requires_grad_(learns)
    weight = layer.weight.detach().to(memory_format=memory).requires_grad_(learns)
    variance = torch.rand_like(weight).mul_(1e-3).detach().requires_grad_(learns)
    mask = None if density is None else (torch.rand_like(weight) < density).to(weight)
    leaves = [own, weight, variance] if draws else [own, weight]
    noise = torch.randn_like(_product(layer, own, weight)).detach()

    def work() -> None:
        w, v = (weight, variance) if mask is None else (weight * mask, variance * mask)
        y = _product(layer, own, w)
        if draws:
            y = y + _product(layer, own * own, v).sqrt() * noise
        if learns:
            torch.autograd.grad(y, leaves, noise)

    return work


def _product(layer: Any, x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight) if x.dim() == 2 else F.conv2d(x, weight, None, layer.stride, layer.padding)
