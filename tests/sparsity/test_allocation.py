"""Allocations: exact totals, bounds, and the densities they promise."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.sparsity.allocation import ALLOCATION, erk, global_, uniform
from gossamer.types import LayerStats


@st.composite
def layer_lists(draw: st.DrawFn) -> list[LayerStats]:
    shapes = draw(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12))
    return [
        LayerStats(str(i), shape, keep_dense=draw(st.booleans()), n_frozen=draw(st.integers(0, math.prod(shape) - 1)))
        for i, shape in enumerate(shapes)
    ]


densities = st.floats(1e-6, 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(layers=layer_lists(), density=densities)
@pytest.mark.parametrize("name", ["erk", "global"])
def test_total_is_exactly_the_budget(name: str, layers: list[LayerStats], density: float) -> None:
    counts = ALLOCATION[name](layers, density)
    free = [layer for layer in layers if not layer.keep_dense]
    budget = max(len(free), round(density * sum(layer.size for layer in free)))
    assert sum(counts) == budget + sum(layer.size for layer in layers if layer.keep_dense)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(layers=layer_lists(), density=densities)
@pytest.mark.parametrize("name", ALLOCATION)
def test_every_layer_has_one_to_all_of_its_entries(name: str, layers: list[LayerStats], density: float) -> None:
    counts = ALLOCATION[name](layers, density)
    assert len(counts) == len(layers)
    for layer, count in zip(layers, counts, strict=True):
        assert isinstance(count, int)
        assert count == layer.size if layer.keep_dense else 1 <= count <= layer.size
    assert ALLOCATION[name](layers, 1.0) == [layer.size for layer in layers]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(layers=layer_lists(), density=densities)
def test_uniform_is_layer_by_layer(layers: list[LayerStats], density: float) -> None:
    expected = [layer.size if layer.keep_dense else max(1, round(density * layer.size)) for layer in layers]
    assert uniform(layers, density) == expected


RESNET = [
    LayerStats("stem", (64, 3, 3, 3)),
    LayerStats("block", (64, 64, 3, 3)),
    LayerStats("shortcut", (128, 64, 1, 1)),
    LayerStats("wide", (512, 512, 3, 3)),
    LayerStats("head", (10, 512)),
]


def erk_by_iteration(layers: list[LayerStats], density: float) -> list[float]:
    """Densities by the textbook loop: solve ε, make what exceeds 1 dense, solve again."""
    raw = [sum(layer.shape) / layer.size for layer in layers]
    budget = density * sum(layer.size for layer in layers)
    dense: set[int] = set()
    while True:
        rest = budget - sum(layers[i].size for i in dense)
        scale = rest / sum(raw[i] * layer.size for i, layer in enumerate(layers) if i not in dense)
        above = {i for i in range(len(layers)) if i not in dense and scale * raw[i] > 1}
        if not above:
            return [1.0 if i in dense else scale * raw[i] for i in range(len(layers))]
        dense |= above


@pytest.mark.parametrize("density", [0.01, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_erk_is_the_textbook_loop(density: float) -> None:
    counts = erk(RESNET, density)
    for layer, count, expected in zip(RESNET, counts, erk_by_iteration(RESNET, density), strict=True):
        assert abs(count - expected * layer.size) < 1


def test_erk_fills_small_layers_at_high_density() -> None:
    counts = erk(RESNET, 0.5)
    full = [layer.name for layer, count in zip(RESNET, counts, strict=True) if count == layer.size]
    assert full == ["stem", "block", "shortcut", "head"]


def test_frozen_entries_are_outside_the_budget() -> None:
    embedding = LayerStats("embedding", (100, 10), n_frozen=10)
    assert uniform([embedding], 0.1) == global_([embedding], 0.1) == erk([embedding], 0.1) == [99]
    assert uniform([embedding._replace(keep_dense=True)], 0.1) == [990]


def test_layer_without_a_free_entry_gets_none() -> None:
    layers = [LayerStats("frozen", (4,), n_frozen=4), LayerStats("free", (20,))]
    for choose in ALLOCATION.values():
        assert choose(layers, 0.5) == [0, 10]
        assert choose([], 0.5) == []


def test_remainders_go_by_largest_fraction_then_by_order() -> None:
    thirds = [LayerStats(str(i), (10,)) for i in range(3)]
    assert global_(thirds, 0.5) == [5, 5, 5]
    assert global_(thirds, 0.34) == [4, 3, 3]
    assert global_([LayerStats("a", (7,)), LayerStats("b", (13,))], 0.25) == [2, 3]  # 1.75 and 3.25


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, math.nan])
@pytest.mark.parametrize("name", ALLOCATION)
def test_density_must_be_a_share(name: str, density: float) -> None:
    with pytest.raises(ValueError, match="density"):
        ALLOCATION[name](RESNET, density)
