"""Training steps on a GPU: deterministic, dense VI, SSVI and the released style, in one process, taking turns.

A turn is one period: ordinary steps, timed together, then one step that moves the subspace, if there is one.
Every second round goes in reverse order, and ratios are taken within rounds (``timing.py``).
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from benchmarks import cells
from benchmarks.contenders import (
    CASES,
    GPU,
    Contender,
    ContenderCase,
    Device,
    build,
    bytes_in_training,
    checkpoint_bytes,
    random_images,
)
from benchmarks.environment import surroundings
from benchmarks.measurements import DRAWN, EXAMPLES, PLAIN, RELEASED, SSVI, Measurements, TrainingCost
from benchmarks.networks import RESNET
from benchmarks.timing import laps, milliseconds, undisturbed
from gossamer._text.terminal import Progress
from gossamer.models import resnet18
from gossamer.types import Task

__all__ = ["FULL", "QUICK", "GpuPlan", "measure"]

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # caches of compiled code


@dataclass(frozen=True)
class GpuPlan:
    """Which ways are measured, of which network, and how often.

    Args:
        cases: The ways.
        rounds: Turns of each.
        batch: Images per step.
        period: Steps per turn; the last one is an update.
        subject: Name of the network.
        network: Builds it.
        n_batches: Batches per epoch, all full, so that all steps are alike; ``None``: as many as CIFAR has.
    """

    cases: tuple[ContenderCase, ...] = CASES
    rounds: int = 11
    batch: int = 128
    period: int = 50
    subject: str = RESNET
    network: Callable[[], nn.Module] = resnet18
    n_batches: int | None = None


FULL = GpuPlan()
BARRED = (SSVI, DRAWN, PLAIN, RELEASED)
QUICK = replace(FULL, cases=tuple(case for case in CASES if case.way in BARRED), rounds=7, period=25)
"""The ways that have bars."""


class _Ready(NamedTuple):
    """A contender after its set-up, and what the set-up took."""

    case: ContenderCase
    contender: Contender
    setup_seconds: float
    peak_bytes: int
    held_bytes: int


def measure(plan: GpuPlan = FULL, device: Device = GPU, *, quiet: bool = False) -> Measurements:
    """Measure everything in the plan.

    Example:
        >>> from benchmarks.contenders import CPU
        >>> tiny = GpuPlan(CASES[:1], rounds=1, batch=4, period=2, subject="tiny", n_batches=4,
        ...             network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
        >>> [row.way for row in measure(tiny, CPU, quiet=True).training]
        ['SSVI 5 %']
    """
    if plan.rounds < 1 or plan.batch < 1 or plan.period < 2:
        given = f"{plan.rounds}, {plan.batch} and {plan.period}"
        raise ValueError(f"rounds and batch count from 1, period from 2; got {given}")
    n_rows = len(plan.cases) + 1
    with _surprises_switched_off(), Progress("benchmarks", n_rows, lines=n_rows, quiet=quiet) as progress:
        results = Measurements("gpu", plan.rounds, surroundings(device.clock))
        n_batches = plan.n_batches or math.ceil(EXAMPLES / plan.batch)
        task = random_images(n_batches * plan.batch, device.device)
        ready = []
        for number, case in enumerate(plan.cases, 1):
            progress.begin(f"[{number}/{n_rows}] {plan.subject}, {case.way}", done=number - 1)
            one = _set_up(case, plan, task, device)
            if one.contender.is_captured:
                ready.append(one)
            else:
                results.notes.append(f"{case.way} is left out: its steps could not be captured")
            progress.update(number, partial("set up in {:.1f} s".format, one.setup_seconds))
        progress.begin(f"[{n_rows}/{n_rows}] {plan.rounds} rounds", done=n_rows - 1)
        times = _take_turns(ready, plan, device)
        results.training.extend(_row(one, plan, *times[one.case.way]) for one in ready)
        said = ", ".join(f"{row.way} {cells.milliseconds(median(row.ms))}" for row in results.training)
        progress.update(n_rows, lambda: said)
    results.notes.append(f"batch {plan.batch}, turns of {plan.period} steps")
    results.notes.append("set-up is from cold for the first, the others find some of what it has compiled")
    return results


def _set_up(case: ContenderCase, plan: GpuPlan, task: Task, device: Device) -> _Ready:
    """Build it and take the first step, then two periods: one to warm up, one to measure the memory of training."""
    device.tidy()
    allocated, reserved = device.allocated(), device.reserved()
    contender: Contender | None = None

    def first_step() -> None:
        nonlocal contender
        contender = build(case, task, plan.network, plan.batch, plan.period, device)
        contender.step()

    seconds = laps(first_step, 1, device.clock)[0] / 1e3
    assert contender is not None
    _steps(contender, plan.period - 1)
    peak = device.allocated() - allocated
    device.tidy()
    _steps(contender, plan.period)
    return _Ready(case, contender, seconds, peak, device.reserved() - reserved)


def _take_turns(ready: Sequence[_Ready], plan: GpuPlan, device: Device) -> dict[str, tuple[list[float], list[float]]]:
    """Milliseconds of a step, and the extra milliseconds of an update, in each round."""
    times: dict[str, tuple[list[float], list[float]]] = {one.case.way: ([], []) for one in ready}
    for i in range(plan.rounds):
        with undisturbed():
            for one in ready[:: -1 if i % 2 else 1]:
                step = milliseconds(one.contender.step, plan.period - 1, device.clock)
                last = milliseconds(one.contender.step, 1, device.clock)
                times[one.case.way][0].append(step)
                if one.case.moves:
                    times[one.case.way][1].append(round(last - step, 5))
    return times


def _row(one: _Ready, plan: GpuPlan, ms: list[float], update_ms: list[float]) -> TrainingCost:
    return TrainingCost(
        plan.subject,
        one.case.way,
        plan.batch,
        ms,
        update_ms,
        round(one.setup_seconds, 4),
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
    """Use TF32 for float32, and empty compiler caches, so that set-up times do not depend on earlier runs."""
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
