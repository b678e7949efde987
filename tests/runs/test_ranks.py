"""Two processes that share each batch, unevenly, train and record what one process does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from gossamer import checkpoint
from gossamer.record import Run

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)

# Shares of 4 and 3, and a last batch of one example that cannot be shared. SGD draws no noise.
NEW = ["sgd", "two_moons", "--n_train=120", "--batch_size=7", "--epochs=2", "--n_draws=1", "--device=cpu", "--quiet"]


def train(*arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "gossamer", "train", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for n in (1, 2):
        done = train(*NEW, f"--ranks={n}", f"--out={folder / str(n)}")
        assert (done.returncode, done.stderr) == (0, "")
    return [Run.open(folder / str(n)) for n in (1, 2)]


def test_uneven_shares_train_as_one_process(runs):
    one, two = (checkpoint.load(run.checkpoint_folder)["training"]["model"] for run in runs)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-5, msg=name)


def test_recorded_losses_are_those_of_all_ranks(runs):
    one, two = ([row["loss"] for row in run.metrics()] for run in runs)
    assert len(one) == 2
    assert two == pytest.approx(one, rel=1e-5)
