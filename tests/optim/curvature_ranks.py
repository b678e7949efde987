"""What one of two processes does in ``test_curvature``: train on its own data, and write down what it saw."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossamer
from gossamer.layers import sparse_weights


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=patience, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 3)), density=0.3)
    network = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9)
    gossamer.Curvature(network, optimizer, n_data=100)
    subspace = gossamer.Subspace(network, optimizer, total_steps=12, update_period=4)
    torch.manual_seed(100 + rank)  # other data and other noise on each rank
    weights = sparse_weights(model).values()
    result = {}
    for number in range(1, 11):
        optimizer.zero_grad()
        network(torch.randn(16, 8)).square().mean().backward()
        if number == 1:
            result["before"] = [weight.curvature.clone() for weight in weights]
            result["estimates"] = [weight.estimates.leaf.grad.clone() for weight in weights]
        optimizer.step()
        if number == 1:
            result["after"] = [weight.curvature.clone() for weight in weights]
        subspace.step()
    torch.save(result | {"state": model.state_dict()}, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()
