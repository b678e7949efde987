"""What the native kernels do for a run: a training step of its network with them, and with dense products."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from gossamer import kernels
from gossamer.bench import cells
from gossamer.bench.timing import THREAD, WALL, Spread, alternate, speedup
from gossamer.kernels import library
from gossamer.layers import sparse_weights
from gossamer.record import Run
from gossamer.runs.starting import launch
from gossamer.runs.training import restore, settings_of

__all__ = ["StepTimes", "report_steps", "time_steps"]

ROUNDS = 21


class StepTimes(NamedTuple):
    """Milliseconds of a step either way, and how many times faster the native kernels make it.

    Example:
        >>> print(StepTimes(2.0, 5.0, Spread(2.4, 2.5, 2.6)))
        a step with native kernels 2.00 ms, with dense products 5.00 ms: 2.5x
    """

    native_ms: float
    dense_ms: float
    gain: Spread

    def __str__(self) -> str:
        native, dense = cells.milliseconds(self.native_ms), cells.milliseconds(self.dense_ms)
        return f"a step with native kernels {native}, with dense products {dense}: {cells.times(self.gain.median)}"


def report_steps(folders: Sequence[Path], say: Callable[[str], None]) -> None:
    """Time the steps of one run of each kind, say it in a line each, and note it in their results for the report."""
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
            run.write_result(result | {"cost": result.get("cost", {}) | {"native_speedup": times.gain.median}})


def time_steps(run: Run) -> StepTimes | None:
    """Steps of a run's network on this CPU as trained and with dense products, taking turns; nothing is written.

    ``None`` where there is nothing to compare: a network without inactive weights, or no native kernels.
    """
    settings = settings_of(run, device="cpu", ranks=1)
    with torch.random.fork_rng(devices=[]):  # a restored training takes the random state along
        training = restore(run, settings, settings.load_task(), launch(settings)).training
        is_sparse = any(weight.support.position is not None for weight in sparse_weights(training.model).values())
        if not is_sparse or not library.LIBRARY:
            return None

        def dense() -> None:
            with kernels.use("dense"):
                training.advance()

        clock = THREAD if torch.get_num_threads() == 1 else WALL
        times = alternate({"native": training.advance, "dense": dense}, ROUNDS, clock)
    return StepTimes(median(times["native"]), median(times["dense"]), speedup(times["dense"], times["native"]))
