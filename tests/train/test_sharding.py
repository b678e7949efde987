"""FSDP2: two processes with a part of the network each end where one process does."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch was built without gloo", allow_module_level=True)

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)  # the processes import what they run by its name
sharded_ranks = importlib.import_module("sharded_ranks")
sys.path.remove(FOLDER)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        torch.multiprocessing.spawn(sharded_ranks.worker, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("std", ["gradient", "curvature"])
@pytest.mark.parametrize("case", sharded_ranks.CASES)
def test_two_processes_end_where_one_does(results, case, std):
    one, two = sharded_ranks.train(case, std), results[0][case, std]
    for name, value in one["state"].items():
        torch.testing.assert_close(two["state"][name], value, rtol=1e-5, atol=1e-6, msg=name)
    assert one["moves"] == two["moves"] == (3 if sharded_ranks.CASES[case] else 0)


def test_all_but_sparse_weights_is_split(results):
    split = results[0]["shard", "gradient"]["split"]
    assert split == {"0.0.bias", "0.1.weight", "0.1.bias", "0.3.bias", "1.bias"}


def test_with_noise_of_their_own_ranks_stay_alike_and_learn_the_curvature(results):
    first, second = (result["noisy"]["state"] for result in results)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    quiet = results[0]["shard", "curvature"]["state"]
    assert any(not torch.equal(quiet[name], value) for name, value in first.items() if name.endswith("curvature"))
