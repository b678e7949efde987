"""Vectors end to end: every stretch is treated as if it were alone."""

from __future__ import annotations

import pytest
import torch

from gossamer.sparsity.segments import Segments
from gossamer.sparsity.selection import top_mask

LENGTHS = [5, 1, 40, 300, 7]


def stretches() -> Segments:
    return Segments(LENGTHS, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [1, 3, 1000])
def test_the_best_of_each_are_those_of_top_mask(dtype, levels):
    torch.manual_seed(0)
    score = (torch.randn(sum(LENGTHS)) * levels).round().to(dtype)
    score[::7] = torch.inf
    score[3::11] = -torch.inf
    for counts in ([2, 0, 13, 299, 7], [0] * 5, LENGTHS, [1] * 5):
        mask = torch.zeros(len(score), dtype=torch.bool)
        mask[stretches().best(score, counts)] = True
        expected = [top_mask(part, count) for part, count in zip(score.split(LENGTHS), counts, strict=True)]
        assert torch.equal(mask, torch.cat(expected))


def test_the_best_come_stretch_by_stretch_the_best_first():
    score = torch.tensor([1.0, 2.0, 2.0, 9.0, 8.0])
    assert Segments([3, 2], torch.device("cpu")).best(score, [3, 2]).tolist() == [1, 2, 0, 3, 4]


def test_sums_counts_and_spread():
    torch.manual_seed(0)
    values = torch.randn(sum(LENGTHS))
    mask = values > 0
    assert stretches().sums(values).tolist() == [float(part.sum()) for part in values.split(LENGTHS)]
    assert stretches().counts(mask).tolist() == [int(part.sum()) for part in mask.split(LENGTHS)]
    assert stretches().spread(torch.arange(5)).bincount().tolist() == LENGTHS
    assert stretches().starts == [0, 5, 6, 46, 346]


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_empty_stretches_are_refused(lengths):
    with pytest.raises(ValueError, match="none of them empty"):
        Segments(lengths, torch.device("cpu"))
