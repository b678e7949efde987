"""Linear layers without native kernels: torch's sparse matrices serve, and say so once."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gossamer
from gossamer.kernels import LinearMap, autotune, csr, dispatch, library, reference, use


@pytest.fixture
def no_binary(monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", {})
    monkeypatch.setattr(dispatch, "_warned", False)


@pytest.fixture
def patterns(monkeypatch):
    """A list that grows whenever torch's sparse matrices are used in a forward pass."""
    used = []
    monkeypatch.setattr(csr, "_pattern", lambda *where, run=csr._pattern: used.append(where) or run(*where))
    return used


def test_one_line_and_the_same_numbers(no_binary, caplog):
    layer = gossamer.bayesianize(nn.Linear(256, 256), density=0.1)
    layer.weight.noisy = False
    x = torch.randn(16, 256, requires_grad=True)
    with use("dense"):
        expected = layer(x)
        grads = torch.autograd.grad(expected.square().sum(), [x, layer.weight.mean])
    assert not caplog.records
    for _ in range(2):
        y = layer(x)
        torch.testing.assert_close(y, expected)
        for got, want in zip(torch.autograd.grad(y.square().sum(), [x, layer.weight.mean]), grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    assert len(caplog.records) == 1
    assert "native kernels are not built" in caplog.text
    assert "setup.py build_ext" in caplog.text


@pytest.mark.parametrize(
    ("density", "size", "kernel", "by_csr"),
    [
        (0.1, 256, "auto", 1),
        (0.3, 256, "auto", 0),  # too dense to gain
        (0.1, 64, "auto", 0),  # too small
        (0.3, 64, "sparse", 1),
        (0.1, 256, "dense", 0),
    ],
)
def test_the_crossover(no_binary, patterns, density, size, kernel, by_csr):
    layer = gossamer.bayesianize(nn.Linear(size, size), density=density)
    with use(kernel):
        layer(torch.randn(16, size))
    assert len(patterns) == by_csr


def test_autotune_times_it(no_binary, monkeypatch):
    monkeypatch.setattr(autotune, "_measured", {})
    layer = gossamer.bayesianize(nn.Linear(256, 256), density=0.02)
    with use("autotune"):
        for _ in range(2):
            layer(torch.randn(16, 256))
    assert len(autotune._measured) == 1


def test_convolutions_keep_the_reference(no_binary, patterns):
    layer = gossamer.bayesianize(nn.Conv2d(64, 64, 3), density=0.05, keep_dense=())
    layer(torch.randn(2, 64, 5, 5))
    assert not patterns


def test_a_torch_without_sparse_products_is_served_by_the_reference(no_binary, patterns, monkeypatch):
    def absent(*_, **__):
        raise RuntimeError("Calling sampled_addmm on a sparse CPU tensor requires compiling PyTorch with MKL")

    layer = gossamer.bayesianize(nn.Linear(256, 256), density=0.1)
    monkeypatch.setattr(torch.sparse, "sampled_addmm", absent)
    csr._has_sparse_products.cache_clear()
    try:
        layer(torch.randn(16, 256))
    finally:
        csr._has_sparse_products.cache_clear()
    assert not patterns


class Largest(TorchDispatchMode):
    """The most elements that any operator returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        dense = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.layout == torch.strided]
        self.most = max(self.most, *(t.numel() for t in dense), 0)
        return result


@pytest.mark.parametrize("rows", [None, (100, 200)])
def test_nothing_of_the_dense_size_is_formed(rows):
    position = torch.randperm(400 * 300)[:6000].sort().values.int()
    mean, std = (torch.rand(6000, requires_grad=True) for _ in range(2))
    with Largest() as largest:
        m, v = csr.moments(torch.randn(8, 400), mean, std, None, position, (300, 400), LinearMap(rows))
        (m.sum() + v.sum()).backward()
    assert largest.most <= 6000


def test_patterns_follow_their_positions_and_go_with_them():
    position = torch.randperm(1200)[:120].sort().values.int()
    x, mean = torch.randn(5, 40), torch.randn(120)
    before = len(csr._patterns)
    for _ in range(3):
        where = (position, (30, 40), LinearMap())
        torch.testing.assert_close(csr.product(x, mean, None, *where), reference.product(x, mean, None, *where))
        position.copy_(torch.randperm(1200)[:120].sort().values)
    assert len(csr._patterns) == before + 1
    del position, where
    assert len(csr._patterns) == before
