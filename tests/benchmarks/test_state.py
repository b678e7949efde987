"""Bytes of a training: counted by hand for a small network, and the file holds what memory does."""

import json

import pytest
import torch

from benchmarks.pages import recorded_tables
from benchmarks.state import StateBytes, StateCase, measure_state, state_table, write_states
from gossamer.models import mlp

N_WEIGHTS, N_BIASES = 32 * 16 + 16 * 4, 16 + 4
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
        ("ssvi", {"density": 0.25}, N_WEIGHTS // 4 + N_BIASES, 1),
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
    assert found.buffers == (4 * N_WEIGHTS // 4 if options == {"density": 0.25} and method == "ssvi" else 0)  # h
    assert found.optimizer == ("Adam" if moments == 2 else "SGD")
    assert found.memory < found.checkpoint < found.memory + HEADER


def test_shares_are_those_of_the_first_row(tmp_path):
    rows = [
        StateBytes("dense", "SGD", 10**7, 10**7, 0, 0, 2 * 10**7),
        StateBytes("sparse", "SGD", 10**6, 10**6, 10**6, 0, 3 * 10**6),
    ]
    write_states(tmp_path / "bytes.json", rows)
    assert json.loads((tmp_path / "bytes.json").read_text())["environment"]["torch"] == torch.__version__
    assert recorded_tables(tmp_path)["bytes"] == state_table(rows)
    assert state_table(rows).rows[1] == [
        "sparse",
        "SGD",
        "1.0 (10.0 %)",
        "1.0 (10.0 %)",
        "1.0",
        "3.0 (15.0 %)",
        "3.0 (15.0 %)",
    ]
