"""What one of two processes does in ``test_ranks``: train on its own data, and write down where it ended."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossamer
from gossamer.kernels.ordered import top_mask
from gossamer.layers import SparseWeight, sparse_weights
from gossamer.sparsity import candidates, selection
from gossamer.sparsity.candidates import best_of_all_ranks
from gossamer.sparsity.criteria import multi_sample_gradient
from gossamer.types import WeightStats


def draws_lots(stats: WeightStats) -> torch.Tensor:
    return torch.rand(stats.mean.shape)


CASES: dict[str, dict[str, Any]] = {
    "sampled gradient": {},
    "all at once": {},
    "mean gradient": {"addition": "mean_gradient"},
    "several draws": {"addition": multi_sample_gradient(2)},
    "random": {"addition": "random"},
    "criteria that draw": {"addition": draws_lots, "removal": draws_lots},
    "one rank uses more": {},
    "not finite on one rank": {},
}


class Branching(nn.Module):
    """A trunk, and a branch that not every batch takes."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch, self.head = nn.Linear(8, 10), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: torch.Tensor, branch: bool) -> torch.Tensor:
        hidden = self.trunk(x).tanh()
        return self.head(self.branch(hidden) if branch else hidden)


def train(rank: int, case: str) -> dict[str, Any]:
    selection.DEVICES = {"cpu"} if case == "all at once" else {"cuda"}
    torch.manual_seed(100 + rank)  # other weights, other supports, other noise and other data on each rank
    model = gossamer.bayesianize(Branching(), density=0.3, std="gradient")
    # Broadcast buffers would hide supports that differ.
    uneven = case == "one rank uses more"
    network = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=uneven)
    start = {name: weight.support.position.clone() for name, weight in sparse_weights(model).items()}
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9)
    subspace = gossamer.Subspace(network, optimizer, total_steps=12, update_period=4, **CASES[case])
    for number in range(1, 13):
        x, y = torch.randn(16, 8), torch.randn(16, 3)
        branch = not uneven or rank == 0
        bad = case == "not finite on one rank" and rank == 1 and number == 4

        def loss(x: torch.Tensor = x, y: torch.Tensor = y, branch: bool = branch) -> torch.Tensor:
            error = F.mse_loss(network(x, branch), y)
            # DDP cannot look for unused parameters in its forward when others use them outside of it.
            return error if uneven else error + gossamer.kl(model) / 1000

        optimizer.zero_grad()
        (loss() * (torch.inf if bad else 1.0)).backward()
        if case != "not finite on one rank" or number != 4:  # as a loss scaler does
            optimizer.step()
        subspace.step(loss)
    return {"start": start, "state": model.state_dict(), "record": subspace.record}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    # A rank that waits for a sum the other one never asks for is an error, not a test without end.
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=patience, rank=rank, world_size=2)
    results = {case: train(rank, case) for case in CASES}
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)), allocation="global", std="gradient")
    try:
        gossamer.Subspace(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10)
    except ValueError as error:
        results["global"] = {"error": str(error)}
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    _part()


def _part() -> None:
    """Leave together: a rank that goes while the other is still connecting can end that process."""
    dist.barrier()
    dist.destroy_process_group()


def forward_then_meet(rank: int, folder: str) -> None:
    """Use the network before the ranks agree on its positions; write how far it then is from its own dense means."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = gossamer.bayesianize(nn.Linear(40, 30), density=0.1, std="gradient")
    model.weight.noisy = False
    x = torch.randn(5, 40)
    model(x)
    gossamer.Subspace(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10)
    with torch.no_grad():
        error = (model(x) - F.linear(x, model.dense_mean(), model.bias)).abs().max()
    torch.save(error, Path(folder) / f"rank{rank}.pt")
    _part()


def count_broadcast(rank: int, folder: str) -> None:
    """Train with and without batch normalisation; write the bytes that DDP sends before passes, and the positions."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=60), rank=rank, world_size=2)
    cases = ((nn.BatchNorm1d(30), "gradient"), (nn.Identity(), "gradient"), (nn.Identity(), "curvature"))
    found = [_counted(rank, *case) for case in cases]
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    _part()


def _counted(rank: int, norm: nn.Module, std: str) -> dict[str, Any]:
    torch.manual_seed(rank)
    network = nn.Sequential(nn.Linear(40, 30), norm, nn.Tanh(), nn.Linear(30, 3))
    model = gossamer.bayesianize(network, density=0.1, std=std)
    wrapped = DistributedDataParallel(model)
    sent: list[int] = []
    broadcast = wrapped._distributed_broadcast_coalesced

    def count(tensors: Any, *args: Any) -> None:
        sent.append(sum(tensor.nbytes for tensor in tensors))
        broadcast(tensors, *args)

    wrapped._distributed_broadcast_coalesced = count
    wrapped(torch.randn(8, 40)).square().mean().backward()
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.05)
    if std == "curvature":
        gossamer.Curvature(wrapped, optimizer, n_data=1000)
    subspace = gossamer.Subspace(wrapped, optimizer, total_steps=10, update_period=2)
    for _ in range(6):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
        subspace.step()
    alike = [buffer for name, buffer in model.named_buffers() if name.endswith((".position", ".curvature"))]
    others = sum(buffer.nbytes for buffer in model.buffers()) - sum(buffer.nbytes for buffer in alike)
    return {"sent": sent, "others": others, "alike": alike, "moves": len(subspace.record)}


def choose(rank: int, folder: str) -> None:
    """Choose new entries by means over ranks, from candidates and from dense means; write both, and what was sent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=60), rank=rank, world_size=2)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(101, 90), nn.Embedding(50, 30, padding_idx=3), nn.Linear(5, 4))
    weights = sparse_weights(gossamer.bayesianize(network, density=0.2, std="gradient"))
    torch.manual_seed(1 + rank)
    results = []
    whole = candidates.AT_ONCE
    for at_once, kind, rate in itertools.product((1000, whole), SCORES, (0.3, 0.02, 1.0, 0.0)):
        candidates.AT_ONCE = at_once  # weight by weight, and all together
        grads = {name: SCORES[kind](torch.randn(weight.support.shape)) for name, weight in weights.items()}
        dense = {name: grad.clone() for name, grad in grads.items()}
        for grad in dense.values():
            dist.all_reduce(grad)
            grad /= 2
        with counted() as sent:
            found = best_of_all_ranks(grads, weights, rate)
        assert not grads
        stay = {name: torch.arange(len(w.mean)) >= int(rate * len(w.mean)) for name, w in weights.items()}
        chosen = [
            [_chosen(weight, dense[name], stay[name]) for name, weight in weights.items()],
            [found[name].best(stay[name]) for name in weights],
        ]
        share = sum(sent) / sum(grad.nbytes for grad in dense.values())
        results.append({"kind": kind, "rate": rate, "dense": chosen[0], "candidates": chosen[1], "share": share})
    broken = {name: torch.full(weight.support.shape, torch.inf if rank else 1.0) for name, weight in weights.items()}
    results.append(not any(best.is_finite for best in best_of_all_ranks(broken, weights, 0.3).values()))
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    _part()


SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda normal: normal,
    "heavy tails": lambda normal: normal.sign() * normal.abs().mul(3).exp(),
    "many ties": lambda normal: normal.mul(2).round(),
    "mostly zero": lambda normal: torch.where(normal > 3, normal, 0.0),
    "all zero": torch.zeros_like,
}


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """The sizes of the tensors that this rank contributes to collective operations."""
    sent: list[int] = []

    def count(run: Callable[..., Any], at: int, *args: Any, **kwargs: Any) -> Any:
        sent.append(args[at].nbytes)
        return run(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for name, place in (("all_reduce", 0), ("broadcast", 0), ("all_gather", 1)):
            patch.setattr(dist, name, partial(count, getattr(dist, name), place))
        yield sent


def _chosen(weight: SparseWeight, grad: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Where the best entries are that do not stay."""
    score, support = grad.flatten().abs(), weight.support
    score[support.position[kept].long()] = -1.0
    score[slice(*support.frozen)] = -1.0
    return top_mask(score, int((~kept).sum())).nonzero().flatten()
