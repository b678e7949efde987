"""What processes that train together send each other, and how much faster they are than one.

    python -m benchmarks.ranks --json results/ranks.json [--quick]

An MLP with 300,000 weights learns the digits under DistributedDataParallel with gloo, as a plain network, by dense VI
and with 10, 5 and 1 % of the weights. Bytes are those of the tensors that one rank gives to collective operations:
gradients, estimates of curvature, buffers, candidates. Speed is measured with a batch of the same size on every
process; more processes than cores cannot gain. Five minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gossamer
from benchmarks.environment import surroundings
from benchmarks.timing import WALL
from gossamer.data import digits

CASES: dict[str, float | None] = {"dense": None, "dense VI": 1.0, "10 %": 0.1, "5 %": 0.05, "1 %": 0.01}
KIND = "ranks"
SCALED = ("dense VI", "5 %")
SIZES, BATCH, LR = (64, 512, 512, 10), 64, 0.05  # examples per process and step
COLLECTIVES = {"all_reduce": 0, "broadcast": 0, "all_gather": 1}  # and which argument holds a rank's own tensor


@dataclass(frozen=True)
class Plan:
    """How much to measure: steps of a training, and rounds of so many steps for the speed."""

    steps: int = 1000
    rounds: int = 9
    round_steps: int = 20


QUICK = Plan(steps=200, rounds=3, round_steps=10)
ALIKE = 20  # steps that are counted of a training without updates, in which all send the same


class Trainer:
    """One process of a training of one of :data:`CASES`."""

    def __init__(self, case: str, steps: int) -> None:
        torch.manual_seed(0)
        model: nn.Module = _network()
        density = CASES[case]
        if density is not None:
            model = gossamer.bayesianize(model, density=density, std="gradient" if density == 1.0 else "curvature")
        together = dist.is_initialized()
        self.model, self.network = model, DistributedDataParallel(model) if together else model
        if isinstance(self.network, DistributedDataParallel):  # by a function of Python, which can be counted
            self.network.register_comm_hook(None, allreduce_hook)
        parameters = model.parameters() if density is None else gossamer.param_groups(model)
        self.optimizer = torch.optim.SGD(parameters, lr=LR, momentum=0.9)
        self.is_vi, self.subspace = density == 1.0, None
        self.x, self.y = digits.load().train
        self.x = self.x.flatten(1)
        if density is not None and density < 1.0:
            gossamer.Curvature(self.network, self.optimizer, n_data=len(self.y))
            self.subspace = gossamer.Subspace(self.network, self.optimizer, total_steps=steps)
        torch.manual_seed(1 + (dist.get_rank() if together else 0))  # a batch and noise of its own

    def step(self) -> None:
        """Gradients and the optimizer's step; the subspace comes after it."""
        rows = torch.randint(len(self.y), (BATCH,))
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.network(self.x[rows]), self.y[rows])
        (loss + gossamer.kl(self.model) / len(self.y) if self.is_vi else loss).backward()
        self.optimizer.step()

    def move(self) -> bool:
        """An update of the subspace, if one is due."""
        return self.subspace is not None and self.subspace.step()


def traffic(case: str, ranks: int, steps: int) -> dict[str, Any]:
    """Bytes of the steps and updates of a training, from one rank."""
    (row,) = in_processes(partial(_traffic, case, steps), ranks)
    return {"case": case, "ranks": ranks, **row}


def scaling(case: str, processes: int, plan: Plan) -> dict[str, Any]:
    """Examples per second of all processes together: the median of the rounds, the least and the most.

    The CPU time of a step on one process, with its part of the messages, depends less on what else the machine does.
    """
    speed, cpu = zip(*in_processes(partial(_speed, case, plan), processes), strict=True)
    return {
        "case": case,
        "processes": processes,
        "rounds": len(speed),
        "examples_per_second": statistics.median(speed),
        "least": min(speed),
        "most": max(speed),
        "cpu_seconds_per_step": statistics.median(cpu),
    }


def measure(plan: Plan) -> dict[str, Any]:
    """Everything, as the JSON file has it."""
    rows = []
    for case, ranks in [*((case, 2) for case in CASES), ("5 %", 4)]:
        rows.append(traffic(case, ranks, plan.steps))
        print(f"{case} on {ranks} ranks: {rows[-1]['bytes_per_step']:,.0f} bytes per step", flush=True)
    dense_vi = next(row["bytes_total"] for row in rows if row["case"] == "dense VI")
    for row in rows:
        row["share_of_dense_vi"] = row["bytes_total"] / dense_vi
    speeds = []
    for case in SCALED:
        for processes in (1, 2, 4):
            speeds.append(scaling(case, processes, plan))
            one, now = next(row for row in speeds if row["case"] == case), speeds[-1]
            now["efficiency"] = now["examples_per_second"] / (processes * one["examples_per_second"])
            now["cpu_efficiency"] = one["cpu_seconds_per_step"] / now["cpu_seconds_per_step"]
            print(f"{case} on {processes}: {speeds[-1]['examples_per_second']:,.0f} examples per second", flush=True)
    return {
        "kind": KIND,
        "environment": surroundings(WALL),
        "cores": len(os.sched_getaffinity(0)),
        "network": "MLP " + "-".join(map(str, SIZES)),
        "weights": sum(p.numel() for p in _network().parameters() if p.dim() > 1),
        "batch_per_process": BATCH,
        "steps": plan.steps,
        "traffic": rows,
        "scaling": speeds,
    }


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """The sizes of the tensors that this process gives to collective operations."""
    sent: list[int] = []

    def count(run: Callable[..., Any], at: int, *args: Any, **kwargs: Any) -> Any:
        sent.append(args[at].nbytes)
        return run(*args, **kwargs)

    def count_buffers(run: Callable[..., Any], self: Any, tensors: Sequence[Tensor], *args: Any) -> None:
        sent.append(sum(tensor.nbytes for tensor in tensors))
        run(self, tensors, *args)

    with contextlib.ExitStack() as patches:
        for name, at in COLLECTIVES.items():
            patches.enter_context(mock.patch.object(dist, name, partial(count, getattr(dist, name), at)))
        name = "_distributed_broadcast_coalesced"
        buffers = partial(count_buffers, getattr(DistributedDataParallel, name))
        patches.enter_context(mock.patch.object(DistributedDataParallel, name, lambda *args: buffers(*args)))
        yield sent


def _traffic(case: str, steps: int) -> list[dict[str, Any]]:
    trainer, of_steps, of_updates = Trainer(case, steps), [], []
    with counted() as sent:
        for _ in range(ALIKE if trainer.subspace is None else steps):
            trainer.step()
            of_steps.append(sum(sent))
            sent.clear()
            if trainer.move():
                of_updates.append(sum(sent))
            sent.clear()
    return [
        {
            "bytes_per_step": statistics.mean(of_steps),
            "updates": len(of_updates),
            "bytes_per_update": statistics.mean(of_updates) if of_updates else None,
            "bytes_of_largest_update": max(of_updates, default=None),
            "bytes_total": steps * statistics.mean(of_steps) + sum(of_updates),
        }
    ]


def _speed(case: str, plan: Plan) -> list[tuple[float, float]]:
    """Examples per second of all, and seconds of CPU per step here, round by round."""
    trainer, n_processes = Trainer(case, 1_000_000), dist.get_world_size() if dist.is_initialized() else 1
    rounds = []
    for _ in range(plan.rounds + 1):
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(plan.round_steps):
            trainer.step()
            trainer.move()
        speed = n_processes * BATCH * plan.round_steps / (time.perf_counter() - start)
        rounds.append((speed, (time.process_time() - cpu) / plan.round_steps))
    return rounds[1:]  # the first one warms up


def in_processes(work: Callable[[], Any], n_processes: int) -> Any:
    """What ``work`` returns on the first of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (work, n_processes, folder), n_processes)  # type: ignore[attr-defined,no-untyped-call]
        return json.loads(Path(folder, "result.json").read_text())


def _process(rank: int, work: Callable[[], Any], n_processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    if n_processes > 1:
        meeting, patience = f"file://{folder}/meeting", timedelta(minutes=5)
        dist.init_process_group("gloo", meeting, timeout=patience, rank=rank, world_size=n_processes)
    result = work()
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    if n_processes > 1:
        dist.barrier()
        dist.destroy_process_group()


def _network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(SIZES):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    args = parser.parse_args()
    found = measure(QUICK if args.quick else Plan())
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
