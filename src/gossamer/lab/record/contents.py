"""What the files of a run folder may hold (``docs/run-folder.md``), and what its numbers depend on.

Keys that are not named here are left alone.
"""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from gossamer import __version__  # of the code that runs: what is installed may be another
from gossamer.files.schema import Count, Finite, Within

CONFIG, ENVIRONMENT, DATA = "config.toml", "environment.json", "data.json"
METRICS, UPDATES = "metrics.jsonl", "subspace.jsonl"
RESULT, EVALUATION = "result.json", "evaluation.json"


class Sum(TypedDict):
    """The first bytes of a journal: how many, and their SHA-256."""

    bytes: Count
    sha256: str


class Environment(TypedDict, total=False):
    """Of ``environment.json``."""

    time: str
    argv: list[str]
    versions: dict[str, str | None]
    effective: dict[str, Any]


class Data(TypedDict, total=False):
    """Of ``data.json``; ``own`` is checked by those who know what it means."""

    own: dict[str, Any]


class MetricsRow(TypedDict):
    """A line of ``metrics.jsonl`` or ``subspace.jsonl``."""

    step: NotRequired[Count]
    epoch: NotRequired[Finite]


Checksums = TypedDict("Checksums", {"result": str, "metrics.jsonl": Sum, "subspace.jsonl": Sum})


class Result(TypedDict, total=False):
    """Of ``result.json``: a report shows what it understands, others check what they need."""

    checksums: Checksums


class Kind(TypedDict, total=False):
    """A kind of conformal sets or intervals; without a threshold where held-out examples were too few for one."""

    threshold: Finite | None


class Intervals(TypedDict, total=False):
    """Conformal sets or intervals at one level."""

    n_draws: Annotated[int, Within(1)]
    step: Count
    kinds: dict[str, Kind]


class Temperature(TypedDict, total=False):
    """The divisor of the logits that fits the held-out examples."""

    temperature: Annotated[float, Within(1e-9, 1e9)]


class Evaluation(TypedDict, total=False):
    """Of ``evaluation.json``, beside one table per kind of evaluation."""

    checksum: str
    conformal: dict[str, Intervals]
    temperature: dict[str, Temperature]


Files = TypedDict(
    "Files",
    {
        "config.toml": dict[str, Any],
        "environment.json": NotRequired[str],
        "data.json": NotRequired[str],
        "metrics.jsonl": Sum,
        "subspace.jsonl": Sum,
    },
)
"""What a checkpoint keeps of the files beside it."""


def environment() -> dict[str, Any]:
    """What the numbers of a run depend on, beside its configuration: versions, machine, commit, time and command."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": [re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", word) for word in sys.argv],  # URLs may hold passwords
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "versions": {"gossamer": __version__, **{name: _version(name) for name in ("torch", "numpy")}},
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "gpu": _gpu_name(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Commit of the working directory.

    The repository may be an archive that somebody else packed, and git executes what its configuration names
    (``core.fsmonitor``, filters, hooks) where it looks at files. ``rev-parse`` looks at none.
    """
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()
    return None


def _cpu_model() -> str:
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    with suppress(AttributeError, OSError, ValueError):  # no sysconf on Windows
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _gpu_name() -> str | None:
    torch = sys.modules.get("torch")  # not imported just for this
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else None
