"""The processes that train together: how they start and meet, and what is said when one of them is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from gossamer._text.names import needs
from gossamer.distributed import OneProcess, world_size
from gossamer.lab.runs.progress import RankLostError
from gossamer.lab.runs.settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

STARTER = "GOSSAMER_STARTER"  # the id of the process that has started this one as another rank
PATIENCE = 20.0  # seconds for an error of its own, before a process ends because another one is gone

_started: list[subprocess.Popen[bytes]] = []  # by this process


def is_by_torchrun() -> bool:
    """Whether ``torchrun`` has started this process, and not a process that starts the others itself."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def as_started(settings: Settings) -> Settings:
    """The settings with the number of ranks that ``torchrun`` has started, if it has."""
    if not is_by_torchrun():
        return settings
    n_ranks = int(os.environ["WORLD_SIZE"])
    if settings.ranks not in (1, n_ranks):
        raise ValueError(f"torchrun has started {n_ranks} processes, not {settings.ranks}: leave --ranks out")
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        raise ValueError("torchrun --max-restarts would train a new run: leave it out, train --resume goes on")
    return replace(settings, ranks=n_ranks)


def launch(settings: Settings) -> OneProcess | Fabric:
    """Start and connect the processes that train together; each of them returns from here."""
    if settings.ranks == 1:
        return OneProcess(settings.device, bf16=settings.is_bf16())
    needs("lightning_fabric", extra="ranks")
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # do not log how the ranks find each other
    n_machines = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    if settings.ranks % n_machines:
        raise ValueError(f"{settings.ranks} processes on {n_machines} machines: start as many on each machine")
    if not is_by_torchrun() and not any(name in os.environ for name in ("RANK", "LOCAL_RANK")):
        _start_others(settings.ranks)
    fabric = Fabric(
        accelerator=settings.device,
        devices=settings.ranks // n_machines,
        num_nodes=n_machines,
        strategy="ddp",
        precision="bf16-mixed" if settings.is_bf16() else "32-true",
        plugins=None if is_by_torchrun() else [LightningEnvironment()],  # Fabric takes any job of Slurm for one of srun
    )
    fabric.launch()
    return fabric


def part() -> None:
    """Leave the process group: from here on this process is alone, and can end.

    A thread of torch that has finished a message needs the interpreter's lock to release its tensors, while
    ``destroy_process_group`` holds that lock and waits for the thread; sleeping first lets the thread finish.
    """
    if world_size() > 1:
        time.sleep(0.2)
        dist.destroy_process_group()


@contextlib.contextmanager
def together(folder: Path | None, n_ranks: int) -> Iterator[None]:
    """While ranks train ``folder`` together: if one of them is gone, the others raise :class:`RankLostError`.

    A process that waits for one that is gone hears of it from gloo, but perhaps not from NCCL. It then ends here, after
    the same line.
    """
    if n_ranks == 1:
        yield
        return
    over = threading.Event()
    threading.Thread(target=_watch, args=(folder, over), daemon=True).start()
    try:
        yield
    except RuntimeError as error:
        # NCCL's errors have a type of their own, gloo's only a text.
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise RankLostError(folder) from error
        raise
    finally:
        over.set()


def is_first_process() -> bool:
    """Whether this process speaks for the training: not another rank of it."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0))) == 0


def _start_others(n_ranks: int) -> None:
    """Run this program again as the other ranks of this machine.

    Not by Fabric, which kills the first rank without a word when another one is gone.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    os.environ.update(place)
    for rank in range(1, n_ranks):
        own = {"LOCAL_RANK": str(rank), STARTER: str(os.getpid())}
        _started.append(subprocess.Popen(_this_program(), env=os.environ | own))


def _this_program() -> list[str]:
    spec = sys.modules["__main__"].__spec__
    start = [str(Path(sys.argv[0]).absolute())] if spec is None else ["-m", spec.name]
    return [sys.executable, *start, *sys.argv[1:]]


def _watch(folder: Path | None, over: threading.Event) -> None:
    parent = int(os.environ.get(STARTER, os.getppid()))  # it may be gone before this process gets here
    while not over.wait(1.0):
        is_lost = any(other.poll() not in (None, 0) for other in _started)
        is_orphan = not is_first_process() and os.getppid() != parent
        if (is_lost or is_orphan) and not over.wait(PATIENCE):
            print(f"gossamer: {RankLostError(folder)}", file=sys.stderr, flush=True)
            os._exit(1)
