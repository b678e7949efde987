"""Products of several drawn weights at once, against dense ones in float64."""

import math

import pytest
import torch
from torch import Tensor

from gossamer import kernels
from gossamer.kernels import ConvMap, EmbeddingMap, LinearMap, WeightMap, dispatch, library, native, products, reference

needs_native = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], WeightMap]] = {
    "linear": ((7,), (12, 7), LinearMap()),
    "sequence": ((3, 7), (12, 7), LinearMap()),
    "rows": ((7,), (12, 7), LinearMap((4, 9))),
    "1d": ((6, 11), (8, 3, 3), ConvMap((2,), (2,), (1,), 2)),
    "2d, wide": ((4, 6, 16), (8, 4, 3, 3), ConvMap((1, 1), (1, 1), (1, 1))),
    "2d, narrow": ((4, 4, 4), (8, 4, 3, 3), ConvMap((1, 1), (1, 1), (1, 1))),
    "2d, stride": ((4, 5, 7), (8, 2, 3, 2), ConvMap((2, 1), (1, 0), (1, 2), 2)),
    "one pixel": ((4, 1, 1), (8, 4, 3, 3), ConvMap((1, 1), (1, 1), (1, 1))),
    "3d": ((2, 3, 4, 5), (4, 2, 2, 2, 2), ConvMap((1, 2, 1), (1, 0, 1), (1, 1, 1))),
    "transposed": ((4, 3, 3), (4, 5, 2, 2), ConvMap((2, 2), (0, 0), (1, 1), transposed=True)),
}


def expected(x: Tensor, values: Tensor, bias: Tensor | None, where: kernels.Placement, shared: bool) -> Tensor:
    position, shape, weight_map = where
    dense = [kernels.scatter(row.double(), position, shape) for row in values]
    inputs = [x.double()] * len(values) if shared else x.double()
    return torch.stack([weight_map(own, one, bias) for own, one in zip(inputs, dense, strict=True)])


@pytest.mark.parametrize("density", [0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_the_dense_weights(name: str, density: float):
    torch.manual_seed(0)
    extent, shape, weight_map = CASES[name]
    size = torch.Size(shape).numel()
    position = None if density == 1 else torch.randperm(size)[: round(density * size)].sort().values.int()
    outputs = shape[1] if name == "transposed" else shape[0]
    where = (position, shape, weight_map)
    for draws, batch, shared, with_bias in [
        (1, 1, True, True), (3, 1, False, True), (20, 1, True, False), (20, 2, False, True), (9, 5, False, True),
        (20, 8, True, True), (5, 33, False, False),
    ]:  # fmt: skip
        x = torch.randn(*(() if shared else (draws,)), batch, *extent)
        values = torch.randn(draws, size if position is None else len(position))
        bias = torch.randn(outputs) if with_bias else None
        y = products(x, values, bias, *where, shared=shared)
        wanted = expected(x, values, None if bias is None else bias.double(), where, shared)
        torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_and_bfloat16_change_rounding_only(threads: int):
    torch.manual_seed(0)
    extent, shape, weight_map = CASES["2d, narrow"]
    position = torch.randperm(288)[:40].sort().values
    where = (position, shape, weight_map)
    values, before = torch.randn(20, 40), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for batch in (1, 3, 17):
            x = torch.randn(20, batch, *extent)
            wanted = expected(x, values, None, where, False)
            torch.testing.assert_close(products(x, values, None, *where).double(), wanted, rtol=1e-4, atol=1e-4)
            low = products(x.bfloat16(), values, None, *where)
            assert low.dtype == torch.bfloat16
            wanted = expected(x.bfloat16(), values, None, where, False)
            torch.testing.assert_close(low.double(), wanted, rtol=0.02, atol=0.05)
    finally:
        torch.set_num_threads(before)


def test_embeddings_and_empty_batches():
    position = torch.tensor([1, 6, 11])
    where = (position, (4, 3), EmbeddingMap(4))
    values, words = torch.randn(5, 3), torch.tensor([[0, 3], [2, 2]])
    y = products(words, values, None, *where, shared=True)
    assert torch.equal(y, torch.stack([kernels.scatter(row, position, (4, 3))[words] for row in values]))
    y = products(torch.zeros(0, 7), torch.randn(5, 2), None, position[:2], (3, 7), LinearMap(), shared=True)
    assert y.shape == (5, 0, 3)


@pytest.mark.parametrize("name", CASES)
def test_mapped_products_inside_vmap(name: str):
    torch.manual_seed(0)
    extent, shape, weight_map = CASES[name]
    size = torch.Size(shape).numel()
    where = (torch.randperm(size)[: size // 10].sort().values, shape, weight_map)
    x, values = torch.randn(2, *extent), torch.randn(6, size // 10)

    def twice(row: Tensor) -> Tensor:
        y = kernels.mapped(x, row, None, *where)
        own = y.flatten(1).sum(1).view(-1, *[1] * len(extent)) * x  # now mapped itself
        return kernels.mapped(own, row, None, *where)

    first = expected(x, values, None, where, True)
    inputs = first.flatten(2).sum(2).view(6, 2, *[1] * len(extent)) * x
    torch.testing.assert_close(
        torch.vmap(twice)(values).double(), expected(inputs, values, None, where, False), rtol=1e-3, atol=1e-3
    )


@needs_native
def test_draws_are_functions_of_their_seeds():
    """The moments of n draws have errors of 1/√n and √(2/n) standard deviations; these are within five."""
    mean, std, n = torch.linspace(-2, 2, 77), torch.linspace(0.1, 3, 77), 4000
    seeds = kernels.seeds((n,), torch.Generator().manual_seed(0))
    values = kernels.sampled(mean, std, seeds)
    assert torch.equal(kernels.sampled(mean, std, seeds[5:9]), values[5:9])
    noise = ((values - mean) / std).double()
    assert noise.mean(0).abs().max() < 5 / math.sqrt(n)
    assert (noise.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / n)
    assert (noise.T @ noise / n).fill_diagonal_(0).abs().max() < 5 / math.sqrt(n)
    with pytest.raises(ValueError, match="table of shape"):
        kernels.sampled(mean, std, seeds[:2], torch.empty(3, 77))


@needs_native
@pytest.mark.parametrize("active", [None, 40])
def test_convolutions_of_few_channels_need_no_dense_weight(active: int | None):
    torch.manual_seed(0)
    shape, weight_map = (6, 2, 3, 3), ConvMap((2, 1), (1, 2), (1, 1))
    position = None if active is None else torch.randperm(108)[:active].sort().values.int()
    values, x = torch.randn(4, active or 108), torch.randn(9, 2, 7, 5)
    assert dispatch.kernel_of(x, position, shape, weight_map) is native
    assert dispatch.kernel_of(x[:1], position, shape, weight_map) is reference
    y = products(x, values, None, position, shape, weight_map, shared=True)
    dense = [kernels.scatter(row.double(), position, shape) for row in values]
    expected = torch.stack([torch.nn.functional.conv2d(x.double(), one, None, (2, 1), (1, 2)) for one in dense])
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    alone = kernels.product(x, values[1], None, position, shape, weight_map)
    torch.testing.assert_close(alone.double(), expected[1], rtol=1e-5, atol=1e-5)
