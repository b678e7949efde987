"""Ranges of rows, by which a dense gradient is formed a part at a time."""

import pytest
import torch

from gossamer.kernels import ConvMap, EmbeddingMap, LinearMap


@pytest.mark.parametrize(
    ("weight_map", "shape", "most", "ranges"),
    [
        (LinearMap((2, 7)), (9, 3), 2, [(2, 4), (4, 6), (6, 7)]),
        (ConvMap((1,), (0,), (1,)), (6, 1, 1), 4, [(0, 4), (4, 6)]),
        (ConvMap((1,), (0,), (1,), groups=3), (6, 1, 1), 4, [(0, 6)]),
        (EmbeddingMap(5), (5, 2), 3, [(0, 3), (3, 5)]),
    ],
)
def test_row_ranges(weight_map, shape, most, ranges):
    assert weight_map.row_ranges(shape, most) == ranges


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_gradients_of_all_ranges_make_up_the_whole(transposed, groups):
    weight_map = ConvMap((2,), (1,), (1,), groups, transposed)
    shape = (6, 2, 3)
    x = torch.randn(3, 6 if transposed else 2 * groups, 7, dtype=torch.float64)
    grad = torch.randn_like(weight_map(x, torch.zeros(shape, dtype=torch.float64)))
    parts = [weight_map.weight_gradient(grad, x, shape, rows) for rows in weight_map.row_ranges(shape, 2)]
    torch.testing.assert_close(torch.cat(parts), weight_map.weight_gradient(grad, x, shape))
