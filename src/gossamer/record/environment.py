"""What a number depends on beside the configuration."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """What a number depends on beside the configuration: versions, machine, commit, time and command.

    Example:
        >>> sorted(environment())[:4]
        ['argv', 'cpu', 'cpu_count', 'git_commit']
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(sys.argv),
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("gossamer", "torch", "numpy")},
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
    """Commit of the working directory, ``-dirty`` where tracked files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() or None


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
    torch = sys.modules.get("torch")  # never imported for this: a run on the CPU alone need not pay for it
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else None
