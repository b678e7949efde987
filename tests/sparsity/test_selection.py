"""Top-k masks against a sort; vectors end to end: every segment is treated as if it were alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.kernels.ordered import top_mask
from gossamer.sparsity import selection
from gossamer.sparsity.selection import Segments

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


LENGTHS = [5, 1, 40, 300, 7]


def segments() -> Segments:
    return Segments(LENGTHS, torch.device("cpu"))


@pytest.mark.parametrize("devices", [set(), {"cpu"}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_the_best_of_each_are_those_of_top_mask(dtype, levels, devices, monkeypatch):
    monkeypatch.setattr(selection, "DEVICES", devices)
    torch.manual_seed(0)
    score = (torch.randn(sum(LENGTHS)) * levels).round().to(dtype)
    score[::7] = torch.inf
    score[3::11] = -torch.inf
    for counts in ([2, 0, 13, 299, 7], [0] * 5, LENGTHS, [1] * 5):
        expected = [top_mask(part, count) for part, count in zip(score.split(LENGTHS), counts, strict=True)]
        assert torch.equal(segments().top_mask(score, counts), torch.cat(expected))
        assert torch.equal(segments().top(score, counts), torch.cat(expected).nonzero().flatten())


def test_the_best_come_segment_by_segment_the_best_first():
    score = torch.tensor([1.0, 2.0, 2.0, 9.0, 8.0])
    assert Segments([3, 2], torch.device("cpu")).best(score, [3, 2]).tolist() == [1, 2, 0, 3, 4]


def test_sums_counts_and_spread():
    torch.manual_seed(0)
    values = torch.randn(sum(LENGTHS))
    mask = values > 0
    assert segments().sums(values).tolist() == [float(part.sum()) for part in values.split(LENGTHS)]
    assert segments().counts(mask).tolist() == [int(part.sum()) for part in mask.split(LENGTHS)]
    assert segments().spread(torch.arange(5)).bincount().tolist() == LENGTHS
    assert segments().starts == [0, 5, 6, 46, 346]


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_empty_segments_are_refused(lengths):
    with pytest.raises(ValueError, match="none of them empty"):
        Segments(lengths, torch.device("cpu"))
