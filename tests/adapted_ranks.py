"""What one of two processes does in ``test_adaptation``: change a pretrained network by data of its own."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossamer


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=60), rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))
    torch.manual_seed(1 + rank)  # other entries, noise and data on each rank
    model = gossamer.adapt(plain, 0.1, targets="0", dense="2")
    start = model[0].support.position.clone()
    network = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=0.01)
    gossamer.Curvature(network, optimizer, n_data=100)
    subspace = gossamer.Subspace(network, optimizer, total_steps=12, update_period=4)
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(network(torch.randn(16, 12)), torch.arange(16) % 3).backward()
        optimizer.step()
        subspace.step()
    found = {"start": start, "state": model.state_dict(), "moves": len(subspace.record), "base": model[0].weight.base}
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()
