"""The processes of a run: what they show, what stops them, how they meet, and what is said when one of them is gone.

The command imports this file before it imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer._text.names import needs
from gossamer._text.terminal import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from torch import Tensor

    from gossamer.distributed import OneProcess
    from gossamer.lab.runs.settings import Settings
    from gossamer.posterior.predict import Around

SECONDS_OF_SILENCE = 5.0  # without a terminal: nobody waits for a line about less
STARTER = "GOSSAMER_STARTER"  # the id of the process that has started this one as another rank
PATIENCE = 20.0  # seconds for an error of its own, before a process ends because another one is gone

_started: list[subprocess.Popen[bytes]] = []  # by this process
_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def showing_draws(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Within the block, predictions show which draw they are at: a bar on a terminal, a line now and then elsewhere."""
    with Progress(title, 1, quiet=quiet) as progress:
        token = _shown.set(progress)
        try:
            yield
        finally:
            _shown.reset(token)


def draws_shown(total: int) -> Around | None:
    """What shows ``total`` drawn networks one by one, where :func:`showing_draws` asks for it."""
    progress = _shown.get()
    if progress is None:
        return None
    progress.begin(progress.title, total)
    last_line = time.monotonic()

    def around(done: float, compute: Callable[[], Tensor]) -> Tensor:
        nonlocal last_line
        outputs = compute()
        is_due = progress.on_terminal or time.monotonic() - last_line >= SECONDS_OF_SILENCE
        progress.update(int(done), partial("draw {} of {}".format, math.ceil(done), total) if is_due else None)
        last_line = time.monotonic() if is_due else last_line
        return outputs

    return around


class Interrupted(Exception):  # noqa: N818 - not an error: the run can go on
    """The run was stopped and can be continued."""

    def __init__(self, folder: Path, way_on: str | None = None) -> None:
        self.folder = folder
        default = f"continue with: gossamer train --resume {shlex.quote(str(folder))}"
        super().__init__(f"interrupted; {way_on or default}")


class SeenEnough(Interrupted):
    """A watcher has seen enough; the run can still be resumed."""


class RankLostError(RuntimeError):
    """Another process of the training is gone; the run can be continued from its last checkpoint."""

    def __init__(self, folder: Path | None) -> None:
        has_begun = folder is not None and (folder / "config.toml").exists()
        way_on = f"continue with: gossamer train --resume {shlex.quote(str(folder))}" if has_begun else "start again"
        super().__init__(f"another rank was killed or has failed; {way_on}")


@contextlib.contextmanager
def stop_signals(after: float | None = None) -> Iterator[Callable[[], bool]]:
    """Whether to stop after the current step: for Ctrl-C, SIGTERM, a closed terminal or the end of ``after`` seconds.

    A second signal stops at once. A signal that this process inherited as ignored stays ignored: ``nohup`` asks for
    that for a closed terminal, and a shell without job control for Ctrl-C in background jobs, which is meant for the
    job in the foreground.
    """
    asked, deadline = False, math.inf if after is None else time.monotonic() + after

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with handled_by(ask, [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]):
        yield lambda: asked or time.monotonic() >= deadline


@contextlib.contextmanager
def handled_by(handler: Callable[[int, Any], Any], numbers: Sequence[int]) -> Iterator[None]:
    """Let ``handler`` handle the signals meanwhile."""
    before: dict[int, Any] = {}
    for number in numbers:
        with contextlib.suppress(ValueError):  # not in the main thread: stopping is the caller's task
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


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
    from gossamer.distributed import OneProcess

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
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
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
        from torch import distributed as dist

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
