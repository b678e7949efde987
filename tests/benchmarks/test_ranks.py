"""What two processes send each other, counted while they train."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks import ranks

STORED = Path(__file__).parents[2] / "results" / "ranks.json"
LIMIT = 0.055  # of the bytes of dense VI, at 5 % density


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_steps_and_updates_at_five_percent_send_a_twentieth_of_dense_vi():
    sparse, dense_vi = (ranks.traffic(case, 2, steps=150) for case in ("5 %", "dense VI"))
    n_weights = sum(a * b for a, b in pairwise(ranks.SIZES))
    n_biases = sum(ranks.SIZES[1:])
    assert dense_vi["bytes_per_step"] == 4 * (2 * n_weights + n_biases)  # mean and raw std
    # One update in 150 steps, of the largest rate; by default there are 75 in 10,000.
    assert sparse["updates"] == 1
    assert sparse["bytes_per_update"] < 0.25 * 4 * n_weights
    assert (sparse["bytes_per_step"] + 0.0075 * sparse["bytes_per_update"]) / dense_vi["bytes_per_step"] < LIMIT


def test_the_stored_training_stays_within_the_limit():
    stored = json.loads(STORED.read_text())
    assert {row["case"] for row in stored["traffic"]} == set(ranks.CASES)
    assert all(row["share_of_dense_vi"] < LIMIT for row in stored["traffic"] if row["case"] == "5 %")
    assert {row["processes"] for row in stored["scaling"]} == {1, 2, 4}
