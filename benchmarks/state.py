"""Bytes that a training holds and saves: parameters, optimizer state, positions, and the checkpoint file.

    python -m benchmarks.state results/bytes.json

Each method of the table trains a ResNet-18 for a step, on noise of CIFAR's shape: sizes depend on neither data nor
device. The checkpoint is the file that ``gossamer train`` writes, all that an exact continuation needs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import cells
from benchmarks.memory import bytes_per_entry
from gossamer import __version__, methods
from gossamer._text.terminal import Table
from gossamer.files.atomic import json_by_rows
from gossamer.lab.record import write_atomically
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.likelihoods import Categorical
from gossamer.models import resnet18
from gossamer.train import Training, checkpoint
from gossamer.types import Task

__all__ = ["CASES", "StateBytes", "StateCase", "measure_state", "state_table", "write_states"]

KIND = "bytes"
STEPS = 100  # the length of the training: long enough that the first step is no update
BATCH = 2


@dataclass(frozen=True)
class StateCase:
    """A method and its options."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StateBytes:
    """The counts of a case."""

    label: str
    optimizer: str
    parameters: int
    optimizer_state: int
    positions: int
    buffers: int  # of batch normalisation
    checkpoint: int
    curvatures: int = 0
    per_entry: float = 0.0  # of an active weight, without its position; 0 for a plain network

    @property
    def memory(self) -> int:
        """Bytes that stay in memory between two steps, without gradients, which have the size of the parameters."""
        return self.parameters + self.curvatures + self.optimizer_state + self.positions + self.buffers


REFERENCE = {"mode": "reference"}
CASES = (
    StateCase("dense VI", "vi", REFERENCE),
    StateCase("SSVI 10 %", "ssvi", REFERENCE | {"density": 0.1}),
    StateCase("SSVI 5 %", "ssvi", REFERENCE | {"density": 0.05}),
    StateCase("dense VI, default mode", "vi"),
    StateCase("SSVI 5 %, default mode", "ssvi", {"density": 0.05}),
    StateCase("deterministic", "sgd"),
    StateCase("RigL 5 %", "rigl", {"density": 0.05}),
)


def measure_state(case: StateCase, model: nn.Module, shape: Sequence[int], n_outputs: int = 10) -> StateBytes:
    """Train for a step, count tensor by tensor, save a checkpoint.

    Example:
        >>> from gossamer.models import mlp
        >>> found = measure_state(StateCase("sparse", "ssvi", {"density": 0.5}), mlp(8, (4,), 2), (8,), 2)
        >>> found.parameters, found.positions, found.curvatures  # 16 + 4 means, 4 + 2 biases
        (104, 80, 160)
    """
    x, y = torch.randn(2 * BATCH, *shape), torch.arange(2 * BATCH) % n_outputs
    task = Task((x, y), (x, y), (x, y), Categorical(), n_outputs)
    method = methods.build(case.method, task, STEPS, **case.options)
    training = Training(method, model, task, STEPS, batch_size=BATCH)
    training.advance()
    positions = _positions(training.model)
    weights = sparse_weights(training.model).values()
    curved = [weight for weight in weights if isinstance(weight, CurvatureWeight)]
    curvatures = [vector for weight in curved for vector in (weight.curvature, weight.grad_square)]
    kept = {id(tensor) for tensor in (*positions, *curvatures)}
    buffers = [buffer for buffer in training.model.buffers() if id(buffer) not in kept]
    state = [value for entry in training.optimizer.state.values() for value in entry.values()]
    with tempfile.TemporaryDirectory() as folder:
        file = checkpoint.save(Path(folder), {"training": training.state_dict()}, training.step)
        n_file = file.stat().st_size
    return StateBytes(
        case.label,
        type(training.optimizer).__name__,
        _bytes(training.model.parameters()),
        _bytes(value for value in state if isinstance(value, Tensor)),
        _bytes(positions),
        _bytes(buffers),
        n_file,
        _bytes(curvatures),
        bytes_per_entry(training.model, training.optimizer),
    )


def state_table(states: Sequence[StateBytes]) -> Table:
    """Megabytes, and their share of those of the first row."""
    first = states[0]

    def line(row: StateBytes) -> list[str]:
        pairs = [
            (row.parameters, first.parameters),
            (row.curvatures, None),
            (row.optimizer_state, first.optimizer_state),
            (row.positions, None),
            (row.memory, first.memory),
            (row.checkpoint, first.checkpoint),
        ]
        of_entry = f"{row.per_entry:g} B" if row.per_entry else "–"
        return [row.label, row.optimizer, *(cells.megabytes(value, dense) for value, dense in pairs), of_entry]

    head = ["network", "optimizer", "parameters", "curvatures", "optimizer state", "positions", "in memory"]
    head += ["checkpoint file", "an active weight"]
    note = (
        f"MB (a million bytes), in brackets the share of {first.label}. In memory: the four and the statistics of BN. "
        "An active weight: its vectors and what the optimizer keeps of them, without its position."
    )
    return Table("Bytes of a training", note, head, [line(row) for row in states], 2)


def write_states(path: Path, states: Sequence[StateBytes]) -> None:
    """Write the counts, one line per row, with the versions they were made with."""
    environment = {"gossamer": __version__, "torch": torch.__version__}
    content = {"kind": KIND, "environment": environment, "rows": [asdict(row) for row in states]}
    write_atomically(path, json_by_rows(content))


def _positions(model: nn.Module) -> list[Tensor]:
    weights = sparse_weights(model).values()
    return [weight.support.position for weight in weights if weight.support.position is not None]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


if __name__ == "__main__":
    counted = [measure_state(case, resnet18(), (3, 32, 32)) for case in CASES]
    write_states(Path(sys.argv[1]), counted)
    print(state_table(counted).to_text())
