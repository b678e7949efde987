"""How much the native kernels save a run: time a training step with them, and with dense products."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from gossamer import kernels
from gossamer.kernels import library
from gossamer.lab.record import Run
from gossamer.lab.runs.job import restore, settings_of
from gossamer.layers import sparse_weights

ROUNDS = 21


class StepTimes(NamedTuple):
    """Median milliseconds of a step either way, and the median speed-up over the rounds."""

    native_ms: float
    dense_ms: float
    speedup: float

    def __str__(self) -> str:
        native, dense = (f"{value:#.3g}" for value in (self.native_ms, self.dense_ms))
        return f"a step with native kernels {native} ms, with dense products {dense} ms: {self.speedup:.1f}x"


def report_steps(folders: Sequence[Path], say: Callable[[str], None]) -> None:
    """Time the steps of one run of each kind, print a line for each, and store the speed-up for the report."""
    if not library.LIBRARY:
        say("the native kernels are not built here, every step used dense products (a C++ compiler builds them)")
        return
    firsts: dict[str, Run] = {}
    for folder in folders:
        run = Run.open(folder)
        kind = {key: value for key, value in run.config.items() if key != "seed"}
        firsts.setdefault(json.dumps(kind, sort_keys=True, default=str), run)
    for run in firsts.values():
        times = time_steps(run)
        if times is not None:
            label, _, _ = run.folder.name.rpartition("-")  # a comparison adds the seed
            say(f"{label or run.folder.name}: {times}")
            result = run.result() or {}
            run.write_result(result | {"cost": result.get("cost", {}) | {"native_speedup": times.speedup}})


def time_steps(run: Run) -> StepTimes | None:
    """Time steps of a run's network on this CPU, with native kernels and with dense products; nothing is written.

    The two take turns, so that a slow spell of the machine hits both, and a ratio is taken within a round. ``None``
    where there is nothing to compare: a network without inactive weights, or no native kernels.
    """
    settings = settings_of(run, device="cpu", ranks=1)
    training = restore(run, settings).training
    is_sparse = any(weight.support.position is not None for weight in sparse_weights(training.model).values())
    if not is_sparse or not library.LIBRARY:
        return None
    # One thread's CPU time is disturbed least by other work on the machine.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    native, dense = list[float](), list[float]()
    for number in range(-1, ROUNDS):
        for times, choice in ((native, kernels.in_use()), (dense, "dense"))[:: -1 if number % 2 else 1]:
            with kernels.use(choice):
                start = clock()
                training.advance()
                times.append(1e3 * (clock() - start))
    native, dense = native[1:], dense[1:]  # the first round warms up
    return StepTimes(median(native), median(dense), median(d / n for n, d in zip(native, dense, strict=True)))
