"""Ranks whose steps are CUDA graphs end where plain ones do.

On a CPU functions that keep their tensors in place stand in for graphs. On a GPU two processes share it, by gloo: NCCL
wants a device for each. What only more GPUs can show is in docs/guides/several-machines.md.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)  # the processes import what they run by its name
ranks = importlib.import_module("captured_ranks")
sys.path.remove(FOLDER)

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")]


def trained(device, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        torch.multiprocessing.spawn(ranks.worker, args=(str(folder), device), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    return trained("cpu", tmp_path_factory.mktemp("ranks"))


def check_alike(ends, case, kind):
    """Both ranks end alike, to the bit."""
    first, second = (end["ends"][case, kind] for end in ends)
    assert first["record"] == second["record"]
    for name, value in first["state"].items():
        assert torch.equal(second["state"][name], value), name


def check_plain(ends, case, kind, rtol=1e-3, atol=1e-4):
    """Both ranks end where plain ones do."""
    check_alike(ends, case, kind)
    found, plain = ends[0]["ends"][case, kind], ends[0]["ends"][case, "plain"]
    assert found["record"] == plain["record"]
    assert found["losses"] == pytest.approx(plain["losses"], rel=rtol, abs=atol)
    # Adam makes much of a gradient that is round-off, and estimates of the curvature are those of the noise drawn.
    drawn = () if case in ranks.SAME_NOISE else ("curvature", "_extra_state")
    for name, value in found["state"].items():
        if "raw_std" not in name and not name.endswith(drawn):
            torch.testing.assert_close(value, plain["state"][name], rtol=rtol, atol=atol, msg=name)


@pytest.mark.parametrize("case", ranks.SAME_NOISE)
def test_working_weights_of_ranks_give_the_plain_steps(case, on_cpu):
    check_plain(on_cpu, case, "captured")
    assert sum(sum(update["replaced"].values()) for update in on_cpu[0]["ends"][case, "captured"]["record"][-1]) > 0


@pytest.mark.parametrize("case", ranks.CASES)
def test_graphs_of_ranks_give_the_plain_steps(case, on_cpu):
    check_plain(on_cpu, case, "captured")
    for end in on_cpu:
        assert end["ends"][case, "captured"]["captures"]
        assert end["ends"][case, "captured"]["graphs"] >= 2


@pytest.mark.parametrize("case", ranks.CASES)
def test_a_rank_that_cannot_capture_goes_on_with_the_others(case, on_cpu):
    check_plain(on_cpu, case, "half captured")
    assert [end["ends"][case, "half captured"]["captures"] for end in on_cpu] == [True, False]
    said = "this rank takes its steps without CUDA graphs: CUDA error: operation not permitted when stream is capturing"
    assert [said in end["said"] for end in on_cpu] == [False, True]


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    return trained("cuda", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", [pytest.param(case, marks=gpu) for case in ranks.CASES])
def test_two_ranks_on_one_gpu_capture_their_steps(case, on_gpu):
    assert all(end["ends"][case, "captured"]["captures"] for end in on_gpu), [end["said"] for end in on_gpu]
    check_alike(on_gpu, case, "captured")
    if case not in ("a penalty", "std by gradient"):  # a graph draws other noise, by which single entries differ
        check_plain(on_gpu, case, "captured", rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch was built without NCCL")
def test_a_group_of_one_by_nccl_is_captured_and_ends_where_a_process_does():
    fabric_module = pytest.importorskip("lightning_fabric")
    alone = ranks.training(("ssvi", ranks.SPARSE, "images"), ranks.OneProcess("cuda"), captures=True)
    fabric = fabric_module.Fabric(accelerator="cuda", devices=1, strategy="ddp")
    fabric.launch()
    try:
        grouped = ranks.training(("ssvi", ranks.SPARSE, "images"), fabric, captures=True)
        for training in (alone, grouped):
            for _ in training.run():
                pass
            assert training.taking is not training.eager
        assert dist.get_backend() == "nccl"
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(grouped.model.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    finally:
        dist.destroy_process_group()
