"""What one of two processes on one device does in ``test_ranks_gpu``: train with the other by gloo."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer import methods
from gossamer.data import two_moons
from gossamer.devices import OneProcess
from gossamer.models import mlp
from gossamer.train import Training

STEPS = 24
OPTIONS = {"sgd": {}, "ssvi": {"density": 0.2, "update_period": 5, "until": 1.0}}


class OneOfTwo(OneProcess):
    """A rank on a device that it shares with the other one: Lightning Fabric wants one device for each."""

    def __init__(self, device: str, rank: int) -> None:
        super().__init__(device)
        self.global_rank, self.world_size, self.is_global_zero = rank, 2, rank == 0

    def setup(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        module, optimizer = super().setup(model, optimizer)
        return DistributedDataParallel(module), optimizer


def train(method: str, fabric: OneProcess, *, captures: bool = True) -> Training:
    torch.manual_seed(0)
    task = two_moons.load()
    training = Training(
        methods.build(method, task, STEPS, **OPTIONS[method]), mlp(2), task, STEPS, fabric, captures=captures
    )
    for _ in training.run():
        pass
    return training


def worker(rank: int, folder: str, device: str) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    said = Path(folder, f"rank{rank}.log")
    logging.basicConfig(filename=said, level=logging.WARNING, format="%(message)s")
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=60), rank=rank, world_size=2)
    ends = {}
    for method in OPTIONS:
        training = train(method, OneOfTwo(device, rank))
        assert not training.captures
        ends[method] = {name: value.cpu() for name, value in training.model.state_dict().items()}
    torch.save({"ends": ends, "said": said.read_text()}, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()
