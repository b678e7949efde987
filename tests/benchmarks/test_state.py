"""Bytes of a training: counted by hand for a small network, and the file holds what memory does."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.pages import recorded_tables
from benchmarks.state import StateBytes, StateCase, measure_state, state_table, write_states
from gossamer.models import mlp

N_WEIGHTS, N_BIASES = 32 * 16 + 16 * 4, 16 + 4
BYTES = Path(__file__).parents[2] / "results" / "bytes.json"
HEADER = 20_000  # random state (5 kB) and the names of tensors


def measure(label: str, method: str, **options) -> StateBytes:
    torch.manual_seed(0)
    return measure_state(StateCase(label, method, options), mlp(32, (16,), 4), (32,), 4)


@pytest.mark.parametrize(
    ("method", "options", "n_parameters", "moments"),
    [
        ("sgd", {}, N_WEIGHTS + N_BIASES, 1),
        ("vi", {"mode": "reference"}, 2 * N_WEIGHTS + N_BIASES, 1),
        ("ssvi", {"mode": "reference", "density": 0.25}, 2 * N_WEIGHTS // 4 + N_BIASES, 1),
        ("ssvi", {"density": 0.25}, N_WEIGHTS // 4 + N_BIASES, 2),
        ("ssvi", {"density": 0.25, "std": "gradient"}, 2 * N_WEIGHTS // 4 + N_BIASES, 2),
        ("rigl", {"density": 0.25}, N_WEIGHTS // 4 + N_BIASES, 1),
    ],
    ids=["sgd", "vi", "ssvi, SGD", "ssvi, curvature", "ssvi, Adam", "rigl"],
)
def test_bytes_are_those_of_the_active_vectors(method, options, n_parameters, moments):
    found = measure("a network", method, **options)
    n_tensors = 8  # Adam also counts the steps of each tensor, in four bytes
    assert found.parameters == 4 * n_parameters
    assert 0 <= found.optimizer_state - 4 * n_parameters * moments <= 4 * n_tensors
    assert found.positions == (4 * N_WEIGHTS // 4 if "density" in options else 0)
    assert found.buffers == (2 * 4 * 4 if found.curvatures else 0)  # four numbers about the noise of each layer
    assert found.curvatures == (2 * 4 * N_WEIGHTS // 4 if method == "ssvi" and options == {"density": 0.25} else 0)
    vectors = {"sgd": 0, "rigl": 1}.get(method, 2)
    learnt = vectors - (found.curvatures > 0)  # h has no moment, and neither has v
    assert found.per_entry == 4 * (vectors + (found.curvatures > 0) + moments * learnt)
    assert found.optimizer == ("Adam" if moments == 2 else "SGD")
    assert found.memory < found.checkpoint < found.memory + HEADER


def test_curvature_takes_no_more_state_than_a_raw_std():
    """μ, h, v and one momentum against μ, the raw σ and two, counted in a ResNet-18 (see docs/results.md)."""
    rows = {row["label"]: row for row in json.loads(BYTES.read_text())["rows"]}
    own, other = rows["SSVI 5 %, default mode"], rows["SSVI 5 %"]
    assert own["optimizer"] == other["optimizer"] == "SGD"
    assert own["per_entry"] == other["per_entry"] == 16


def test_shares_are_those_of_the_first_row(tmp_path):
    rows = [
        StateBytes("dense", "SGD", 10**7, 10**7, 0, 0, 2 * 10**7),
        StateBytes("sparse", "SGD", 10**6, 10**6, 10**6, 0, 3 * 10**6, 5 * 10**5, 12.0),
    ]
    write_states(tmp_path / "bytes.json", rows)
    assert json.loads((tmp_path / "bytes.json").read_text())["environment"]["torch"] == torch.__version__
    assert recorded_tables(tmp_path)["bytes"] == state_table(rows)
    assert state_table(rows).rows[1] == [
        "sparse",
        "SGD",
        "1.0 (10.0 %)",
        "0.5",
        "1.0 (10.0 %)",
        "1.0",
        "3.5 (17.5 %)",
        "3.0 (15.0 %)",
        "12 B",
    ]
