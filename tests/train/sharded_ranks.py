"""What one of two processes does in ``test_sharding``: train on its share of the batches, and write where it ended."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import gossamer
from gossamer.distributed import average_over_ranks
from gossamer.layers import sparse_weights

CASES = {"shard": True, "fully_shard": False}  # and whether the subspace moves


def train(case: str, std: str, *, n_ranks: int = 1, noisy: bool = False) -> dict[str, Any]:
    """Twelve steps; without noise, two ranks must end where one process does."""
    rank = dist.get_rank() if n_ranks > 1 else 0
    torch.manual_seed(0)  # all ranks start from the same network
    network = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    model = gossamer.bayesianize(nn.Sequential(network, nn.Linear(16, 3)), density=0.3, std=std)
    for weight in sparse_weights(model).values():
        weight.noisy = noisy
    if n_ranks > 1 and case == "shard":
        whole = {parameter for weight in sparse_weights(model).values() for parameter in weight.parameters()}
        for part in (network, model):
            fully_shard(part, ignored_params=whole, mesh=init_device_mesh("cpu", (n_ranks,)))
        for parameter in whole:
            parameter.register_post_accumulate_grad_hook(_average)
    elif n_ranks > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (n_ranks,)))
    torch.manual_seed(rank)  # noise of their own
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1, momentum=0.9)
    if std == "curvature":
        gossamer.Curvature(model, optimizer, n_data=100)
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, update_period=4) if CASES[case] else None
    data = torch.Generator().manual_seed(3)
    for _ in range(12):
        x, y = torch.randn(16, 12, generator=data), torch.randint(3, (16,), generator=data)
        optimizer.zero_grad()
        for half in (slice(8), slice(8, 16)):  # gradients of two passes add up
            part_x, part_y = x[half][rank::n_ranks], y[half][rank::n_ranks]
            (F.cross_entropy(model(part_x), part_y) / 2).backward()
        optimizer.step()
        if subspace is not None:
            subspace.step()
    split = {name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)}
    state = {name: _whole(value) for name, value in model.state_dict().items() if not name.endswith("_extra_state")}
    return {"state": state, "split": split, "moves": 0 if subspace is None else len(subspace.record)}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=60), rank=rank, world_size=2)
    results = {(case, std): train(case, std, n_ranks=2) for case in CASES for std in ("gradient", "curvature")}
    results["noisy"] = train("shard", "curvature", n_ranks=2, noisy=True)
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def _average(parameter: Tensor) -> None:
    average_over_ranks(parameter.grad)


def _whole(value: Tensor) -> Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
