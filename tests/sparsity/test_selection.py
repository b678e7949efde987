"""Top-k masks against a sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.sparsity.selection import top_mask

floats = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])  # the latter tie often


def by_sorting(scores: list[float], k: int) -> list[bool]:
    """The k first positions of a stable sort from the highest, NaN lowest."""
    order = sorted(range(len(scores)), key=lambda i: -(-math.inf if math.isnan(scores[i]) else scores[i]))
    chosen = set(order[:k])
    return [i in chosen for i in range(len(scores))]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data(), scores=st.lists(floats, max_size=30))
def test_top_mask_is_a_stable_sort(data: st.DataObject, scores: list[float]) -> None:
    k = data.draw(st.integers(0, len(scores)))
    mask = top_mask(torch.tensor(scores, dtype=torch.float32), k)
    assert mask.dtype == torch.bool
    assert mask.tolist() == by_sorting(scores, k)


@pytest.mark.parametrize("fill", [0.0, -math.inf, math.inf, math.nan])
@pytest.mark.parametrize("k", [0, 1, 4, 6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ties_go_to_the_first_positions(fill: float, k: int, dtype: torch.dtype) -> None:
    assert top_mask(torch.full((6,), fill, dtype=dtype), k).tolist() == [True] * k + [False] * (6 - k)


@pytest.mark.parametrize(("shape", "k"), [((3,), 4), ((3,), -1), ((2, 2), 1), ((), 0)])
def test_impossible_requests_are_refused(shape: tuple[int, ...], k: int) -> None:
    with pytest.raises(ValueError, match="0 <= k"):
        top_mask(torch.zeros(shape), k)


def test_no_value_leaves_the_device() -> None:
    """A tensor on the meta device has no values: any look at one is an error."""
    assert top_mask(torch.zeros(5, device="meta"), 3).shape == (5,)
