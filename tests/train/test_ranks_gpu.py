"""Ranks on a GPU, as far as one GPU goes: two processes by gloo, and a group of one by NCCL.

Two processes cannot share a device under NCCL. What more GPUs need is in docs/guides/several-machines.md.
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
one_device_ranks = importlib.import_module("one_device_ranks")
sys.path.remove(FOLDER)

REASON = "training steps are not captured as CUDA graphs: several ranks train together"
ON_GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    ],
)


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), ON_GPU])
def test_two_ranks_on_one_device_stay_alike_train_as_one_and_say_why_nothing_is_captured(device, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    torch.multiprocessing.spawn(one_device_ranks.worker, args=(str(tmp_path), device), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for method, end in first["ends"].items():
        for name, value in end.items():
            assert torch.equal(second["ends"][method][name], value), (method, name)
    for end in (first, second):
        assert [line for line in end["said"].splitlines() if "captured" in line] == [REASON] * 2
    # SGD draws no noise: two shares of each batch are the batch.
    alone = one_device_ranks.train("sgd", one_device_ranks.OneProcess(device), captures=False).model.state_dict()
    for name, value in first["ends"]["sgd"].items():
        torch.testing.assert_close(value, alone[name].cpu(), rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch was built without NCCL")
def test_a_group_of_one_by_nccl_is_captured_and_ends_where_a_process_does():
    fabric_module = pytest.importorskip("lightning_fabric")
    alone = one_device_ranks.train("ssvi", one_device_ranks.OneProcess("cuda"))
    fabric = fabric_module.Fabric(accelerator="cuda", devices=1, strategy="ddp")
    fabric.launch()
    try:
        grouped = one_device_ranks.train("ssvi", fabric)
        assert alone.captures
        assert grouped.captures
        assert dist.get_backend() == "nccl"
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(grouped.model.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    finally:
        dist.destroy_process_group()
