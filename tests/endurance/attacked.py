"""Runs to attack: each in a process of its own, continued after it, and compared with one that nobody touched."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.lab.cli import main as command
from gossamer.lab.record import Run
from gossamer.train import checkpoint
from tests.endurance.intercepted import list_calls

__all__ = ["Ended", "Ground", "continued", "differ", "finish", "kill", "run_to_end", "start", "train_command"]

METHODS = {  # six, of six families
    "ssvi": ["--density=0.1", "--update_period=4"],
    "rigl": ["--density=0.1", "--update_period=4"],
    "vi": [],
    "em_mcmc": ["--density=0.3"],
    "csghmc": [],
    "sgd": [],
}
COMMON = ["--epochs=2", "--batch_size=128", "--n_draws=2", "--device=cpu", "--model=mlp", "--quiet"]
N_STEPS = 16  # of two epochs of the training data of digits
EACH_STEP = ["--checkpoint_seconds=0"]
NOT_REPEATABLE = {"seconds", "examples_per_second"}
IMPORTS = (  # what takes long is done once, before the forks
    "sklearn.datasets",
    "tomli_w",
    "torch._dynamo",
    "torch.onnx",
    "gossamer.data.digits",
    "gossamer.lab.runs.job",
    "gossamer.lab.cli.train",
    "gossamer.lab.cli.compare",
    "gossamer.lab.cli.queries",
    "gossamer.lab.report",
    *(f"gossamer.methods.{method}" for method in METHODS),
)

Before = Callable[[], None]
"""What a process does before it begins with the command."""


class Ended(NamedTuple):
    """How a process ended, and what it said."""

    code: int
    said: str

    @property
    def in_one_line(self) -> bool:
        """Whether it failed, and said so in a line."""
        return self.code == 1 and len(self.said.splitlines()) == 1


class Ground:
    """A folder for attacks, with runs that nobody touched, made when they are first needed."""

    def __init__(self, root: Path, generator: random.Random) -> None:
        self.root, self.generator = root, generator
        self._count = 0

    def folder(self) -> Path:
        """A place where nothing is yet."""
        self._count += 1
        return self.root / f"run{self._count}"

    def method(self) -> str:
        """One of the six."""
        return self.generator.choice(list(METHODS))

    def whole(self, method: str) -> Path:
        """A run that nobody touched."""
        return self.made(f"whole-{method}", lambda folder: run_to_end(train_command(method, folder)))

    def made(self, name: str, make: Callable[[Path], Ended]) -> Path:
        """What ``make`` leaves in a folder, the first time that it is needed."""
        folder = self.root / name
        if not folder.exists():
            ended = make(folder)
            if ended.code:
                raise RuntimeError(f"a run without attack has failed: {ended.said}")
        return folder

    def stopped(self, method: str) -> Path:
        """A copy of a run that was killed some time after its eighth step."""
        source = self.root / f"stopped-{method}"
        if not source.exists():
            process, _ = start(train_command(method, source, *EACH_STEP))
            if not wait_for_step(process, source, 8):
                raise RuntimeError(f"{source} ended before it could be killed")
            kill(process)
        return Path(shutil.copytree(source, self.folder()))

    @cached_property
    def calls(self) -> list[str]:
        """Each time that a run opens, writes, waits for or renames a file."""
        path = self.root / "calls"
        self.made("counted", lambda folder: run_to_end(train_command("ssvi", folder, *EACH_STEP), list_calls(path)))
        found: list[str] = json.loads(path.read_text())
        return found


def prepare() -> None:
    """Make this process one that can be forked as often as it takes."""
    torch.set_num_threads(1)  # a pool of threads would not survive the forks
    for module in IMPORTS:
        importlib.import_module(module)


def train_command(method: str, folder: Path, *more: str) -> list[str]:
    """The command that trains a run."""
    return ["train", method, "digits", *COMMON, f"--out={folder}", *METHODS[method], *more]


def start(given: Sequence[str], before: Before = lambda: None) -> tuple[int, Path]:
    """The command in a forked process, and the file of its standard error."""
    said = new_file()
    process = os.fork()
    if process:
        return process, said
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_WRONLY), 2)
        before()
        code = command(list(given))
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(70)


def new_file() -> Path:
    """An empty file for what a process says."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    return Path(name)


def finish(process: int, said: Path) -> Ended:
    """Wait for the end of a process."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    text = said.read_text()
    said.unlink()
    return Ended(code, text.strip())


def run_to_end(given: Sequence[str], before: Before = lambda: None) -> Ended:
    """The command, to its end."""
    return finish(*start(given, before))


def kill(process: int) -> None:
    """End a process at once, wherever it is."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def is_over(process: int) -> bool:
    """Whether a process has ended; it is left to be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for_step(process: int, folder: Path, step: int) -> bool:
    """Whether a checkpoint of the step, or of a later one, was there before the process ended."""
    while not is_over(process):
        if step_of(folder) >= step:
            return True
        time.sleep(0.002)
    os.waitpid(process, 0)
    return False


def step_of(folder: Path) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(json.loads((folder / "checkpoint" / "latest.json").read_bytes())["checkpoints"][0]["step"])
    return 0


def continued(ground: Ground, method: str, folder: Path, before: Before = lambda: None) -> str:
    """Resume the run, or begin it where nothing was trained yet, and compare it with one that nobody touched."""
    if not (folder / "result.json").exists():
        begun = (folder / "config.toml").exists()
        given = ["train", "--resume", str(folder), "--quiet"] if begun else train_command(method, folder)
        ended = run_to_end(given, before)
        if ended.code or ended.said:
            return f"lost: exit code {ended.code}: {ended.said}"
    return compared(folder, ground.whole(method))


def compared(folder: Path, whole: Path) -> str:
    """What differs from the run that nobody touched, as an attack tells it."""
    found = differ(folder, whole)
    return f"wrong: {found}" if found else ""


def differ(one: Path, other: Path) -> str:
    """Where two runs differ, times apart; empty if they do not."""
    states = [checkpoint.load(folder / "checkpoint") for folder in (one, other)]
    results = [Run.open(folder).result() for folder in (one, other)]
    if None in results:
        return "no result"
    for result in results:
        cost = (result or {}).pop("cost")
        (result or {})["active_parameters"] = cost["active_parameters"]
    pairs = {
        "training": [state["training"] for state in states],
        "result": results,
        **{name: [_rows(folder / name) for folder in (one, other)] for name in ("metrics.jsonl", "subspace.jsonl")},
    }
    return next((found for name, (a, b) in pairs.items() if (found := _difference(a, b, name))), "")


def _difference(a: Any, b: Any, where: str) -> str:
    if type(a) is not type(b):
        return where
    if isinstance(a, Tensor):
        return "" if torch.equal(a, b) else where
    if isinstance(a, dict):
        if list(a) != list(b):
            return where
        pairs: Iterator[tuple[Any, Any, Any]] = ((key, a[key], b[key]) for key in a)
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return where
        pairs = ((i, *pair) for i, pair in enumerate(zip(a, b, strict=True)))
    else:
        return "" if a == b else where
    return next((found for key, x, y in pairs if (found := _difference(x, y, f"{where}/{key}"))), "")


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: value for key, value in row.items() if key not in NOT_REPEATABLE} for row in rows]
