"""Bytes are counted from real tensors, real files and a real process."""

import pytest
import torch

import gossamer
from benchmarks import memory
from benchmarks.measurements import DENSE, MASKED, PLAIN
from benchmarks.memory import MemoryCase, measure_memory
from benchmarks.networks import MLP

N_WEIGHTS = 784 * 1024 + 1024 * 1024 + 1024 * 10
N_REST = 1024 + 1024 + 10  # biases


def footprint(way):
    return memory.footprint(MLP, way, batch=4, steps=2)


def test_bytes_of_dense_masked_and_plain_networks():
    dense, masked, plain = map(footprint, (DENSE, MASKED, PLAIN))
    assert dense["training_bytes"] == masked["training_bytes"] == 4 * 3 * (2 * N_WEIGHTS + N_REST)
    assert plain["training_bytes"] == 4 * 3 * (N_WEIGHTS + N_REST)
    assert (dense["index_bytes"], masked["index_bytes"], plain["index_bytes"]) == (0, 4 * N_WEIGHTS, 0)
    # Tensors, and less than two pages for each of the two files: names, and the prior, mode and noise of each weight.
    assert 0 < dense["checkpoint_bytes"] - 4 * 2 * (2 * N_WEIGHTS + N_REST) < 8192
    assert 0 < dense["model_bytes"] - 4 * (2 * N_WEIGHTS + N_REST) < 8192
    assert masked["model_bytes"] - dense["model_bytes"] == pytest.approx(4 * N_WEIGHTS, abs=1024)


def test_bytes_of_a_sparse_network():
    torch.manual_seed(0)
    active = gossamer.active_parameters(gossamer.bayesianize(memory.KNOWN[MLP][0](), density=0.05))
    found = footprint("sparse 0.05")
    assert found["training_bytes"] == 4 * (
        5 * active + 3 * N_REST
    )  # mean, its gradient and momentum, curvature, squares
    assert found["state_bytes"] == 16
    assert found["index_bytes"] >= 4 * active
    # Four vectors, and positions in one or two bytes each.
    vectors = 4 * (4 * active + 2 * N_REST)
    assert vectors + active < found["checkpoint_bytes"] < vectors + 2 * active + 8192
    by_gradient = footprint("gradient 0.05")
    assert by_gradient["training_bytes"] == 4 * 3 * (2 * active + N_REST)
    assert by_gradient["state_bytes"] == 16
    vectors = 4 * (3 * active + N_REST)
    assert vectors + active < found["model_bytes"] < vectors + 2 * active + 8192


@pytest.mark.slow
def test_a_fresh_process_says_its_peak():
    row = measure_memory(MemoryCase(MLP, "sparse 0.05", batch=4, steps=2, runs=1))
    assert (row.subject, row.way) == (MLP, "sparse 0.05")
    # More than what it trains, less than what a process that imports torch holds: the imports are not in it.
    assert row.training_bytes < row.peak < 300e6


def test_a_process_that_fails_says_why(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'Traceback, many lines of it' >&2\necho \"KeyError: 'ResNet-19'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(
        OSError, match=r"the process that trains ResNet-19, dense LRT, .* failed: KeyError: 'ResNet-19'"
    ):
        measure_memory(MemoryCase("ResNet-19", DENSE, batch=4, runs=1))
