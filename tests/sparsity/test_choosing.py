"""Exactly as many come as go, whatever a criterion says, and no weight is emptied."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from gossamer.sparsity.choosing import addition_score, grow, keep, overlap, removal_scores, survivors


@pytest.mark.parametrize(
    ("rate", "scope", "a", "b"),
    [
        (0.5, "layer", [False, True, True, False], [False, True]),
        (0.5, "global", [False, True, True, False], [False, True]),  # 3 of 6; b's best is safe
        (0.99, "layer", [False, True, False, False], [False, True]),
        (0.99, "global", [False, True, False, False], [False, True]),
        (1.0, "layer", [False] * 4, [False] * 2),
        (1.0, "global", [False, True, False, False], [False, True]),
        (0.0, "global", [True] * 4, [True] * 2),
    ],
)
def test_keep(rate, scope, a, b):
    scores = {"a": tensor([1.0, 9.0, 8.0, 7.0]), "b": tensor([0.1, 0.2])}
    kept = keep(scores, rate, scope)
    assert [kept["a"].tolist(), kept["b"].tolist()] == [a, b]


def test_a_lone_infinite_score_does_not_push_out_the_best_of_another_weight(hand_made):
    """±∞ and NaN of a criterion become finite, below and above all else."""
    values = tensor([math.inf, math.inf, 0.0, -math.inf, math.nan, math.inf])
    [score] = removal_scores(lambda stats: values, {"": hand_made.layer.weight}).values()
    assert score.isfinite().all()
    assert score[3] == score[4] < 0 < score[0]
    assert values[0] == math.inf  # what the criterion gave is its own
    kept = keep({"a": score, "b": tensor([0.0, -1.0])}, 0.75, "global")
    assert kept["a"].tolist() == [True] + [False] * 5
    assert kept["b"].tolist() == [True, False]


def test_grow_takes_only_what_may_be_added(hand_made):
    kept = survivors(hand_made.layer.weight, tensor([True, False, True, False, True, False]), 3)
    assert kept.tolist() == [0, 5, 8]
    hand_made.layer.support.frozen = (0, 4)
    score = addition_score(lambda stats: torch.full((12,), -math.inf), hand_made.layer.weight, kept, None)
    assert [position for position, value in enumerate(score.tolist()) if value == -math.inf] == [0, 1, 2, 3, 5, 8]
    for scope in ("layer", "global"):
        assert grow({"": 3}, lambda name: score, scope)[""].tolist() == [4, 6, 7]


def test_grow_over_all_weights_follows_the_scores():
    removed = {"a": 1, "b": 2}
    scores = {"a": tensor([5.0, 4.0, 3.0]), "b": tensor([1.0, 2.0, 0.0])}
    by_layer, over_all = (grow(removed, scores.__getitem__, scope) for scope in ("layer", "global"))
    assert {name: added.tolist() for name, added in by_layer.items()} == {"a": [0], "b": [0, 1]}
    assert {name: added.tolist() for name, added in over_all.items()} == {"a": [0, 1, 2], "b": []}


def test_overlap():
    everything, first, second = tensor([True, True]), tensor([False, True]), tensor([True, False])
    assert overlap(everything, everything) == 1.0
    assert overlap(first, second) == 0.0
    assert overlap(first, ~everything) == 0.5
