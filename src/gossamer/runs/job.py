"""Train in a run folder, and continue there after any interruption, to the bit."""

from __future__ import annotations

import contextlib
import logging
import shlex
import time
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only

from gossamer import checkpoint, methods, models
from gossamer.data import changed, fingerprint
from gossamer.layers import sparse_weights
from gossamer.names import file_name
from gossamer.progress import Progress
from gossamer.ranks import on_any_rank
from gossamer.record import Lock, RecordError, Run
from gossamer.record.run import refuse_taken
from gossamer.runs.interrupt import Interrupted, Stop, stop_signals
from gossamer.runs.memory import PeakMemory
from gossamer.runs.result import build_result
from gossamer.runs.settings import CHECKPOINT_SECONDS, Settings
from gossamer.runs.tally import Tally, describe, record_epoch, record_updates, work_of
from gossamer.train import Training
from gossamer.types import Task

N_LINES = 50  # of progress, where there is no terminal
STEPS_BETWEEN_TALKS = 10  # between ranks: each exchange makes a GPU wait


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
        quiet: Show no progress.
        checkpoint_seconds: Seconds between checkpoints; there is always one at the end.
        stop_after: Seconds after which training stops with a checkpoint, from which :func:`resume` continues.

    Returns:
        The run; its ``result()`` has the numbers.

    Example:
        >>> import tempfile
        >>> settings = Settings("ssvi", "digits", epochs=1, n_draws=2, options={"density": 0.1})
        >>> run = train(settings, Path(tempfile.mkdtemp()) / "run", quiet=True)
        >>> run.result()["metrics"]["accuracy"] > 0.1
        True
    """
    default = f"{date.today().isoformat()}-{settings.method}-{settings.data}-{settings.seed}"
    folder = Path("runs", file_name(default)) if out is None else Path(out)
    if is_first_process():
        _refuse_begun(folder, "--out" if out is not None else "--out or --seed")  # before anything is loaded
    job = _begin(folder, settings)
    with Lock(folder) if job.training.fabric.is_global_zero else contextlib.nullcontext() as lock:
        if lock is not None:
            job.run = Run.create(folder, settings.to_config(), fingerprint(job.task), lock)
        return _go_on(job, quiet, checkpoint_seconds, stop_after)


def resume(
    folder: Path | str,
    *,
    quiet: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: float | None = None,
) -> Run:
    """Continue an interrupted run: its final weights are those of a run without interruption.

    A finished run is returned as it is. The options are those of :func:`train`.
    """
    run = Run.open(Path(folder))
    if run.result() is not None:
        return run
    with Lock(run.folder) if is_first_process() else contextlib.nullcontext() as lock:
        run = Run.open(run.folder, lock)  # again: another process may have finished it before the lock was ours
        if run.result() is not None:
            return run
        job = restore(run, settings_of(run))
        job.training.fabric.barrier()  # the first rank writes only after all have read
        if job.training.fabric.is_global_zero:
            job.run = run
            run.rewind(job.training.step, job.checksums)
            if job.training.step == 0:
                run.complete(fingerprint(job.task))
        return _go_on(job, quiet, checkpoint_seconds, stop_after)


@dataclass
class Job:
    """A run in progress; only the first rank has a ``run`` to write to."""

    folder: Path
    settings: Settings
    task: Task
    training: Training
    tally: Tally
    memory: PeakMemory
    run: Run | None = None
    checksums: dict[str, Any] | None = None  # of the files beside the checkpoint that it was restored from


def settings_of(run: Run, **changes: object) -> Settings:
    """The settings of a run, with changes."""
    try:
        return Settings.from_config(run.config | changes)
    except ValueError as error:
        raise RecordError(f"{run.folder / 'config.toml'}: {error}") from error


def _begin(folder: Path, settings: Settings) -> Job:
    task, fabric = settings.load_task(), launch(settings)
    memory = PeakMemory(fabric.device)  # the data are there already, the network is not
    return Job(folder, settings, task, start(settings, task, fabric), Tally(), memory)


def restore(run: Run, settings: Settings) -> Job:
    """A run as of its newest checkpoint, or before its first step if there is none yet."""
    state = checkpoint.load(run.checkpoint_folder) if checkpoint.exists(run.checkpoint_folder) else {}
    if "files" in state:
        run.check(state["files"])
    job = _begin(run.folder, settings)
    job.checksums = state.get("files")
    _refuse_other_data(run, job.task)
    if state:
        try:
            job.training.load_state_dict(state["training"])
            job.tally.load_state_dict(state["tally"])
        except (KeyError, ValueError, RuntimeError, IndexError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RecordError(
                f"{run.checkpoint_folder} does not fit the data and the network of {run.folder / 'config.toml'}: have "
                f"they changed since the training? ({reason})"
            ) from error
    return job


def _go_on(job: Job, quiet: bool, checkpoint_seconds: float, stop_after: float | None) -> Run:
    """Train to the end or to a signal, then write the result; an interrupted run can be continued."""
    settings, training = job.settings, job.training
    progress = Progress(
        f"{settings.method} {settings.data} seed {settings.seed}",
        training.steps,
        start=training.step,
        lines=N_LINES,
        quiet=quiet or job.run is None,
    )
    try:
        with stop_signals(stop_after) as stop, progress, job.tally.counting(training.model):
            _advance(job, stop, progress, checkpoint_seconds)
        if job.run is not None:
            job.run.write_result(build_result(settings, job.task, training, job.tally, job.run))
    except KeyboardInterrupt:
        raise Interrupted(job.folder) from None
    finally:
        part(job.training.fabric)
    return job.run or Run.open(job.folder)


def _advance(job: Job, stop: Stop, progress: Progress, checkpoint_seconds: float) -> None:
    training, tally, weights = job.training, job.tally, sparse_weights(job.training.model)
    saved = start = time.perf_counter()
    work = work_of(weights, training)
    for values in training.run():
        is_epoch, is_last = training.step % training.batches.per_epoch == 0, training.step == training.steps
        is_due = time.perf_counter() - saved >= checkpoint_seconds
        wants_stop, is_due = _on_any_rank(training, [stop.is_set, is_due])
        saves = wants_stop or is_due or is_last
        if is_epoch or saves:
            _wait(training)
            training.check()  # before anything is written down
        tally.add(values, work, time.perf_counter() - start)
        if job.run is not None:
            record_updates(job.run, training)
            if is_epoch:
                row = record_epoch(job.run, job.task, training, tally)
                progress.update(training.step, partial(describe, row, job.settings.epochs))
        if saves:
            _save(job)
            saved = time.perf_counter()
        progress.update(training.step)
        if wants_stop and not is_last:
            raise Interrupted(job.folder)
        work = work_of(weights, training)
        start = time.perf_counter()


def _wait(training: Training) -> None:
    """Wait for queued steps of a GPU: their time belongs to training, not to the next read of a value."""
    if training.fabric.device.type == "cuda":
        torch.cuda.synchronize(training.fabric.device)


def _on_any_rank(training: Training, flags: list[bool]) -> list[bool]:
    """Whether any rank has a flag set, agreed between all ranks at the same step."""
    if training.fabric.world_size > 1 and training.step % STEPS_BETWEEN_TALKS:
        return [False] * len(flags)
    return on_any_rank(flags, training.fabric.device)


def _save(job: Job) -> None:
    job.tally.see_memory(job.memory.growth())
    state = {"training": job.training.state_dict(), "tally": job.tally.state_dict()}  # every rank contributes
    if job.run is not None:
        job.run.still_here()
        state["files"] = job.run.checksums()  # the records that the checkpoint counts are on the disk before it is
        checkpoint.save(job.run.checkpoint_folder, state, job.training.step)


def launch(settings: Settings) -> Fabric:
    """Start and connect the processes that train together; each of them returns from here."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # do not log how the ranks find each other
    fabric = Fabric(
        accelerator=settings.device,
        devices=settings.ranks,
        strategy="ddp" if settings.ranks > 1 else "auto",
        precision="bf16-mixed" if settings.is_bf16() else "32-true",
    )
    if settings.ranks > 1:
        fabric.launch()
    return fabric


def part(fabric: Fabric) -> None:
    """Leave the process group, so that this process can end.

    A thread of torch that has finished a message needs the interpreter's lock to release its tensors, while
    ``destroy_process_group`` holds that lock and waits for the thread; sleeping first lets the thread finish.
    """
    if fabric.world_size > 1 and dist.is_initialized():
        time.sleep(0.2)
        dist.destroy_process_group()


def start(settings: Settings, task: Task, fabric: Fabric) -> Training:
    """The training, before its first step."""
    steps = settings.epochs * -(-task.n_data // settings.batch_size)
    method = methods.build(settings.method, task, steps, **settings.options)
    torch.manual_seed(settings.seed)
    model = models.build(settings.model_name(task), task.input_shape, task.n_outputs)
    captures = settings.capture and settings.is_on_gpu()
    options = {"batch_size": settings.batch_size, "seed": settings.seed}
    return Training(method, model, task, steps, fabric, **options, captures=captures, fused=settings.fused)


def is_first_process() -> bool:
    """Whether the user started this process, not another rank."""
    rank: int = getattr(rank_zero_only, "rank", 0)
    return rank == 0


def _refuse_other_data(run: Run, task: Task) -> None:
    stored = run.data()
    differs = [] if stored is None else changed(stored, fingerprint(task))
    if differs:
        raise RecordError(
            f"{run.folder} began with other data: {', '.join(differs)} of {task.name} differ from its data.json; give "
            "the folder of the data it began with (GOSSAMER_DATA, or data_dir in config.toml), or train a new run"
        )


def _refuse_begun(folder: Path, other: str) -> None:
    if not (folder / "config.toml").exists():
        return refuse_taken(folder)
    quoted = shlex.quote(str(folder))
    is_finished = (folder / "result.json").exists()
    way_on = f"gossamer show {quoted} shows it" if is_finished else f"gossamer train --resume {quoted} continues it"
    kind = "a finished" if is_finished else "an unfinished"
    raise RecordError(f"{folder} holds {kind} run: {way_on}; a new one needs another {other}")
