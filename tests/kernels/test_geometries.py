"""The native kernel on thousands of random layers, against torch's own functions in float64."""

import random

import pytest
import torch
from torch import nn

import gossamer
from gossamer.kernels import ConvMap, LinearMap, library, native, reference

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")


def random_layer(random):
    """A small layer and an input for it: ``(shape of x, shape of the weight, map)``."""
    batch = random.choice((1, 2, 3, 7, 8, 9, 16, 17, 33))
    if random.random() < 0.1:
        n_in, n_out = random.randint(1, 20), random.randint(1, 20)
        first = random.randint(0, n_out - 1)
        rows = random.choice((None, (first, random.randint(first + 1, n_out))))
        return (batch, n_in), (n_out, n_in), LinearMap(rows)
    dims = random.choice((1, 1, 2, 2, 2, 3))
    groups = random.choice((1, 1, 1, 2, 3))
    n_in, n_out = groups * random.randint(1, 3), groups * random.randint(1, 3)

    def each(values):
        return tuple(random.choice(values) for _ in range(dims))

    kernel, stride, dilation = each((1, 1, 2, 3, 5)), each((1, 1, 2, 3, 4)), each((1, 1, 2, 3))
    padding = each((0, 0, 1, 2, 3, 5))
    extent = each((1, 1, 2, 3, 4, 7, 9, 17) if dims < 3 else (1, 2, 3, 5))
    reach = zip(extent, padding, dilation, kernel, strict=True)
    extent = tuple(max(e, d * (k - 1) + 1 - 2 * p) for e, p, d, k in reach)
    return (batch, n_in, *extent), (n_out, n_in // groups, *kernel), ConvMap(stride, padding, dilation, groups)


@pytest.mark.parametrize("seed", range(5))
def test_random_layers_equal_torch(seed):
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    for _ in range(600):
        x_shape, shape, weight_map = random_layer(draw)
        size = torch.Size(shape).numel()
        n_active = max(1, round(draw.choice((0.1, 0.3, 1.0)) * size))
        position = torch.randperm(size, generator=generator)[:n_active].sort().values
        x = torch.randn(x_shape, generator=generator, requires_grad=True)
        mean = torch.randn(n_active, generator=generator, requires_grad=True)
        std = torch.rand(n_active, generator=generator, requires_grad=True)
        where = (position, shape, weight_map)
        assert native.takes(x, mean, *where)
        m, v = native.moments(x, mean, std, None, *where)
        wide = [t.detach().double().requires_grad_() for t in (x, mean, std)]
        exact = (
            weight_map(wide[0], reference.scatter(wide[1], position, shape)),
            weight_map(wide[0].square(), reference.scatter(wide[2].square(), position, shape)),
        )
        grads = [torch.randn(m.shape, generator=generator) for _ in range(2)]
        found = (m, v, *torch.autograd.grad((m, v), (x, mean, std), grads))
        expected = (*exact, *torch.autograd.grad(exact, wide, [grad.double() for grad in grads]))
        for got, want in zip(found, expected, strict=True):
            got, want = got.detach(), want.detach()
            scale = float(want.abs().max()) + 1
            assert float((got.double() - want).abs().max()) < 1e-4 * scale, (x_shape, shape, weight_map)


def test_one_pixel_that_the_stride_leaves_out():
    layer = gossamer.sparsify(nn.Conv1d(4, 8, 1, stride=3, padding=1, bias=False), density=0.3, keep_dense=())
    assert torch.equal(layer(torch.ones(1, 4, 1)), torch.zeros(1, 8, 1))


def test_the_numbers_that_native_code_reads():
    """Groups, inputs, outputs; input, output, kernel, stride, padding, dilation, three each; first row and all rows."""
    numbers = native.geometry(torch.zeros(2, 4, 9), (8, 2, 3), ConvMap((2,), (1,), (1,), groups=2))
    assert numbers == (2, 4, 8, 1, 1, 9, 1, 1, 5, 1, 1, 3, 1, 1, 2, 0, 0, 1, 1, 1, 1, 0, 8)
