"""Where and with what something was measured: a number means nothing without it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Stopwatch
from gossamer import __version__
from gossamer.kernels import library
from gossamer.lab.record.contents import environment

__all__ = ["describe", "describe_gpu", "surroundings"]

FROM_RECORD = ("time", "git_commit", "python", "cpu", "cpu_count", "memory_bytes", "gpu")


def surroundings(clock: Stopwatch) -> dict[str, Any]:
    """Machine, versions, threads, clock and date.

    Example:
        >>> from benchmarks.timing import THREAD
        >>> surroundings(THREAD)["clock"]
        'CPU time of one thread'
    """
    known = environment()
    return (
        {key: known[key] for key in FROM_RECORD}
        | {
            "cpu_family": _cpu_family(),
            "caches": _caches(),
            "torch": torch.__version__,
            "gossamer": __version__,
            "native": library.LIBRARY_NAME,
            "threads": torch.get_num_threads(),
            "clock": clock.name,
            "load": _load(),
        }
        | ({"cuda": torch.version.cuda, "triton": _version("triton")} if torch.cuda.is_available() else {})
    )


def describe(environment: Mapping[str, Any]) -> str:
    """The same in a sentence or two.

    Example:
        >>> from benchmarks.timing import WALL
        >>> describe(surroundings(WALL) | {"threads": 2, "time": "2026-01-31T12:00:00"}).split("; ")[-2:]
        ['2 threads, wall time', '2026-01-31']
    """
    family = environment.get("cpu_family")
    machine = [f"{environment['cpu']} ({family})" if family else environment["cpu"]]
    machine += [environment["gpu"]] if environment.get("gpu") else []
    machine += [f"{environment['cpu_count']} cores"]
    machine += [f"{name} {size}" for name, size in (environment.get("caches") or {}).items()]
    native, threads = environment["native"], environment["threads"]
    parts = [
        ", ".join(machine),
        f"gossamer {environment['gossamer']}, native kernels {native or 'not built'}",
        f"torch {environment['torch']}, Python {environment['python']}",
        f"{threads} thread{'s' if threads > 1 else ''}, {environment['clock']}",
        environment["time"][:10],
    ]
    return "; ".join(parts)


def describe_gpu(environment: Mapping[str, Any]) -> str:
    """The part that matters for a training on a GPU, in a sentence.

    Example:
        >>> describe_gpu({"gpu": "NVIDIA H200", "gossamer": "0.1.0", "torch": "2.11", "cuda": "13.0", "triton": "3.6",
        ...               "python": "3.12", "clock": "wall time", "time": "2026-01-31T12:00:00"})
        'NVIDIA H200; gossamer 0.1.0; torch 2.11, CUDA 13.0, Triton 3.6, Python 3.12; wall time; 2026-01-31'
    """
    parts = [
        environment.get("gpu") or "no GPU",
        f"gossamer {environment['gossamer']}",
        f"torch {environment['torch']}, CUDA {environment.get('cuda')}, Triton {environment.get('triton')}, "
        f"Python {environment['python']}",
        environment["clock"],
        environment["time"][:10],
    ]
    return "; ".join(parts)


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _cpu_family() -> str | None:
    """Family and model: clouds hide the name of a processor, but not these."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        found = [re.search(rf"^{key}\s*:\s*(\d+)$", text, re.MULTILINE) for key in ("cpu family", "model")]
        if all(found):
            return ", ".join(
                f"{key} {match[1]}" for key, match in zip(("family", "model"), found, strict=True) if match
            )
    return None


def _caches() -> dict[str, str]:
    """Sizes of the data caches by level; empty where the system does not tell."""
    sizes: dict[str, str] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with suppress(OSError):
            level, kind, size = (index.joinpath(name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                sizes[f"L{level}"] = size
    return sizes


def _load() -> float | None:
    """Load average of the last minute; more than the number of cores means that others were at work too."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
