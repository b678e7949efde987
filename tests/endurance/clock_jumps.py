"""An attack on the wall clock of a run, which returns "" for a try that held, "lost: …" or "wrong: …"."""

from __future__ import annotations

import datetime
import math
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gossamer.lab.record import Run
from tests.endurance.attacked import EACH_STEP, N_STEPS, Ground, continued, kill, start, train_command, wait_for_step
from tests.endurance.intercepted import intercept

__all__ = ["JumpingClock", "clock_jumps", "implausible"]

HOUR, DECADE = 3.6e3, 3.2e8  # seconds: the smallest and the largest jump


def clock_jumps(ground: Ground) -> str:
    """A kill and a resume while the clock is set ahead and back by hours to years; no duration is counted by it."""
    method, folder = ground.method(), ground.folder()
    clocks = [JumpingClock(ground.generator.random()) for _ in range(2)]
    began = time.monotonic()
    process, _ = start(train_command(method, folder, *EACH_STEP), clocks[0].rule)
    if not wait_for_step(process, folder, ground.generator.randrange(1, N_STEPS)):
        return clock_jumps(ground)  # it was faster than the attack
    kill(process)
    found = continued(ground, method, folder, clocks[1].rule)
    return found or implausible(folder, time.monotonic() - began)


def implausible(folder: Path, elapsed: float) -> str:
    """Which of the recorded times cannot be of a training that ended within ``elapsed`` seconds."""
    run = Run.open(folder)
    cost, rows = (run.result() or {})["cost"], run.metrics()
    counted = [row["seconds"] for row in rows]
    for name, times in {
        "seconds": [0.0, *counted, cost["seconds"], elapsed],
        "prediction_seconds": [0.0, cost["prediction_seconds"], elapsed],
    }.items():
        if not all(map(math.isfinite, times)) or times != sorted(times):
            return f"wrong: {name} {times}"
    rates = [row["examples_per_second"] for row in rows]
    return "" if all(0 < rate < math.inf for rate in rates) else f"wrong: examples_per_second {rates}"


class JumpingClock:
    """A wall clock that somebody sets ahead or back again and again."""

    def __init__(self, seed: float) -> None:
        self._draw, self._real, self._ahead = random.Random(seed), time.time, 0.0

    def now(self) -> float:
        """Seconds since 1970, by this clock."""
        if self._draw.random() < 0.5:
            size = math.exp(self._draw.uniform(math.log(HOUR), math.log(DECADE)))
            self._ahead = self._draw.choice((-size, size))
        return self._real() + self._ahead

    def rule(self) -> None:
        """Be the clock of this process, of its dates and of the times of its files."""
        now = self.now
        time.time, time.time_ns = now, lambda: int(1e9 * now())

        class Date(datetime.date):
            @classmethod
            def today(cls) -> Self:
                return cls.fromtimestamp(now())

        class Datetime(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Self:
                return cls.fromtimestamp(now(), tz)

        ours = [module for name, module in sys.modules.items() if name.startswith("gossamer")]
        for module in ours:
            for name, known in list(vars(module).items()):
                if known is datetime.date or known is datetime.datetime:
                    setattr(module, name, Date if known is datetime.date else Datetime)
        intercept(self._stamp)

    def _stamp(self, name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function, and let a file that it has finished have the time of this clock."""
        found, file = real(*args), {"fsync": 0, "replace": 1}.get(name)
        if file is not None:
            os.utime(args[file], (self.now(), self.now()))
        return found
