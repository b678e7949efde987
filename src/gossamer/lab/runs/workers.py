"""Several runs side by side, each in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from gossamer._text.names import trusting
from gossamer._text.progress import Progress
from gossamer.files.atomic import one_line
from gossamer.lab.record import RecordError
from gossamer.lab.runs.interrupt import Interrupted, handled_by
from gossamer.lab.runs.result import stored_result
from gossamer.lab.runs.settings import Settings


def train_here(folder: Path, settings: Settings, **way: Any) -> str:
    """Train a run, or continue it, in this process; returns what went wrong, if anything did."""
    from gossamer.lab.runs.job import resume, train

    try:
        has_begun = (folder / "config.toml").exists()
        stored_result(resume(folder, **way) if has_begun else train(settings, folder, **way))  # or it is damaged
    except Interrupted:
        raise
    except Exception as error:  # other runs go on; the caller says what happened
        kind = "" if isinstance(error, RecordError | ValueError) else f"{type(error).__name__}: "
        return f"{kind}{one_line(error)}"
    return ""


def train_side_by_side(
    runs: Mapping[Path, Settings], workers: int, trusted: frozenset[str] = frozenset(), *, quiet: bool = False
) -> dict[Path, str]:
    """Train runs, or continue them, in so many processes at once; returns what went wrong with each, if anything did.

    Each run has a process of its own, with its share of the threads. If this one is interrupted or killed, they stop,
    with a checkpoint each.
    """
    waiting, failures, running = list(runs.items()), dict[Path, str](), list[_Worker]()
    threads = max(1, torch.get_num_threads() // workers)
    total = sum(settings.epochs for settings in runs.values())
    done = {folder: 0 for folder in runs}
    with Progress(f"{len(runs)} runs", total, lines=50, quiet=quiet) as progress, _stopped(running):
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_Worker.start(*waiting.pop(0), threads, trusted))
            heard = wait([worker.pipe for worker in running])
            for worker in [one for one in running if one.pipe in heard]:
                if worker.listen():
                    done[worker.folder] = worker.epoch
                else:
                    failures[worker.folder] = worker.end()
                    running.remove(worker)
            progress.update(sum(done.values()), partial(_state, running, "\n" if progress.on_terminal else "; "))
    return failures


def _state(running: Sequence[_Worker], between: str) -> str:
    return between.join(f"{worker.folder.name} {worker.words}" for worker in running) or "ended"


@dataclass
class _Worker:
    """A process, the run that it trains, and what it said last."""

    folder: Path
    settings: Settings
    process: BaseProcess
    pipe: Connection
    epoch: int = 0
    words: str = "begins"
    failure: str | None = None

    @classmethod
    def start(cls, folder: Path, settings: Settings, threads: int, trusted: frozenset[str]) -> _Worker:
        """Start the process; Ctrl-C is left to this one, which then stops the others."""
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe(duplex=False)
        process = spawn.Process(target=_work, args=(folder, settings, threads, trusted, there))
        ignored: Any = signal.SIG_IGN
        with handled_by(ignored, [signal.SIGINT]), _environment(OMP_NUM_THREADS=str(threads)):
            process.start()
        there.close()  # so that the pipe ends with the process
        return cls(folder, settings, process, here)

    def listen(self) -> bool:
        """Take what the process says; returns whether it may say more."""
        try:
            said = self.pipe.recv()
        except (EOFError, OSError):
            return False
        if isinstance(said, str):
            self.failure = said
        else:
            self.epoch, self.words = said
        return True

    def end(self) -> str:
        """Wait for the end of the process; returns what went wrong, if anything did."""
        self.process.join()
        code = self.process.exitcode or 0
        if self.failure is None:
            how = f"killed ({signal.Signals(-code).name})" if code < 0 else "stopped"
            return f"its process was {how}; the same command continues it"
        return self.failure


@contextlib.contextmanager
def _stopped(running: list[_Worker]) -> Iterator[None]:
    """At an interruption, ask all for a checkpoint and wait for them; at a second one, wait no more."""
    try:
        yield
    except BaseException:
        try:
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.join()
        except KeyboardInterrupt:
            for worker in running:
                worker.process.kill()
        raise


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    """These variables meanwhile: OpenMP reads its own when a process begins."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _work(folder: Path, settings: Settings, threads: int, trusted: frozenset[str], pipe: Connection) -> None:
    """What the process of a run does: train it, and say how far it is and what went wrong."""
    from gossamer.lab.runs.accounting import describe

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)

    def watch(row: Mapping[str, Any]) -> bool:
        # Members of an ensemble may have these epochs each.
        pipe.send((settings.epochs * row["epoch"] // row["epochs"], describe(row, row["epochs"])))
        return True

    with trusting(*trusted), contextlib.suppress(Interrupted, BrokenPipeError):
        pipe.send(train_here(folder, settings, quiet=True, watch=watch))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
