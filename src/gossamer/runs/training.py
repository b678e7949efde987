"""Train in a run folder, and continue there after any interruption, to the bit."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import torch
from lightning_fabric import Fabric

from gossamer import checkpoint
from gossamer.progress import Progress
from gossamer.record import RecordError, Run
from gossamer.runs.progress import describe
from gossamer.runs.recording import Tally, record_epoch, record_updates
from gossamer.runs.results import build_result
from gossamer.runs.settings import CHECKPOINT_SECONDS, Settings
from gossamer.runs.starting import is_first_process, launch, part, start
from gossamer.runs.stopping import Interrupted, Stop, only_one, stop_signals
from gossamer.sparsity.ranks import on_any_rank
from gossamer.train import Training
from gossamer.types import Task

__all__ = ["Job", "restore", "resume", "train"]

N_LINES = 50  # of progress, where there is no terminal
STEPS_BETWEEN_TALKS = 10  # of ranks: a question to all of them makes a GPU wait


def train(
    settings: Settings,
    out: Path | str | None = None,
    *,
    quiet: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: float | None = None,
) -> Run:
    """Train a new run and evaluate it on the test data.

    Args:
        settings: What to train, and how.
        out: The run folder, which must not hold anything yet; ``None`` is ``runs/<date>-<method>-<data>-<seed>``.
        quiet: No progress, no lines.
        checkpoint_seconds: Time between checkpoints; there is always one at the end.
        stop_after: Seconds after which training stops with a checkpoint, to be continued by the next command.

    Returns:
        The run; its ``result()`` has the numbers.

    Example:
        >>> import tempfile
        >>> settings = Settings("ssvi", "digits", epochs=1, n_draws=2, options={"density": 0.1})
        >>> run = train(settings, Path(tempfile.mkdtemp()) / "run", quiet=True)
        >>> run.result()["metrics"]["accuracy"] > 0.1
        True
    """
    folder = Path(out) if out is not None else _default_folder(settings)
    if is_first_process():
        _refuse_taken(folder, "--out" if out is not None else "--out or --seed")  # before anything is read or computed
    task = settings.load_task()
    fabric = launch(settings)
    job = Job(folder, settings, task, start(settings, task, fabric), Tally())
    if not fabric.is_global_zero:
        return _go_on(job, quiet, checkpoint_seconds, stop_after)
    job.run = Run.create(folder, settings.to_config())
    with only_one(folder):
        return _go_on(job, quiet, checkpoint_seconds, stop_after)


def resume(
    folder: Path | str,
    *,
    quiet: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: float | None = None,
) -> Run:
    """Continue an interrupted run: its final weights are those of a run without interruption.

    A finished run is returned as it is.

    Args:
        folder: The run folder.
        quiet: No progress, no lines.
        checkpoint_seconds: Time between checkpoints; there is always one at the end.
        stop_after: Seconds after which training stops with a checkpoint, to be continued by the next command.
    """
    run = Run.open(Path(folder))
    if run.result() is not None:
        return run
    settings = settings_of(run)
    with only_one(run.folder) if is_first_process() else contextlib.nullcontext():
        task = settings.load_task()
        fabric = launch(settings)
        job = restore(run, settings, task, fabric)
        fabric.barrier()  # the first rank writes only when all have read
        if fabric.is_global_zero:
            run.rewind(job.training.step)
            job.run = run
        return _go_on(job, quiet, checkpoint_seconds, stop_after)


@dataclass
class Job:
    """A run at work: what it was told, what it works on, how far it is. Only the first rank has a ``run`` to write."""

    folder: Path
    settings: Settings
    task: Task
    training: Training
    tally: Tally
    run: Run | None = None


def settings_of(run: Run, **changes: object) -> Settings:
    """What a run was told, some of it changed."""
    try:
        return Settings.from_config(run.config | changes)
    except ValueError as error:
        raise RecordError(f"{run.folder / 'config.toml'}: {error}") from error


def restore(run: Run, settings: Settings, task: Task, fabric: Fabric) -> Job:
    """A run as of its newest checkpoint, or before its first step where there is none yet."""
    job = Job(run.folder, settings, task, start(settings, task, fabric), Tally())
    if checkpoint.exists(run.checkpoint_folder):
        state = checkpoint.load(run.checkpoint_folder)
        try:
            job.training.load_state_dict(state["training"])
            job.tally.load_state_dict(state["tally"])
        except (KeyError, ValueError, RuntimeError, IndexError) as error:
            reason = str(error).splitlines()[0]
            raise RecordError(f"{run.checkpoint_folder} does not fit {run.folder / 'config.toml'}: {reason}") from error
    return job


def _go_on(job: Job, quiet: bool, checkpoint_seconds: float, stop_after: float | None) -> Run:
    """Steps until the end or a signal, then the result; what was begun can always be continued."""
    settings, training = job.settings, job.training
    progress = Progress(
        f"{settings.method} {settings.data} seed {settings.seed}",
        training.steps,
        start=training.step,
        lines=N_LINES,
        quiet=quiet or job.run is None,
    )
    try:
        with stop_signals(stop_after) as stop, progress:
            _advance(job, stop, progress, checkpoint_seconds)
        if job.run is not None:
            job.run.write_result(build_result(job.settings, job.task, job.training, job.tally.seconds, job.run))
    except KeyboardInterrupt:
        raise Interrupted(job.folder) from None
    finally:
        part(job.training.fabric)
    return job.run or Run.open(job.folder)


def _advance(job: Job, stop: Stop, progress: Progress, checkpoint_seconds: float) -> None:
    training, per_epoch = job.training, job.training.batches.per_epoch
    saved = time.monotonic()
    while training.step < training.steps:
        _timed_step(job)
        if job.run is not None:
            record_updates(job.run, training, job.tally)
            if training.step % per_epoch == 0:
                row = record_epoch(job.run, job.task, training, job.tally)
                progress.update(training.step, partial(describe, row, job.settings.epochs))
        is_due = time.monotonic() - saved >= checkpoint_seconds
        wants_stop, is_due = _on_any_rank(training, [stop.is_set, is_due])
        is_last = training.step == training.steps
        if wants_stop or is_due or is_last:
            _timed_wait(job)  # a part of training, not of saving
            _save(job)
            saved = time.monotonic()
        progress.update(training.step)
        if wants_stop and not is_last:
            raise Interrupted(job.folder)


def _timed_step(job: Job) -> None:
    with _timed(job.tally):
        job.tally.add(job.training.advance())
    if job.training.step % job.training.batches.per_epoch == 0:
        _timed_wait(job)


def _timed_wait(job: Job) -> None:
    """Until the steps are done: on a GPU they are only queued, and whoever reads a value next would wait for them."""
    device = job.training.fabric.device
    if device.type == "cuda":
        with _timed(job.tally):
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def _timed(tally: Tally) -> Iterator[None]:
    start = time.perf_counter()
    yield
    tally.seconds += time.perf_counter() - start


def _on_any_rank(training: Training, flags: list[bool]) -> list[bool]:
    """What any of the ranks wants, known to all at the same step."""
    if training.fabric.world_size > 1 and training.step % STEPS_BETWEEN_TALKS:
        return [False] * len(flags)
    return on_any_rank(flags, training.fabric.device)


def _save(job: Job) -> None:
    state = {"training": job.training.state_dict(), "tally": job.tally.state_dict()}  # every rank has a part in it
    if job.run is not None:
        checkpoint.save(job.run.checkpoint_folder, state, job.training.step)


def _default_folder(settings: Settings) -> Path:
    name = f"{date.today().isoformat()}-{settings.method}-{settings.data}-{settings.seed}"
    return Path("runs") / name.replace("/", "-")


def _refuse_taken(folder: Path, other: str) -> None:
    if not (folder / "config.toml").exists():
        return  # what else may be in the way, Run.create finds
    quoted = shlex.quote(str(folder))
    is_finished = (folder / "result.json").exists()
    way_on = f"gossamer show {quoted} shows it" if is_finished else f"gossamer train --resume {quoted} continues it"
    kind = "a finished" if is_finished else "an unfinished"
    raise RecordError(f"{folder} holds {kind} run: {way_on}; a new one needs another {other}")
