"""What one of two processes on one device does in ``test_captured_ranks``: train with the other, by gloo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gossamer
from gossamer import methods
from gossamer.distributed import OneProcess
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.likelihoods import Categorical
from gossamer.train import Training
from gossamer.train.capture import CapturedPasses, CapturedSteps
from gossamer.train.capture.graphs import undone
from gossamer.types import Task

STEPS = 14
BATCH = 17  # shares of 9 and 8, and a last batch of 7: every share has another size
SPARSE = {"density": 0.3, "update_period": 5, "until": 1.0}
# So that noise that is drawn in another order makes no difference: neither to a pass, nor to what is removed.
QUIET = {"temperature": 1e-14, "removal": "magnitude"}
# A method, its options, and what it is trained on. The noise of images lies in memory in another order in graphs.
Case = tuple[str, dict[str, Any], str]
WHOLE: dict[str, Case] = {  # steps that are captured whole
    "noise of outputs": ("ssvi", SPARSE | QUIET | {"noise": "local"}, "images"),
    "noise of weights": ("ssvi", SPARSE | QUIET | {"noise": "weights"}, "images"),
    "std by gradient": ("ssvi", SPARSE | {"init_std": 1e-7, "std": "gradient", "kl_weight": 1e-9}, "images"),
    "points": ("rigl", SPARSE, "images"),
    "dense": ("sgd", {}, "images"),
}
PASSES: dict[str, Case] = {  # of which the passes are captured
    "a sampler": ("csgld", {}, "images"),
    "a variational optimizer": ("ivon", {"density": 0.3, "update_period": 4}, "images"),
    "a penalty": ("vd", {}, "rows"),
    "recurrent layers": ("ssvi", SPARSE | QUIET, "sequences"),
}
CASES = WHOLE | PASSES
SAME_NOISE: dict[str, Case] = {  # without a graph, working weights draw the noise of plain steps
    "the same noise": ("ssvi", SPARSE | {"noise": "local"}, "rows"),
    "the same noise, std by gradient": ("ssvi", SPARSE | {"noise": "local", "std": "gradient"}, "rows"),
}


class OneOfTwo(OneProcess):
    """A rank on a device that it shares with the other one: Lightning Fabric wants one device for each."""

    def __init__(self, device: str, rank: int) -> None:
        super().__init__(device)
        self.global_rank, self.world_size, self.is_global_zero = rank, 2, rank == 0

    def setup(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        module, optimizer = super().setup(model, optimizer)
        # In a side stream, as Lightning Fabric does it: graphs cannot wait for the default one.
        with torch.cuda.stream(torch.cuda.Stream()) if self.device.type == "cuda" else nullcontext():
            return DistributedDataParallel(module), optimizer


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.GRU(18, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x)[0][:, -1])


def network(kind: str) -> nn.Module:
    if kind == "sequences":
        return Recurrent()
    first = (nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)) if kind == "images" else (nn.Linear(108, 128),)
    return nn.Sequential(*first, nn.ReLU(), nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 4))


def training(case: Case, fabric: OneProcess, *, captures: bool = False) -> Training:
    method, options, kind = case
    torch.manual_seed(0)
    shape = {"images": (3, 6, 6), "rows": (108,), "sequences": (6, 18)}[kind]
    split = torch.randn(58, *shape), torch.randint(4, (58,))
    task = Task(split, split, split, Categorical(), 4)
    parts = methods.build(method, task, STEPS, **options)
    return Training(parts, network(kind), task, STEPS, fabric, batch_size=BATCH, seed=3, captures=captures)


def captured(training: Training, *, passes: bool = False, captures: bool = True) -> Training:
    """Let it take captured steps, or captured passes, on a CPU as well."""
    parts = training.model, training.inner_optimizer, training.task, training.penalty
    training.taking = (
        CapturedPasses(training.eager, captures=captures)
        if passes
        else CapturedSteps(*parts, torch.float32, captures=captures, compiles=False)
    )
    return training


class Replayed:
    """What a CUDA graph is, for a CPU: tensors keep their places, and a replay leaves no other trace of its Python.

    ``fails`` lets the capture with this number fail.
    """

    training: Training
    fails: int | None = None
    made = 0

    def __init__(self, function: Callable[[], None], state: Any) -> None:
        type(self).made += 1
        self.function = function
        with undone(state):
            function()
            if type(self).made == self.fails:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            function()
        self.static = {leaf: leaf.grad for leaf in self._leaves()}

    def _leaves(self) -> Iterator[Tensor]:
        yield from self.training.model.parameters()
        for weight in sparse_weights(self.training.model).values():
            yield from weight.dense_copy.leaves if weight.dense_copy is not None else ()
            if isinstance(weight, CurvatureWeight) and weight.estimates.leaf is not None:
                yield weight.estimates.leaf

    def replay(self) -> None:
        before = [(leaf, leaf.grad) for leaf in self.static]
        self.function()
        for leaf, grad in before:
            if self.static[leaf] is not None:
                self.static[leaf].copy_(leaf.grad)
            leaf.grad = grad


@contextmanager
def replayed(training: Training, fails: int | None = None) -> Iterator[type[Replayed]]:
    """Graphs that run on a CPU."""
    kind = type("Replayed", (Replayed,), {"training": training, "fails": fails, "made": 0})
    with (
        mock.patch("gossamer.train.capture.steps.Graph", kind),
        mock.patch("gossamer.train.capture.passes.Graph", kind),
    ):
        yield kind


def end(training: Training) -> dict[str, Any]:
    """The losses of all ranks together, where a training ends, and what its subspace did."""
    losses = []
    for step in range(STEPS):
        torch.manual_seed(2 * step + dist.get_rank())
        nll = training.advance()["nll"].detach().cpu()
        dist.all_reduce(nll)
        losses.append(float(nll) / 2)
    for _ in training.run():
        pass
    state = {name: value.cpu().clone() for name, value in training.model.state_dict().items()}
    return {"losses": losses, "state": state, "record": [rule.record for rule in training.rules]}


def on_cpu(rank: int, ends: dict[str, Any]) -> None:
    fabric = OneOfTwo("cpu", rank)
    for name, case in SAME_NOISE.items():
        ends[name, "plain"] = end(training(case, fabric))
        ends[name, "captured"] = end(captured(training(case, fabric), captures=False))
    for name, case in CASES.items():
        ends[name, "plain"] = end(training(case, fabric))
        for kind in ("captured", "half captured"):
            one = captured(training(case, fabric), passes=name in PASSES)
            # Of the two ranks one fails to capture a graph.
            with replayed(one, fails=2 if kind == "half captured" and rank == 1 else None) as graphs:
                ends[name, kind] = end(one) | {"graphs": graphs.made, "captures": one.taking.captures}


def on_gpu(rank: int, ends: dict[str, Any]) -> None:
    fabric = OneOfTwo("cuda", rank)
    for name, case in CASES.items():
        ends[name, "plain"] = end(training(case, fabric))
        one = training(case, fabric, captures=True)
        ends[name, "captured"] = end(one) | {"captures": one.taking is not one.eager and one.taking.captures}


def worker(rank: int, folder: str, device: str) -> None:
    torch.set_num_threads(1)
    said = Path(folder, f"rank{rank}.log")
    logging.basicConfig(filename=said, level=logging.WARNING, format="%(message)s")
    dist.init_process_group("gloo", f"file://{folder}/meeting", timeout=timedelta(seconds=120), rank=rank, world_size=2)
    ends: dict[str, Any] = {}
    with gossamer.kernels.use("dense"):  # whose noise is torch's, drawn layer by layer as that of working weights
        (on_cpu if device == "cpu" else on_gpu)(rank, ends)
    torch.save({"ends": ends, "said": said.read_text()}, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()
