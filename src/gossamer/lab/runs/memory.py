"""The most memory that a training took, beyond what its process held before."""

from __future__ import annotations

import ctypes
import gc
import re
from contextlib import suppress
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Growth of memory from now on: of tensors on a GPU, otherwise of the whole process.

    A CUDA device counts the bytes of its tensors. On Linux the kernel keeps the largest resident size of the process,
    which is reset here; code is not counted, be it pages of mapped files or modules that torch imports at the first
    step of a process. All that happens between two calls counts, also the evaluation of held-out examples and the
    writing of checkpoints. The allocator holds on to some of what earlier work in the same process has freed, so a
    small growth is a rough figure. Elsewhere the system does not tell.

    Example:
        >>> memory = PeakMemory(torch.device("cpu"))
        >>> _ = torch.ones(10_000_000)
        >>> not RESET.exists() or memory.growth() > 35e6
        True
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = 0
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # a device that nothing has used yet has no statistics
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        elif RESET.exists():
            _load_code()
            _give_back()
            RESET.write_text("5")  # the largest resident size becomes the present one
            self.before = _resident()

    def growth(self) -> int | None:
        """Bytes at the highest moment, less those at the beginning; ``None`` where they cannot be known."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) - self.before
        return max(0, _resident() - self.before) if RESET.exists() else None


def _resident() -> int:
    """Largest resident size since the last reset, without mapped files."""
    found = {name: int(size) for name, size in re.findall(r"(\w+):\s+(\d+) kB", STATUS.read_text())}
    return 1024 * (found["VmHWM"] - found.get("RssFile", 0))


def _load_code() -> None:
    """Take a step, so that torch imports what its first optimizer needs: more than many a training takes."""
    weight = torch.zeros(1, requires_grad=True)
    weight.sum().backward()
    torch.optim.SGD([weight], lr=0.0).step()


def _give_back() -> None:
    """Let the allocator return what is free: otherwise training would take it again without growing."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)
