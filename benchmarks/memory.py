"""Memory of training: bytes counted tensor by tensor, files as they are written, and the peak of a whole process.

    python -m benchmarks.memory '{"network": "ResNet-18", "way": "sparse 0.05", "batch": 32, "steps": 4}'

trains one network for a few steps and prints how much memory that took. Each network gets a process of its own, because
an allocator seldom returns to the system what it once took.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import benchmarks
import gossamer
from benchmarks.measurements import Footprint
from benchmarks.networks import DIGIT, IMAGE, MLP, RESNET, network_for, optimizer_for, train_step, wide_mlp
from gossamer.kernels import library, native
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.models import resnet18
from gossamer.sparsity import Subspace
from gossamer.train import checkpoint

__all__ = ["KNOWN", "MemoryCase", "bytes_per_entry", "footprint", "measure_memory", "training_bytes"]


class MemoryCase(NamedTuple):
    """A network (one of ``KNOWN``) trained in some way for a few steps, in several fresh processes."""

    network: str
    way: str
    batch: int
    steps: int = 4
    runs: int = 3


def measure_memory(case: MemoryCase, threads: int = 1) -> Footprint:
    """Train in fresh processes; the peak is above what each held after its imports."""
    found = [_in_a_process(case, threads) for _ in range(case.runs)]
    peaks = [one.pop("peak_bytes") for one in found]
    return Footprint(case.network, case.way, peak_bytes=peaks, **found[0])


def _in_a_process(case: MemoryCase, threads: int) -> dict[str, Any]:
    told = json.dumps({"network": case.network, "way": case.way, "batch": case.batch, "steps": case.steps})
    # The benchmarks and the gossamer of this process, however they were found.
    own = (Path(module.__file__).parents[1] for module in (benchmarks, gossamer) if module.__file__)
    path = os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", told],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise OSError(f"the process that trains {case.network}, {case.way}, to measure its memory failed: {reason}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


KNOWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {RESNET: (resnet18, IMAGE), MLP: (wide_mlp, DIGIT)}
UPDATE_PERIOD = 2


def footprint(network: str, way: str, batch: int, steps: int) -> dict[str, Any]:
    """Train by SGD with momentum, moving the subspace every other step if there is one; count bytes, then save.

    Example:
        >>> found = footprint(MLP, "sparse 0.05", batch=2, steps=1)
        >>> found["index_bytes"] > 4 * 93_000
        True
    """
    optimizer_for(nn.Linear(1, 1))  # the first optimizer of a process imports a hundred modules of torch
    before = resident("VmRSS")
    build, shape = KNOWN[network]
    torch.manual_seed(0)
    model = network_for(build, way)
    optimizer = optimizer_for(model)
    x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
    moves = any(weight.support.position is not None for weight in sparse_weights(model).values())
    subspace = (
        Subspace(model, optimizer, total_steps=steps + 2, update_period=UPDATE_PERIOD, until=1.0) if moves else None
    )
    for _ in range(steps):
        train_step(model, optimizer, x, y)
        if subspace is not None:
            subspace.step()
    peak = resident("VmHWM") - before
    return {
        "training_bytes": training_bytes(model, optimizer),
        "index_bytes": index_bytes(model),
        **_file_bytes(model, optimizer),
        "peak_bytes": peak,
        "state_bytes": bytes_per_entry(model, optimizer),
    }


def training_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of parameters, gradients, curvatures and optimizer state."""
    parameters = list(model.parameters())
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    curved = [weight for weight in sparse_weights(model).values() if isinstance(weight, CurvatureWeight)]
    curvatures = [vector for weight in curved for vector in (weight.curvature, weight.grad_square)]
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    return _bytes([*parameters, *grads, *curvatures, *state])


def bytes_per_entry(model: nn.Module, optimizer: Optimizer) -> float:
    """Bytes of an active entry between two steps: its vectors and the optimizer's state of them, not its position."""
    weights = list(sparse_weights(model).values())
    vectors = [getattr(weight, name) for weight in weights for name in weight.vectors]
    state = [value for vector in vectors for value in optimizer.state.get(vector, {}).values()]
    kept = [value for value in state if isinstance(value, Tensor) and value.dim()]  # not the count of Adam's steps
    return _bytes([*vectors, *kept]) / max(1, sum(weight.support.n_active for weight in weights))


def index_bytes(model: nn.Module) -> int:
    """Bytes of the index of active entries: positions and the kernels' plans of them, or a mask."""
    weights = sparse_weights(model).values()
    positions = [weight.support.position for weight in weights if weight.support.position is not None]
    masks = [mask for weight in weights if isinstance(mask := getattr(weight, "mask", None), Tensor)]
    plans = [plan for position in positions for plan in native.plans_of(position)]
    return _bytes([*positions, *masks]) + sum(int(library.LIBRARY["bytes"](plan.address)) for plan in plans)


def _file_bytes(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    """Sizes of the files that ``gossamer.train.checkpoint.save`` writes."""
    states: dict[str, dict[str, Any]] = {
        "checkpoint_bytes": {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        "model_bytes": {"model": model.state_dict()},
    }
    with tempfile.TemporaryDirectory() as folder:
        return {name: checkpoint.save(Path(folder) / name, state, 1).stat().st_size for name, state in states.items()}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def resident(key: str) -> int:
    """Resident memory of this process now (``VmRSS``) or at its highest (``VmHWM``), in bytes.

    Without /proc the peak so far stands for both: before there is a network they are the same.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        import resource  # not on Windows, and needed only without /proc

        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest if sys.platform == "darwin" else 1024 * highest
    found = re.search(rf"^{key}:\s*(\d+) kB$", status, re.MULTILINE)
    assert found is not None  # Linux has both lines
    return 1024 * int(found[1])


if __name__ == "__main__":
    print(json.dumps(footprint(**json.loads(sys.argv[1]))))
