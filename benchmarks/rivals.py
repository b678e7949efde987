"""What else computes with sparse weights on a CPU: torch's own CSR matrices, and SparseProp where it is installed.

torch CSR does the same work as our layer, two products and noise, but knows linear layers only. SparseProp (Nikdan et
al., ICML 2023) has linear layers and convolutions without a distribution: what is timed of it is one product, half of
the arithmetic. A rival whose answer is not that of a dense product is not timed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.results import sparse
from benchmarks.timing import Work

__all__ = ["CSR", "SPARSEPROP", "CsrLayer", "rivals", "sparseprop_version"]

CSR, SPARSEPROP = "torch CSR", "SparseProp"


def rivals(layer: nn.Module, density: float, x: Tensor, learns: bool) -> dict[str, list[Work]]:
    """The rivals' works on a layer of random weights, by the names of their columns.

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
    library that built on them would; the gradients of the weights are taken at the active entries alone.

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


with warnings.catch_warnings():  # torch says once a process that its CSR matrices are in beta: here, and to nobody
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.eye(1).to_sparse_csr()


def _csr(starts: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.sparse_csr_tensor(starts, indices, values, shape, check_invariants=False)


def _compressed(sorted_or_not: Tensor, size: int) -> Tensor:
    """Where each row begins, with 32 bits, at which the products were measured to be faster than with 64."""
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
    """One for each of its two ways to vectorize a convolution, of those that give the right answer."""
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
