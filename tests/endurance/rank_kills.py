"""An attack on one of two ranks by SIGKILL, which returns "" for a try that held, "lost: …" or "wrong: …".

The ranks are those of the real command, not forked: each imports everything, which takes longer than the training.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.endurance.attacked import (
    EACH_STEP,
    METHODS,
    Ground,
    compared,
    finish,
    is_over,
    kill,
    new_file,
    step_of,
    train_command,
)

__all__ = ["a_rank"]

N_EPOCHS = 25  # of eight steps: they take a few seconds, and the ranks agree on a checkpoint every ten
BETWEEN, N_CHECKPOINTS = 10, 20
MEETING, TALKING = 8.0, 0.2  # seconds: about what two ranks take to the first checkpoint, and from one to the next
PATIENCE = 120.0  # seconds until a process that is still there counts as one that waits for ever
SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def a_rank(ground: Ground) -> str:
    """A kill of one of two ranks, also before they have met; the other names the command that goes on, and it does."""
    method = ground.generator.choice([name for name in METHODS if name != "em_mcmc"])  # which cuts weights off
    folder, whole = ground.folder(), _whole(ground, method)
    first, said = _start(_command(method, folder))
    victim, survivor = ground.generator.sample([first, _other(first)], 2)
    _wait_for_moment(ground, first, folder)
    if step_of(folder) == step_of(whole):  # it was faster than the attack: ranks now need each other no more
        finish(first, said)
        return a_rank(ground)
    os.kill(victim, signal.SIGKILL)
    if victim == first:
        os.waitpid(first, 0)  # now the other one is ours to wait for
    if not _ends(survivor):
        kill(survivor)
        return f"lost: a rank waits for {'the first' if victim == first else 'another'} one, which is gone"
    ended = finish(survivor, said)
    if step_of(folder) == step_of(whole):
        return a_rank(ground)
    found = re.search(r"; (?:continue with: (gossamer .+)|start again)$", ended.said)
    if not ended.in_one_line or found is None:
        return f"lost: exit code {ended.code}: {ended.said}"
    again = finish(*_start([*shlex.split(found[1])[1:], "--quiet"] if found[1] else _command(method, folder)))
    return f"lost: {again.said}" if again.code or again.said else compared(folder, whole)


def _command(method: str, folder: Path) -> list[str]:
    return train_command(method, folder, *EACH_STEP, f"--epochs={N_EPOCHS}", "--ranks=2")


def _whole(ground: Ground, method: str) -> Path:
    return ground.made(f"whole-ranks-{method}", lambda folder: finish(*_start(_command(method, folder))))


def _start(given: Sequence[str]) -> tuple[int, Path]:
    """The command as a user gives it, and the file of its standard error; orphans are this process's children."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    said = new_file()
    with said.open("w") as error:
        process = subprocess.Popen(
            [sys.executable, "-m", "gossamer", *given],
            stdout=subprocess.DEVNULL,
            stderr=error,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    process.returncode = 0  # it is waited for by its number
    return process.pid, said


def _other(first: int) -> int:
    """The process that the first rank has started."""
    while not (found := Path(f"/proc/{first}/task/{first}/children").read_text().split()):
        time.sleep(0.01)
    return int(found[0])


def _wait_for_moment(ground: Ground, first: int, folder: Path) -> None:
    """Wait until some time after a random checkpoint, or, one time in four, after the start."""
    n_checkpoints = ground.generator.randrange(1, N_CHECKPOINTS) if ground.generator.random() < 0.75 else 0
    while step_of(folder) < BETWEEN * n_checkpoints and not is_over(first):
        time.sleep(0.002)
    time.sleep(ground.generator.random() * (TALKING if n_checkpoints else MEETING))


def _ends(process: int) -> bool:
    until = time.monotonic() + PATIENCE
    while not is_over(process) and time.monotonic() < until:
        time.sleep(0.05)
    return is_over(process)
