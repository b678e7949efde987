"""Where training steps are measured: a device, its clock, and what it says of its memory."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric

from benchmarks.timing import WALL, Clock

__all__ = ["CPU", "GPU", "Place"]


def _when_all_is_done() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Place:
    """A device for training, the precision there, and the clock.

    Args:
        accelerator: ``"cuda"`` or ``"cpu"``.
        precision: Of Lightning Fabric.
        clock: Waits for the device before it is read.
        captures: Whether steps are captured as CUDA graphs.
    """

    accelerator: str
    precision: str
    clock: Clock
    captures: bool

    def fabric(self) -> Fabric:
        """One process there."""
        return Fabric(accelerator=self.accelerator, devices=1, precision=self.precision)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """For tensors."""
        return torch.device(self.accelerator)

    def tidy(self) -> None:
        """Nothing that is not in use is held any more, and peaks count from here."""
        gc.collect()
        if self.accelerator == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def allocated(self) -> int:
        """Highest number of bytes in tensors since :meth:`tidy`; a CPU does not count them."""
        return torch.cuda.max_memory_allocated() if self.accelerator == "cuda" else 0

    def reserved(self) -> int:
        """Highest number of bytes taken from the device since :meth:`tidy`, the memory of captured graphs included."""
        return torch.cuda.max_memory_reserved() if self.accelerator == "cuda" else 0


GPU = Place("cuda", "bf16-mixed", Clock("wall time, the GPU waited for", _when_all_is_done), captures=True)
CPU = Place("cpu", "32-true", WALL, captures=False)  # to try out what is measured where there is no GPU
