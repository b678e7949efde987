"""Training steps on a GPU: deterministic, dense VI, SSVI and the released style, in one process, taking turns.

    python -m benchmarks.gpu RESULTS.json [--quick]

A turn is a period: ordinary steps in a row, timed together, then one step that moves the subspace, where there is one.
Every second round goes in reverse order, and ratios are taken within rounds (``timing.py``).
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from benchmarks import cells
from benchmarks.contenders import CASES, Case, Contender, build, bytes_in_training, checkpoint_bytes, random_images
from benchmarks.environment import surroundings
from benchmarks.networks import RESNET
from benchmarks.place import GPU, Place
from benchmarks.progress import Progress
from benchmarks.results import EXAMPLES, PLAIN, RELEASED, SSVI, Results, TrainingCost
from benchmarks.timing import laps, milliseconds, undisturbed
from gossamer.models import resnet18
from gossamer.types import Task

__all__ = ["FULL", "QUICK", "Plan", "measure"]

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # where a compiler keeps what it has made


@dataclass(frozen=True)
class Plan:
    """Which ways are measured, of which network, and how often.

    Args:
        cases: The ways.
        rounds: Turns of each.
        batch: Images a step.
        period: Steps of a turn; the last of them is an update.
        subject: Name of the network.
        network: Builds it.
        n_batches: Of an epoch, all full, so that every step is of one kind; ``None`` is as many as CIFAR has.
    """

    cases: tuple[Case, ...] = CASES
    rounds: int = 11
    batch: int = 128
    period: int = 50
    subject: str = RESNET
    network: Callable[[], nn.Module] = resnet18
    n_batches: int | None = None


FULL = Plan()
QUICK = replace(FULL, cases=tuple(case for case in CASES if case.way in (SSVI, PLAIN, RELEASED)), rounds=7, period=25)
"""The ways that have bars."""


class _Ready(NamedTuple):
    """A contender that has been set up, and what that took."""

    case: Case
    contender: Contender
    setup_seconds: float
    peak_bytes: int
    held_bytes: int


def measure(plan: Plan = FULL, place: Place = GPU, *, quiet: bool = False) -> Results:
    """Measure everything in the plan.

    Example:
        >>> from benchmarks.place import CPU
        >>> tiny = Plan(CASES[:1], rounds=1, batch=4, period=2, subject="tiny", n_batches=4,
        ...             network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
        >>> [row.way for row in measure(tiny, CPU, quiet=True).training]
        ['SSVI 5 %']
    """
    if plan.rounds < 1 or plan.batch < 1 or plan.period < 2:
        given = f"{plan.rounds}, {plan.batch} and {plan.period}"
        raise ValueError(f"rounds and batch count from 1, period from 2; got {given}")
    with _surprises_switched_off(), Progress(len(plan.cases) + 1, quiet=quiet) as progress:
        results = Results("gpu", plan.rounds, surroundings(place.clock))
        n_batches = plan.n_batches or math.ceil(EXAMPLES / plan.batch)
        task = random_images(n_batches * plan.batch, place.device)
        ready = []
        for case in plan.cases:
            progress.begin(f"{plan.subject}, {case.way}")
            one = _set_up(case, plan, task, place)
            if one.contender.is_captured:
                ready.append(one)
            else:
                results.notes.append(f"{case.way} is left out: its steps could not be captured")
            progress.end(f"set up in {one.setup_seconds:.1f} s")
        progress.begin(f"{plan.rounds} rounds")
        times = _take_turns(ready, plan, place)
        results.training.extend(_row(one, plan, *times[one.case.way]) for one in ready)
        progress.end(", ".join(f"{row.way} {cells.milliseconds(median(row.ms))}" for row in results.training))
    results.notes.append(f"batch {plan.batch}, turns of {plan.period} steps")
    results.notes.append("set-up is from cold for the first, the others find some of what it has compiled")
    return results


def _set_up(case: Case, plan: Plan, task: Task, place: Place) -> _Ready:
    """Build, take the first step, then two periods: one to warm up, one to see what training holds."""
    place.tidy()
    allocated, reserved = place.allocated(), place.reserved()
    contender: Contender | None = None

    def first_step() -> None:
        nonlocal contender
        contender = build(case, task, plan.network, plan.batch, plan.period, place)
        contender.step()

    seconds = laps(first_step, 1, place.clock)[0] / 1e3
    assert contender is not None
    _steps(contender, plan.period - 1)
    peak = place.allocated() - allocated
    place.tidy()
    _steps(contender, plan.period)
    return _Ready(case, contender, seconds, peak, place.reserved() - reserved)


def _take_turns(ready: Sequence[_Ready], plan: Plan, place: Place) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds of a step, and of an update beyond it, in each round."""
    times: dict[str, tuple[list[float], list[float]]] = {one.case.way: ([], []) for one in ready}
    for i in range(plan.rounds):
        with undisturbed():
            for one in ready[:: -1 if i % 2 else 1]:
                step = milliseconds(one.contender.step, plan.period - 1, place.clock)
                last = milliseconds(one.contender.step, 1, place.clock)
                times[one.case.way][0].append(step)
                if one.case.moves:
                    times[one.case.way][1].append(round(last - step, 5))
    return times


def _row(one: _Ready, plan: Plan, ms: list[float], update_ms: list[float]) -> TrainingCost:
    return TrainingCost(
        plan.subject,
        one.case.way,
        plan.batch,
        ms,
        update_ms,
        round(one.setup_seconds, 2),
        bytes_in_training(one.contender),
        one.contender.working_bytes(),
        checkpoint_bytes(one.contender),
        one.peak_bytes,
        one.held_bytes,
    )


def _steps(contender: Contender, count: int) -> None:
    for _ in range(count):
        contender.step()


@contextmanager
def _surprises_switched_off() -> Iterator[None]:
    """TF32 for those who compute in float32, and a compiler that remembers nothing of earlier runs."""
    precision, folders = torch.get_float32_matmul_precision(), {name: os.environ.get(name) for name in CACHES}
    torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as fresh:
        os.environ |= {name: str(Path(fresh) / name.lower()) for name in CACHES}
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            for name, folder in folders.items():
                os.environ.pop(name)
                if folder is not None:
                    os.environ[name] = folder


def _main(given: Sequence[str]) -> None:
    """Without the command line's libraries: write the results, print the tables."""
    from benchmarks.pages import document

    names = [word for word in given if not word.startswith("--")]
    if len(names) != 1 or set(given) - {*names, "--quick"}:
        raise SystemExit("usage: python -m benchmarks.gpu RESULTS.json [--quick]")
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device")
    results = measure(QUICK if "--quick" in given else FULL)
    results.write(Path(names[0]))
    print(document(results))


if __name__ == "__main__":
    _main(sys.argv[1:])
