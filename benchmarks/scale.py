"""What a network of a thousand million weights at 1 % density costs, from measured constants and a cost model.

    python -m benchmarks.scale --json results/scale.json [--quick]

1. Networks of 10⁶ to 10⁸ weights are converted, trained by Adam, moved and saved, each in a process of its own.
2. The same with 10⁹ weights, converted layer by layer: the constants must predict it.
3. Two, four and eight processes train together: the cost model must predict their bytes and, roughly, their time. Two
   also train the largest network, for the memory of an update on ranks.
4. The model says what eight devices would need.

Times are CPU time of one thread, unless processes wait for each other or for a disk. Ten minutes and 16 GB.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gossamer
from benchmarks.cost_model import (
    Link,
    Message,
    Network,
    Portion,
    portions,
    sent,
    step_messages,
    step_seconds,
    transfer_seconds,
    update_bytes,
    update_messages,
)
from benchmarks.environment import surroundings
from benchmarks.memory import index_bytes, resident, training_bytes
from benchmarks.ranks import counted, in_processes
from benchmarks.scale_tables import KIND, scale_tables
from benchmarks.timing import WALL
from gossamer.train import checkpoint

NETWORKS = [Network(10, 316), Network(10, 1000), Network(10, 3162), Network(40, 1581)]  # 10⁶, 10⁷, and twice 10⁸
BILLION = Network(10, 10_000)
CHECKED = Network(10, 1000)
SHARED = Network(10, 2000)  # whose update is measured on two ranks, too: it is linear in N, or not
QUICK = [Network(4, 100), Network(4, 200)]
FEW, ROWS = 16, 64  # examples of a step
RATE = 0.3  # of an update: the default, and the largest
WHOLE = 200_000_000  # weights above which a network is converted layer by layer
DEVICES, LINK = 8, Link(25e9, 10e-6)  # assumed, not measured
N_DATA = 60_000


class Trainer:
    """A network that learns random targets by Adam; its memory and times are those of any data."""

    def __init__(self, network: Network, rank: int = 0) -> None:
        self.network = network
        torch.manual_seed(0)
        self.model = _converted(network)
        self.outer: nn.Module = DistributedDataParallel(self.model) if dist.is_initialized() else self.model
        if isinstance(self.outer, DistributedDataParallel):
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            self.outer.register_comm_hook(None, allreduce_hook)  # a function of Python, which can be counted
        self.optimizer = torch.optim.Adam(gossamer.param_groups(self.model), lr=1e-4)
        gossamer.Curvature(self.outer, self.optimizer, n_data=N_DATA)
        self.subspace: gossamer.Subspace | None = None
        torch.manual_seed(1 + rank)
        self.x, self.y = torch.randn(2, ROWS, network.width)

    def begin_to_move(self, period: int) -> None:
        """Update the subspace every so many steps from now on."""
        self.subspace = gossamer.Subspace(self.outer, self.optimizer, update_period=period, replacement_rate=RATE)

    def step(self, rows: int = ROWS) -> None:
        """A training step, with an update if one is due."""
        self.optimizer.zero_grad()
        F.mse_loss(self.outer(self.x[:rows]), self.y[:rows]).backward()
        self.optimizer.step()
        if self.subspace is not None:
            self.subspace.step()


def alone(network: Network, repeats: int) -> dict[str, Any]:
    """Memory and times of one process, each a list with a number per repeat; for :func:`in_processes`."""
    torch.optim.Adam([torch.zeros(1)])  # the first optimizer of a process imports a hundred modules of torch
    before = resident("VmRSS")
    start = time.process_time()
    trainer = Trainer(network)
    convert_seconds, convert_peak = time.process_time() - start, resident("VmHWM") - before
    trainer.step(FEW)
    few, many = zip(*[(_cpu(partial(trainer.step, FEW)), _cpu(trainer.step)) for _ in range(repeats)], strict=True)
    trainer.begin_to_move(period=2)
    trainer.step()
    updates, peaks = [], []
    for _ in range(repeats):
        held = _count_peak()
        seconds = _cpu(trainer.step) + _cpu(trainer.step)  # the one after it builds the kernels' plans again
        updates.append(seconds - 2 * statistics.median(many))
        peaks.append(resident("VmHWM") - held)
    n_active = gossamer.active_parameters(trainer.model)
    assert n_active == network.active
    return {
        "layers": network.layers,
        "width": network.width,
        "weights": network.weights,
        "active": n_active,
        "convert_seconds": convert_seconds,
        "convert_peak_bytes": convert_peak,
        "by_layer": network.weights > WHOLE,
        "state_bytes": training_bytes(trainer.model, trainer.optimizer) + index_bytes(trainer.model),
        "resident_bytes": resident("VmRSS") - before,
        "step_seconds_few": list(few),
        "step_seconds": list(many),
        "update_seconds": updates,
        "update_peak_bytes": peaks,
        **_saved(trainer, repeats),
    }


def _saved(trainer: Trainer, repeats: int) -> dict[str, Any]:
    """Size and wall time of checkpoints, with checksums and the wait for the disk, and of reading the last one."""
    seconds, loads, peaks = [], [], []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # not /tmp, which may be memory
        for i in range(repeats):
            held = _count_peak()
            state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
            seconds.append(_wall(partial(checkpoint.save, Path(folder), state, i)))
            peaks.append(resident("VmHWM") - held)
            loads.append(_wall(partial(checkpoint.load, Path(folder))))
        size = (Path(folder) / f"step-{repeats - 1}.safetensors").stat().st_size
    return {
        "checkpoint_bytes": size,
        "save_seconds": seconds,
        "save_peak_bytes": peaks,
        "load_seconds": loads,
    }


def together(network: Network, repeats: int) -> dict[str, Any]:
    """One rank of some: messages and wall times of steps and updates, and what the link between processes can do."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    trainer = Trainer(network, rank)
    trainer.begin_to_move(period=6)  # before the first step: positions then leave DDP's broadcasts
    steps, cpu, crowding, updates, peaks, messages = [], [], [], [], [], []
    trainer.step()
    for _ in range(repeats):
        with counted() as in_step:
            cpu.append(_cpu(trainer.step))
        crowding.append(_crowding())
        steps += [_wall(trainer.step) for _ in range(3)]
        crowding.append(_crowding())
        held = _count_peak()
        with counted() as in_update:
            updates.append(_wall(trainer.step))
        peaks.append(resident("VmHWM") - held)
        messages.append(in_update[-3 - 4 * len(portions(network)) :])  # what comes before is the step's own
        trainer.step()  # builds plans
    usual = statistics.median(steps)
    return {
        "ranks": ranks,
        "layers": network.layers,
        "width": network.width,
        "weights": network.weights,
        "step_seconds": steps,
        "cpu_seconds": cpu,
        "crowding": crowding,
        "bytes_per_step": sum(in_step),
        "update_seconds": [seconds - usual for seconds in updates],
        "update_peak_bytes": peaks,
        "update_messages": messages,
        "link": [_wall_of_all_reduce(size) for size in (1, 1 << 20)] if ranks > 1 else None,
    }


def _crowding(rounds: int = 100) -> float:
    """Wall time over CPU time of work without messages, while all ranks do it: how much each waits for a core."""
    matrix = torch.ones(256, 256)
    if dist.is_initialized():
        dist.barrier()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        matrix @ matrix
    return (time.perf_counter() - start) / (time.process_time() - cpu)


def _wall_of_all_reduce(n_floats: int, repeats: int = 30) -> float:
    """The quickest of some: the others waited for a core, which is counted elsewhere."""
    tensor = torch.zeros(n_floats)
    return min(_wall(partial(dist.all_reduce, tensor)) for _ in range(repeats))


def link_of(small: float, large: float, ranks: int, size: int = 4 << 20) -> Link:
    """The link that explains the times of an all-reduce of nothing and of ``size`` bytes.

    Example:
        >>> link_of(2e-3, 2e-3 + 4e-3, ranks=2, size=4_000_000)
        Link(bytes_per_second=1000000000.0, latency=0.001)
    """
    moved = sent(Message("all_reduce", size), ranks)
    return Link(moved / max(large - small, 1e-9), small / (2 * (ranks - 1)))


def check(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model against what ranks did: bytes, and times predicted from one process and from the link of two."""
    one, two = (next(row for row in rows if row["ranks"] == n) for n in (1, 2))
    small, large = two["link"]
    link = link_of(small, large, ranks=2)
    found = []
    for row in rows:
        if row["ranks"] == 1:
            continue
        network, ranks = Network(row["layers"], row["width"]), row["ranks"]
        seen = [seen_in(network, messages) for messages in row["update_messages"]]
        told = [[message.size for message in update_messages(network, RATE, parts)] for parts in seen]
        proposed = statistics.mean(sum(part.proposed for part in parts) for parts in seen)
        candidates = statistics.mean(sum(part.candidates for part in parts) for parts in seen)
        alike = network.width == one["width"]
        crowding = statistics.median(row["crowding"])
        predicted = step_seconds(network, statistics.median(one["cpu_seconds"]), ranks, link, crowding)
        found.append(
            {
                "ranks": ranks,
                "weights": row["weights"],
                "bytes_per_step": row["bytes_per_step"],
                "predicted_bytes_per_step": sum(message.size for message in step_messages(network)),
                "bytes_per_update": statistics.mean(map(sum, row["update_messages"])),
                "predicted_bytes_per_update": statistics.mean(map(sum, told)),
                "update_messages_agree": told == row["update_messages"],
                "proposed": proposed / network.exchanged(RATE),
                "candidates": candidates / network.exchanged(RATE),
                "step_seconds": row["step_seconds"] if alike else None,
                "predicted_step_seconds": predicted if alike else None,
                "crowding": crowding,
                "update_peak_bytes": row["update_peak_bytes"],
                "scratch_per_entry": scratch_per_entry(row),
                "predicted_update_peak_bytes": None if alike else update_bytes(network, scratch_per_entry(two)),
                "update_seconds": row["update_seconds"],
            }
        )
    return found


def seen_in(network: Network, messages: Sequence[int]) -> list[Portion]:
    """What depends on the gradients in the messages of an update: how many entries were proposed and are candidates."""
    starts = range(2, len(messages) - 1, 4)
    pairs = [(messages[start + 1] // 4, messages[start + 3] // 4) for start in starts]
    return [Portion(layers, *pair) for layers, pair in zip(portions(network), pairs, strict=True)]


def scratch_per_entry(row: dict[str, Any]) -> float:
    """Bytes beside the gradients, for each entry of the largest portion of the weights."""
    network = Network(row["layers"], row["width"])
    beside: float = statistics.median(row["update_peak_bytes"]) - update_bytes(network, 0)
    return beside / (update_bytes(network, 1) - update_bytes(network, 0))


def extrapolate(
    alone_rows: Sequence[dict[str, Any]], checks: Sequence[dict[str, Any]], network: Network
) -> dict[str, float]:
    """What the network would take, from the largest of the networks that were measured below it."""
    from_ = alone_rows[-1]
    per_active = network.active / from_["active"]
    per_weight = network.weights / from_["weights"]
    crowd = next(row for row in checks if row["ranks"] == DEVICES)
    k = network.exchanged(RATE) / network.layers
    seen = [Portion(n, int(crowd["proposed"] * k * n), int(crowd["candidates"] * k * n)) for n in portions(network)]
    update = update_messages(network, RATE, seen)
    step = step_messages(network)
    return {
        "state_bytes": from_["state_bytes"] * per_active,
        "step_seconds": statistics.median(from_["step_seconds"]) * per_active,
        "update_seconds": statistics.median(from_["update_seconds"]) * per_weight,
        "update_peak_bytes": statistics.median(from_["update_peak_bytes"]) * per_weight,
        "convert_peak_bytes": from_["convert_peak_bytes"] * per_weight,
        "checkpoint_bytes": from_["checkpoint_bytes"] * per_active,
        "save_seconds": statistics.median(from_["save_seconds"]) * per_active,
        "load_seconds": statistics.median(from_["load_seconds"]) * per_active,
        "shared_update_peak_bytes": update_bytes(network, crowd["scratch_per_entry"]),
        "given_per_step": sum(message.size for message in step),
        "sent_per_step": sum(sent(message, DEVICES) for message in step),
        "transfer_seconds_per_step": transfer_seconds(step, DEVICES, LINK),
        "dense_vi_sent_per_step": sent(Message("all_reduce", 4 * (2 * network.weights + network.biases)), DEVICES),
        "given_per_update": sum(message.size for message in update),
        "sent_per_update": sum(sent(message, DEVICES) for message in update),
        "mask_sent_per_update": sum(sent(message, DEVICES) for message in update[4::4][: len(seen)]),
        "transfer_seconds_per_update": transfer_seconds(update, DEVICES, LINK),
        "dense_update_sent": sent(Message("all_reduce", 4 * network.weights), DEVICES),
    }


def measure(networks: Sequence[Network], billion: Network, checked: Sequence[Network], repeats: int) -> dict[str, Any]:
    """Everything, as the JSON file has it."""
    rows = []
    for network in networks:
        rows.append(in_processes(partial(alone, network, repeats), 1))
        print(
            f"{network.weights:,} weights: {statistics.median(rows[-1]['update_seconds']):.3f} s an update", flush=True
        )
    largest = in_processes(partial(alone, billion, 2), 1)
    print(f"{billion.weights:,} weights: an update takes {largest['update_seconds']} s", flush=True)
    first, second = checked
    cases = [(first, 1), (first, 2), (first, 4), (first, DEVICES), (second, 2), (billion, 2)]
    shared = []
    for network, ranks in cases:
        shared.append(in_processes(partial(together, network, 1 if network is billion else repeats), ranks))
        print(f"{ranks} ranks: {shared[-1]['bytes_per_step']:,} bytes per step", flush=True)
    checks = check(shared)
    below = [row for row in rows if row["layers"] == billion.layers]
    return {
        "kind": KIND,
        "environment": surroundings(WALL),
        "cores": len(os.sched_getaffinity(0)),
        "density": billion.density,
        "rows": ROWS,
        "few_rows": FEW,
        "rate": RATE,
        "alone": rows,
        "billion": largest,
        "ranks": shared,
        "checks": checks,
        "devices": DEVICES,
        "link": {"bytes_per_second": LINK.bytes_per_second, "latency": LINK.latency},
        "extrapolated": extrapolate(below, checks, billion),
    }


def _converted(network: Network) -> nn.Module:
    width, by_layer = network.width, network.weights > WHOLE

    def layer() -> nn.Module:
        dense = nn.Linear(width, width)
        return gossamer.bayesianize(dense, density=network.density) if by_layer else dense

    layers = [part for _ in range(network.layers) for part in (layer(), nn.ReLU())][:-1]
    model = nn.Sequential(*layers)
    return model if by_layer else gossamer.bayesianize(model, density=network.density)


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _count_peak() -> int:
    """Count the peak of resident memory from here, above what is returned. Linux with glibc only."""
    ctypes.CDLL(None).malloc_trim(0)  # otherwise what was freed is used again, and not seen
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--quick", action="store_true", help="tiny networks, to see that it runs")
    args = parser.parse_args()
    if args.quick:
        found = measure(QUICK, QUICK[1], QUICK, repeats=1)
    else:
        found = measure(NETWORKS, BILLION, (CHECKED, SHARED), repeats=3)
    for name, table in scale_tables(found).items():
        print(f"\n{name}\n{table.to_markdown()}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
