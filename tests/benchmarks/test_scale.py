"""The cost model in closed form, against rings played by hand and a small network, and the stored check by ranks."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer
from benchmarks.cost_model import (
    Link,
    Message,
    Network,
    Portion,
    sent,
    step_messages,
    step_seconds,
    transfer_seconds,
    update_bytes,
    update_messages,
)
from benchmarks.memory import training_bytes
from benchmarks.scale import extrapolate, link_of, scratch_per_entry, seen_in

STORED = Path(__file__).parents[2] / "results" / "scale.json"
FACTOR = 2  # within which the time of a step on ranks is predicted, as docs/scale.md says
SMALL = Network(layers=3, width=20, density=0.1)


def ring_all_reduce(vectors: list[list[float]]) -> tuple[list[list[float]], int, int]:
    """Rank by rank: the sums, the numbers that each rank sends, and the rounds."""
    ranks = len(vectors)
    n_sent = rounds = 0
    for phase in ("add", "copy"):
        for turn in range(ranks - 1):
            shift = 0 if phase == "add" else 1
            given = [(rank, (rank + shift - turn) % ranks) for rank in range(ranks)]
            values = [vectors[rank][chunk] for rank, chunk in given]
            for (rank, chunk), value in zip(given, values, strict=True):
                after = vectors[(rank + 1) % ranks]
                after[chunk] = value + (after[chunk] if phase == "add" else 0)
            n_sent, rounds = n_sent + 1, rounds + 1
    return vectors, n_sent, rounds


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_sends_what_the_model_says(ranks):
    own = [[float(10 * rank + chunk) for chunk in range(ranks)] for rank in range(ranks)]
    total = [sum(column) for column in zip(*own, strict=True)]
    sums, n_sent, rounds = ring_all_reduce(own)
    assert sums == [total] * ranks
    message = Message("all_reduce", 4 * ranks)
    assert sent(message, ranks) == 4 * n_sent
    assert transfer_seconds([message], ranks, Link(math.inf, 1.0)) == rounds


def test_one_rank_sends_nothing():
    assert transfer_seconds(step_messages(SMALL), 1, Link(1.0, 1.0)) == 0


def test_counts_are_those_of_a_converted_network():
    layers = [nn.Linear(SMALL.width, SMALL.width) for _ in range(SMALL.layers)]
    model = gossamer.bayesianize(nn.Sequential(*layers), density=SMALL.density)
    assert gossamer.active_parameters(model) == SMALL.active
    assert sum(layer.weight.numel() for layer in layers) == SMALL.weights
    optimizer = torch.optim.Adam(gossamer.param_groups(model))
    gradients = sum(parameter.numel() for parameter in model.parameters())
    assert step_messages(SMALL)[0].size == 4 * gradients
    assert training_bytes(model, optimizer) == 4 * (gradients + 2 * SMALL.active)  # and the curvature, and squares


def test_the_messages_of_an_update():
    k = int(0.3 * 40)
    sizes = [message.size for message in update_messages(SMALL, 0.3, [Portion(3, proposed=40, candidates=50)])]
    assert sizes == [4 * 3, 4, 4 * 3 * k, 4 * 40, 3 * 50, 4 * 50, 3 * 40]
    two = [Portion(2, proposed=30, candidates=35), Portion(1, proposed=10, candidates=15)]
    found = [message.size for message in update_messages(SMALL, 0.3, two)]
    assert found == [4 * 3, 4, 4 * 2 * k, 4 * 30, 2 * 50, 4 * 35, 4 * k, 4 * 10, 50, 4 * 15, 3 * 40]
    assert sum(found) == sum(sizes)
    assert seen_in(Network(5, 2000), [0, 0, *range(20), 0]) == [
        Portion(1, proposed=start // 4, candidates=(start + 2) // 4) for start in range(1, 20, 4)
    ]


def test_scratch_of_an_update_is_that_of_gradients_and_of_the_largest_portion():
    network = Network(10, 1000)
    row = {"layers": 10, "width": 1000, "update_peak_bytes": [0, 4e7 + 9 * 4e6, 1e12]}
    assert scratch_per_entry(row) == 9
    assert update_bytes(network, 9) == 4e7 + 9 * 4e6
    assert update_bytes(Network(10, 10_000), 9) == 4e9 + 9 * 1e8


def test_a_step_is_computation_and_messages_on_a_shared_core():
    link = Link(bytes_per_second=1e6, latency=1e-3)
    moved = 2 * (4 - 1) / 4 * 4 * (2 * SMALL.active + SMALL.biases + SMALL.layers)
    expected = 2 * (0.5 + moved / 1e6 + 2 * 2 * 3 * 1e-3)
    assert step_seconds(SMALL, 0.5, 4, link, crowding=2) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_link_is_found_from_two_times(ranks):
    link, size = Link(2e8, 3e-5), 1 << 22
    small, large = (transfer_seconds([Message("all_reduce", n)], ranks, link) for n in (0, size))
    found = link_of(small, large, ranks, size)
    assert found.bytes_per_second == pytest.approx(link.bytes_per_second, rel=1e-9)
    assert found.latency == pytest.approx(link.latency, rel=1e-9)


def test_an_extrapolation_is_linear_in_active_weights_and_weights():
    from_ = {"active": 120, "weights": 1200, "state_bytes": 4800, "checkpoint_bytes": 2400, "convert_peak_bytes": 9600}
    from_ |= {name: [1.0, 2.0, 9.0] for name in ("step_seconds", "update_seconds", "update_peak_bytes")}
    from_ |= {"save_seconds": [3.0], "load_seconds": [4.0]}
    checks = [
        {"ranks": ranks, "scratch_per_entry": 10.0 + ranks, "proposed": 2.0, "candidates": 3.0} for ranks in (2, 4, 8)
    ]
    large = Network(layers=3, width=200, density=0.1)
    told = extrapolate([from_], checks, large)
    assert told["state_bytes"] == 4800 * 100
    assert told["step_seconds"] == told["update_seconds"] == 2.0 * 100
    assert told["shared_update_peak_bytes"] == update_bytes(large, 10 + 8)


def test_the_stored_ranks_sent_what_the_model_says_and_took_about_as_long():
    stored = json.loads(STORED.read_text())
    assert {row["ranks"] for row in stored["checks"]} == {2, 4, 8}
    for row in stored["checks"]:
        assert row["bytes_per_step"] == row["predicted_bytes_per_step"]
        assert row["update_messages_agree"]
        if row["step_seconds"] is not None and row["ranks"] <= 4:
            ratio = statistics.median(row["step_seconds"]) / row["predicted_step_seconds"]
            assert 1 / FACTOR < ratio < FACTOR


def test_from_64_ranks_on_a_bit_per_weight_costs_as_much_as_dense_gradients():
    network = Network(layers=2, width=8)
    bits, dense = update_messages(network, 0.3, [Portion(2, 1, 1)])[4], Message("all_reduce", 4 * network.weights)
    assert sent(bits, 63) < sent(dense, 63)
    assert sent(bits, 64) == sent(dense, 64)
