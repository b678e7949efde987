"""Memory of training: bytes counted tensor by tensor, files as they are written, and the peak of a whole process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import benchmarks
import gossamer
from benchmarks.results import Footprint

__all__ = ["MemoryCase", "measure_memory"]


class MemoryCase(NamedTuple):
    """A network (one of ``resident.KNOWN``) trained in some way for a few steps, in several fresh processes."""

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
        [sys.executable, "-m", "benchmarks.resident", told],
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
