"""What the sparse layers are compared with, on a CPU.

torch CSR does the same work as our layer, two products and noise, but knows linear layers only. SparseProp (Nikdan et
al., ICML 2023) has linear layers and convolutions without a distribution: what is timed of it is one product, half of
the arithmetic. A rival whose answer is not that of a dense product is not timed. :func:`published` builds networks as
published implementations have them: dense, with masks where they are sparse, by plain autograd.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measurements import sparse
from benchmarks.timing import Work
from gossamer.kernels import WeightMap
from gossamer.layers import GaussianWeight, SparseModule
from gossamer.layers.weight import REFERENCE_FLOOR
from gossamer.priors import normal_kl
from gossamer.sparsity.convert import bayesianize

__all__ = ["CSR", "SPARSEPROP", "CsrLayer", "PublishedWeight", "published", "rivals", "sparseprop_version"]

CSR, SPARSEPROP = "torch CSR", "SparseProp"


def rivals(layer: nn.Module, density: float, x: Tensor, learns: bool) -> dict[str, list[Work]]:
    """The works of the rivals on a layer with random weights, by the names of their columns.

    Example:
        >>> list(rivals(nn.Linear(32, 16), 0.1, torch.randn(8, 32), learns=True))[0]
        'torch CSR 0.1'
    """
    weight: Any = layer.weight
    with torch.no_grad():
        weight.mul_(torch.rand_like(weight) < density)
    works = {sparse(density, SPARSEPROP): _sparseprop_works(layer, x, learns)}
    if isinstance(layer, nn.Linear):
        works = {sparse(density, CSR): [_csr_work(layer, x, learns)], **works}
    return {name: ways for name, ways in works.items() if ways}


def sparseprop_version() -> str | None:
    """Version of SparseProp, ``None`` where it is not installed or cannot be loaded."""
    try:
        importlib.import_module("sparseprop.modules")
        return importlib.metadata.version("sparseprop")
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return None


class CsrLayer:
    """Local reparameterization of a linear layer by torch's CSR products: mean, variance, noise; and its gradients.

    Both orders of the entries are kept, by rows for the products and by columns for the gradient of the input, as a
    library built on them would; the gradients of the weights are taken at the active entries alone.

    Example:
        >>> layer = CsrLayer(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        >>> layer.forward(torch.tensor([[1.0, 1.0]]), noise=torch.zeros(2, 1))[0]
        tensor([[2., 3.]])
    """

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        rows, columns = mean.nonzero(as_tuple=True)
        self.shape = tuple(mean.shape)
        self.mean, self.variance = mean[rows, columns], variance[rows, columns]
        self.by_column = columns.argsort(stable=True)
        self.order = _compressed(rows, mean.shape[0]), columns.int()
        self.other = _compressed(columns, mean.shape[1]), rows[self.by_column].int()

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Output ``(batch, out)`` and noise over twice the standard deviation ``(out, batch)``, for the backward."""
        xt = x.t()
        std = (self._matrix(self.variance) @ (xt * xt)).sqrt_()
        y = torch.addcmul(self._matrix(self.mean) @ xt, std, noise)
        return y.t().contiguous(), (0.5 * noise / std).nan_to_num_(0.0, 0.0, 0.0)

    def backward(self, x: Tensor, grad: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of input, means and variances."""
        dm = grad.t().contiguous()
        dv, squares = dm * factor, x * x
        dx = (self._transposed(self.mean) @ dm).t() + 2 * x * (self._transposed(self.variance) @ dv).t()
        pattern = self._matrix(self.mean)
        sampled = [torch.sparse.sampled_addmm(pattern, d, z, beta=0.0).values() for d, z in ((dm, x), (dv, squares))]
        return dx, sampled[0], sampled[1]

    def _matrix(self, values: Tensor) -> Tensor:
        return _csr(*self.order, values, self.shape)

    def _transposed(self, values: Tensor) -> Tensor:
        return _csr(*self.other, values[self.by_column], self.shape[::-1])


with warnings.catch_warnings():  # torch warns once per process that CSR is in beta: trigger it here, silently
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.eye(1).to_sparse_csr()


def _csr(starts: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_csr_tensor(starts, indices, values, shape, check_invariants=False)


def _compressed(sorted_or_not: Tensor, size: int) -> Tensor:
    """Starts of the rows, in 32 bits: the products were measured to be faster than with 64."""
    starts = torch.zeros(size + 1, dtype=torch.int32)
    starts[1:] = torch.bincount(sorted_or_not, minlength=size).cumsum(0)
    return starts


def _csr_work(layer: nn.Linear, x: Tensor, learns: bool) -> Work:
    weight = layer.weight.detach()
    own = CsrLayer(weight, torch.rand_like(weight) * 1e-3 * (weight != 0))
    noise, grad = torch.randn(len(weight), len(x)), torch.randn(len(x), len(weight))

    def work() -> None:
        _, factor = own.forward(x, noise)
        if learns:
            own.backward(x, grad, factor)

    return work


def _sparseprop_works(layer: nn.Module, x: Tensor, learns: bool) -> list[Work]:
    """One work for each of its two ways to vectorize a convolution that gives the right answer."""
    if sparseprop_version() is None:
        return []
    modules: Any = importlib.import_module("sparseprop.modules")
    if isinstance(layer, nn.Linear):
        found = [modules.SparseLinear.from_dense(layer)]
    else:
        found = [modules.SparseConv2d.from_dense(layer, vectorizing_over_on=over) for over in (False, True)]
    return [_module_work(module, x, learns) for module in found if _agrees(module, layer, x)]


def _module_work(module: Any, x: Tensor, learns: bool) -> Work:
    own = x.clone().requires_grad_(learns)
    grad = torch.randn_like(module(own)).contiguous()

    def work() -> None:
        y = module(own)
        if learns:
            torch.autograd.grad(y, [own, module.W_val], grad)

    return work


def _agrees(module: Any, layer: nn.Module, x: Tensor) -> bool:
    with torch.no_grad():
        expected = layer(x)
        return bool(torch.allclose(module(x), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())))


def published(build: Callable[[], nn.Module], density: float = 1.0) -> nn.Module:
    """A dense Bayesian network, all but a share ``density`` of whose weights are masked out.

    Example:
        >>> network = published(lambda: nn.Sequential(nn.Linear(20, 10)), density=0.1)
        >>> len(network[0].mean), int((network[0].dense_std() > 0).sum())
        (200, 20)
    """
    network, pattern = (bayesianize(build(), density=share, std="gradient") for share in (1.0, density))
    for layer, other in zip(network.modules(), pattern.modules(), strict=True):
        if isinstance(layer, SparseModule) and isinstance(other, SparseModule):
            for name, weight in layer.named_weights().items():
                assert isinstance(weight, GaussianWeight)
                position = other.named_weights()[name].support.position if density < 1 else None
                setattr(layer, name, PublishedWeight(weight, position))
    return network


class PublishedWeight(GaussianWeight):
    """A dense weight; with ``position``, only the entries there are let through."""

    mask: Tensor | None

    def __init__(self, dense: GaussianWeight, position: Tensor | None) -> None:
        mask = None
        if position is not None:
            mask = torch.zeros_like(dense.mean.detach())
            mask[position.long()] = 1
        mean = dense.mean.detach() * (1 if mask is None else mask)
        super().__init__(dense.support, mean, dense.std.detach(), dense.prior_std)
        self.register_buffer("mask", mask)

    @property
    def std(self) -> Tensor:
        """σ, zero where masked."""
        return super().std if self.mask is None else super().std * self.mask

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of the entries that are let through."""
        if self.mask is None:
            return super().kl()
        std = torch.lerp(self.mask.new_tensor(self.prior_std), super().std, self.mask)
        return normal_kl(self.mean * self.mask, std, self.prior_std)

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The map with fresh noise per output, as the formula reads."""
        shape, std = self.support.shape, self.std
        mean = self.mean if self.mask is None else self.mean * self.mask
        m = weight_map(x, mean.view(shape), bias)
        v = weight_map(x * x, (std * std).view(shape))
        return m + torch.sqrt(v + REFERENCE_FLOOR) * torch.randn_like(m)
