"""The native kernel where it differs from the others: its own noise, threads, torch.func, and what it never forms."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gossamer
from gossamer.kernels import ConvMap, LinearMap, library, native, reference, use

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")


def inputs(shape, x_shape, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape)
    position = torch.randperm(size, generator=generator)[: round(density * size)].sort().values.int()
    mean = torch.randn(len(position), generator=generator)
    std = torch.rand(len(position), generator=generator) + 0.1
    return torch.randn(x_shape, generator=generator), mean, std, torch.randn(shape[0], generator=generator), position


@pytest.mark.parametrize(
    ("shape", "x_shape", "weight_map"),
    [
        ((60, 70), (130, 70), LinearMap()),
        ((60, 70), (3, 70), LinearMap()),
        ((60, 70), (300, 70), LinearMap((20, 45))),
        ((12, 10, 3, 3), (5, 10, 16, 16), ConvMap((1, 1), (1, 1), (1, 1))),
        ((12, 10, 3, 3), (33, 10, 4, 4), ConvMap((2, 2), (1, 1), (1, 1))),
        ((12, 10, 3, 3), (1, 10, 8, 8), ConvMap((1, 1), (1, 1), (1, 1))),
        ((2, 2, 3, 3), (1, 2, 70, 70), ConvMap((1, 1), (1, 1), (1, 1))),  # more tiles than are summed in one step
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bits_for_any_number_of_threads(shape, x_shape, weight_map, dtype):
    arguments = inputs(shape, x_shape, 0.2)
    arguments = (arguments[0].to(dtype), *arguments[1:])
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            leaves = [t.clone().requires_grad_() for t in arguments[:4]]
            y = native.noisy_product(*leaves, arguments[4], shape, weight_map)
            results.append([y.detach(), *torch.autograd.grad(y.square().sum(), leaves)])
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(got, want) for got, want in zip(result, results[0], strict=True))


# ---------------------------------------------------------------------- noise


def test_the_noise_is_standard_normal():
    n = 1 << 20
    for seed in (0, 1, 2**61 + 12345):
        z = library.normals(torch.tensor([seed]), (n,)).double()
        for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
            assert abs(z.pow(power).mean() - moment) < 4.5 * (spread / n) ** 0.5
        ordered = z.sort().values
        cdf = torch.special.ndtr(ordered)
        gap = (cdf - torch.arange(1, n + 1) / n).abs().max()
        assert gap < 2.0 / n**0.5  # Kolmogorov: exceeded once in 1500 seeds
        for lag in (1, 2, 3, 4, 8, 16, 24, 32, 64, 1024):
            assert abs((z[lag:] * z[:-lag]).mean()) < 4.5 / n**0.5
            assert abs((z[lag:].square() * z[:-lag].square()).mean() - 1) < 4.5 * 8**0.5 / n**0.5
    a, b = (library.normals(torch.tensor([seed]), (n,)).double() for seed in (5, 6))
    assert abs((a * b).mean()) < 4.5 / n**0.5


def test_the_noise_of_an_element_does_not_depend_on_the_others():
    arguments = inputs((45, 30), (100, 30), 0.3)
    x, mean, std, bias, position = arguments

    def noisy(rows):
        torch.manual_seed(7)
        return native.noisy_product(x[:rows], mean, std, bias, position, (45, 30), LinearMap())

    assert torch.equal(noisy(100)[:1], noisy(1)[:1])
    torch.testing.assert_close(noisy(100)[:33], noisy(33))


@pytest.mark.parametrize("floor", [None, 1e-8])
def test_a_noisy_product_is_the_moments_perturbed(floor):
    shape, weight_map = (12, 10, 3, 3), ConvMap((1, 1), (1, 1), (1, 1))
    x, mean, std, bias, position = inputs(shape, (9, 10, 5, 5), 0.1)
    x[:, :, :2] = 0  # some outputs have no variance
    leaves = [t.requires_grad_() for t in (x, mean, std, bias)]
    torch.manual_seed(11)
    y = native.noisy_product(*leaves, position, shape, weight_map, floor=floor)
    torch.manual_seed(11)
    noise = library.normals(torch.randint(0, 2**62, (1,), dtype=torch.int64), tuple(y.shape))
    m, v = reference.moments(*leaves, position, shape, weight_map)
    expected = reference.perturb(m, v, noise, floor)
    torch.testing.assert_close(y, expected)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    for got, want in zip(torch.autograd.grad(y, leaves, g), torch.autograd.grad(expected, leaves, g), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.manual_seed(11)
        assert torch.equal(native.noisy_product(x, mean, std, bias, position, shape, weight_map, floor=floor), y)


def test_a_second_derivative_is_an_error_that_names_the_way():
    layer = gossamer.bayesianize(nn.Linear(6, 5), density=0.2, std="gradient")
    x = torch.randn(3, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives .*gossamer.kernels.use\('dense'\)"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with use("dense"):
        (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert layer.weight.raw_std.grad.any()


def test_under_torch_func_the_reference_serves():
    """Per-example gradients, and a map over several draws of a weight, of a float32 layer that is otherwise native."""
    x, mean, std, bias, position = inputs((5, 6), (3, 6), 0.5)
    where = (position, (5, 6), LinearMap())

    def loss(mean, x):
        m, v = native.moments(x, mean, std, bias, *where)
        return (m.square() + v).sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(mean, x.unsqueeze(1))
    leaf = mean.clone().requires_grad_()
    for got, example in zip(each, x, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(loss(leaf, example[None]), leaf)[0], rtol=1e-5, atol=1e-5)
    several = torch.stack([mean, 2 * mean])
    mapped = torch.func.vmap(lambda mean: native.product(x, mean, bias, *where))(several)
    torch.testing.assert_close(mapped, torch.stack([native.product(x, m, bias, *where) for m in several]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", [None, torch.tensor([5])], ids=["moments", "noisy"])
def test_the_operators_are_what_torch_asks_of_operators(dtype, seed):
    _, mean, std, bias, position = inputs((5, 6), (3, 6), 0.5)
    x = torch.randn(3, 6, 1, 1, 1).to(dtype).requires_grad_()
    numbers = list(native.geometry(torch.zeros(3, 6), (5, 6), LinearMap((1, 4))))
    leaves = (x, mean.requires_grad_(), std.requires_grad_(), bias[1:4].requires_grad_())
    torch.library.opcheck(torch.ops.gossamer.forward, (*leaves, position, seed, numbers, 0.0, True))


# ---------------------------------------------------------------------- dispatch


class Largest(TorchDispatchMode):
    """The most elements that any operator returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.most = max(self.most, *sizes, 0)
        return result


def test_nothing_of_the_dense_size_is_formed():
    layer = gossamer.bayesianize(nn.Linear(400, 300), density=0.05)
    with Largest() as largest:
        layer(torch.randn(8, 400)).square().sum().backward()
    assert largest.most < 400 * 300 / 10
    with use("dense"), Largest() as largest:
        layer(torch.randn(8, 400)).square().sum().backward()
    assert largest.most == 400 * 300


def test_the_setting_decides(monkeypatch):
    layer = gossamer.bayesianize(nn.Linear(64, 64), density=0.6)
    called = []
    monkeypatch.setattr(native, "forward", lambda *args, run=native.forward: called.append(1) or run(*args))
    x = torch.randn(16, 64)
    for kernel, n_calls in (("auto", 0), ("sparse", 1), ("dense", 0)):
        called.clear()
        with use(kernel):
            layer(x)
        assert len(called) == n_calls
    with pytest.raises(ValueError, match="kernel must be one of"):
        use("fast")
