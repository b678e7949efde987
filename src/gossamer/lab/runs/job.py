"""Train in a run folder, and continue there after any interruption, to the bit."""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gossamer import methods, models
from gossamer._text.terminal import Progress, printable
from gossamer.data import DataNotFoundError, describe_data
from gossamer.data.own.record import TrainingDataNeededError
from gossamer.distributed import OneProcess, OwnNoise, on_any_rank
from gossamer.evaluate import predict_inputs
from gossamer.files.schema import Count
from gossamer.files.schema import check as check_value
from gossamer.lab.record import Lock, RecordError, Run
from gossamer.lab.record.contents import UPDATES
from gossamer.lab.record.run import check_lock
from gossamer.lab.runs.accounting import Tally, describe, record_epoch, watch_memory, work_of
from gossamer.lab.runs.folders import (
    new_folder,
    notes_on,
    refuse_begun,
    refuse_other_data,
    settings_of,
    stored_record,
)
from gossamer.lab.runs.progress import (
    Interrupted,
    SeenEnough,
    as_started,
    draws_shown,
    is_by_torchrun,
    is_first_process,
    launch,
    part,
    showing_draws,
    stop_signals,
    together,
)
from gossamer.lab.runs.result import build_result, with_errors
from gossamer.lab.runs.settings import CHECKPOINT_SECONDS, Settings, is_table, prepared, with_inputs
from gossamer.lab.runs.unfinished import Unfinished
from gossamer.layers import sparse_weights
from gossamer.posterior import Calibration, Prediction
from gossamer.train import Training, checkpoint
from gossamer.train.divergence import DivergenceError
from gossamer.train.fitting import calibrate_held_out
from gossamer.types import Method, Posterior, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

HELD_OUT_OF_OWN, LEAST_OF_OWN = 5, 50  # a fifth, and how many examples tell how sure a network may be
N_LINES = 50  # of progress, where there is no terminal
STEPS_BETWEEN_TALKS = 10  # between ranks: each exchange makes a GPU wait

Watch = Callable[[Mapping[str, Any]], bool]
"""The row of an epoch, as ``metrics.jsonl`` has it, and how many ``epochs`` there are -> whether training goes on."""


def train(
    settings: Settings,
    out: Path | str | None = None,
    *,
    quiet: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: float | None = None,
    watch: Watch = lambda row: True,
    lock: Lock | None = None,
) -> Run:
    """Train a new run and evaluate it on the test data.

    Args:
        settings: What to train, and how.
        out: The run folder, which must not hold anything yet; ``None`` is ``runs/<date>-<method>-<data>-<seed>``, with
            a number after it if there is such a folder.
        quiet: Show no progress.
        checkpoint_seconds: Seconds between checkpoints; there is always one at the end.
        stop_after: Seconds after which training stops with a checkpoint, from which :func:`resume` continues.
        watch: Called with the row of each epoch before its checkpoint; where it returns false, training stops with a
            checkpoint and raises :class:`~gossamer.lab.runs.progress.SeenEnough`. For one process, not for ranks.
        lock: The lock on ``out``, if the caller holds it.

    Returns:
        The run; its ``result()`` has the numbers.

    Example:
        >>> import tempfile
        >>> settings = Settings("ssvi", "digits", epochs=1, n_draws=2, options={"density": 0.1})
        >>> run = train(settings, Path(tempfile.mkdtemp()) / "run", quiet=True)
        >>> run.result()["metrics"]["accuracy"] > 0.1
        True
    """
    settings = as_started(settings)
    if is_first_process() and out is not None:
        refuse_begun(Path(out))  # before anything is loaded
    settings, task = prepared(settings)
    job = _begin(Path(out or "runs"), settings, task)
    fabric = job.training.fabric
    if out is None:
        name = str(new_folder(settings)) if fabric.is_global_zero else ""
        with together(None, settings.ranks):
            job.folder = Path(fabric.broadcast(name))
    with _locked(job.folder, lock, fabric.is_global_zero) as held:
        if held is not None:
            job.run = Run.create(job.folder, settings.to_config(), notes_on(job.task), held, _used(job))
            if job.task.record is not None and not quiet:
                print(printable(describe_data(job.task.record)), file=sys.stderr, flush=True)
        return _go_on(job, quiet, checkpoint_seconds, stop_after, watch)


def resume(
    folder: Path | str,
    *,
    quiet: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: float | None = None,
    data: str | None = None,
    watch: Watch = lambda row: True,
    lock: Lock | None = None,
    ranks: int | None = None,
) -> Run:
    """Continue an interrupted run: its final weights are those of a run without interruption.

    A finished run is returned as it is. ``data`` is where the run's data are now, if they have moved. ``ranks`` is how
    many processes train from here on, by default as many as before; with another number the noise is drawn anew, so
    that the weights are as good, but not the same. The other options are those of :func:`train`.
    """
    run = Run.open(Path(folder))
    if run.result() is not None:
        return run
    with _locked(run.folder, lock, is_first_process()) as held:
        run = Run.open(run.folder, held)  # again: another process may have finished it before the lock was ours
        if run.result() is not None:
            return run
        changes = {"data": data, "ranks": ranks or (1 if is_by_torchrun() else None)}
        settings = as_started(settings_of(run, **{name: value for name, value in changes.items() if value is not None}))
        job = restore(run, settings)
        with together(run.folder, settings.ranks):
            job.training.fabric.barrier()  # the first rank writes only after all have read
        if job.training.fabric.is_global_zero:
            job.run = run
            _tell_of_ranks(job)
            run.rewind(job.training.step, job.checksums)
            if job.training.step == 0:
                run.complete(notes_on(job.task), _used(job))
        return _go_on(job, quiet, checkpoint_seconds, stop_after, watch)


@dataclass
class Job:
    """A run in progress; only the first rank has a ``run`` to write to."""

    folder: Path
    settings: Settings
    task: Task
    training: Training
    tally: Tally
    memory_before: int  # bytes of tensors on a GPU
    run: Run | None = None
    checksums: dict[str, Any] | None = None  # of the files beside the checkpoint that it was restored from
    ranks_before: int | None = None  # when that checkpoint was made
    second_training: dict[str, Any] | None = None  # that calibrated this one
    unfinished: Unfinished | None = None  # of an evaluation

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What is computed; in an evaluation that may be killed, only once."""
        return compute() if self.unfinished is None else self.unfinished.once(name, compute)

    def predict(self, x: Tensor, posterior: Posterior | None = None) -> Prediction:
        """The prediction of the run's draws for inputs as the task stores them, by the same networks at every call."""
        posterior = posterior or self.training.posterior()
        n_draws, seed = self.settings.n_draws, self.settings.seed
        around = draws_shown(posterior.n_drawn(n_draws))
        around = around if self.unfinished is None else self.unfinished.around(x, around)
        return predict_inputs(posterior, self.task, x, n_draws, seed=seed, around=around)


def _begin(folder: Path, settings: Settings, task: Task) -> Job:
    with together(folder, settings.ranks):
        fabric = launch(settings)
        before = watch_memory(fabric.device)  # the data are there already, the network is not
        return Job(folder, settings, task, start(settings, task, fabric), Tally(), before)


def check(settings: Settings) -> None:
    """Load the data and build everything that the first step needs: what cannot be trained is an error."""
    start(*prepared(settings), launch(settings))


def restore(run: Run, settings: Settings, task: Task | None = None) -> Job:
    """A run as of its newest checkpoint, or before its first step if there is none yet.

    A ``task`` stands for the data of the run, which are then not loaded.
    """
    state = checkpoint.load(run.checkpoint_folder) if checkpoint.exists(run.checkpoint_folder) else {}
    if "files" in state:
        run.check(state["files"])
    try:
        job = _begin(run.folder, settings, task or with_inputs(settings.load_task(), stored_record(run) or {}))
    except DataNotFoundError as error:
        if isinstance(error, TrainingDataNeededError):
            raise
        raise RecordError(f"{error}. If the data have moved, name where they are with --data") from error
    job.checksums = state.get("files")
    if task is None:
        refuse_other_data(run, job.task)
    shapes = [parameter.shape for parameter in job.training.model.parameters()]
    if state:
        try:
            check_value(state["training"]["step"], Count, "the step", "restore the checkpoint")
            job.training.load_state_dict(state["training"])
            job.tally.load_state_dict(state["tally"])
            job.ranks_before = len(state["training"]["random"]["cpu"])
            result = run.result() or {}
            calibration = result.get("calibration")
            job.training.calibration = calibration and Calibration(**calibration)
            if "largest_error" in result:
                job.task = with_errors(job.task, result["largest_error"], result.get("held_out_noise", []))
        except Exception as error:  # a state that does not fit may raise anything, and names no file
            reason = " ".join(str(error).split())[:200]
            raise RecordError(
                f"{run.checkpoint_folder} does not fit the data and the network of {run.folder / 'config.toml'}: have "
                f"they changed since the training? ({reason})"
            ) from error
    if settings.ranks > 1 and shapes != [parameter.shape for parameter in job.training.model.parameters()]:
        raise RecordError(
            f"{run.folder} has removed weights for good, which several ranks cannot follow: continue it with --ranks 1"
        )
    return job


def restored(folder: Path | str, task: Task | None = None, /, **changes: Any) -> Job:
    """The run as of its newest checkpoint, in this process alone, on whatever device there is.

    ``changes`` that are not ``None`` replace settings of the run, such as ``n_draws`` or ``precision``; a ``task``
    stands for its data, which are then not loaded.
    """
    run = Run.open(Path(folder))
    way_on = f"gossamer train --resume {shlex.quote(str(run.folder))}"
    if not checkpoint.exists(run.checkpoint_folder):
        raise RecordError(f"{run.folder} has no checkpoint yet: continue it with {way_on}")
    given = {name: value for name, value in changes.items() if value is not None}
    settings = replace(settings_of(run, device="auto", ranks=1), **given)
    job = restore(run, settings, task)
    if run.result() is not None and job.training.step < job.training.steps:
        raise RecordError(
            f"{run.folder} is finished but lacks its last checkpoint: delete its result.json, then {way_on}"
        )
    return job


def _locked(folder: Path, lock: Lock | None, writes: bool) -> AbstractContextManager[Lock | None]:
    """A lock on the folder for the process that writes to it, unless the caller holds one."""
    return contextlib.nullcontext(lock) if lock is not None or not writes else Lock(folder)


def _go_on(job: Job, quiet: bool, checkpoint_seconds: float, stop_after: float | None, watch: Watch) -> Run:
    """Train to the end or to a signal, then write the result; an interrupted run can be continued."""
    settings, training = job.settings, job.training
    title = f"{settings.method} {settings.data_name} seed {settings.seed}"
    progress = Progress(
        title,
        training.steps,
        start=training.step,
        lines=N_LINES,
        quiet=quiet or job.run is None,
    )
    try:
        with (
            together(job.folder, settings.ranks),
            stop_signals(stop_after) as stop,
            progress,
            job.tally.counting(training.model),
        ):
            _advance(job, stop, progress, checkpoint_seconds, watch)
        part()  # the first rank evaluates alone, and needs no other
        if job.run is not None:
            if settings.calibrate:
                _calibrate(job, title, quiet)
            with showing_draws(f"evaluating {title}", quiet=quiet):
                result = build_result(job, job.run)
            job.run.write_result(result)
    except KeyboardInterrupt:
        raise Interrupted(job.folder) from None
    finally:
        part()
    return job.run or Run.open(job.folder)


def _calibrate(job: Job, title: str, quiet: bool) -> None:
    """Fit width and logits on held-out examples, or on a fifth of own ones that a second training does not see.

    A network that has learnt a few images by heart is far too sure, and holding out enough of them costs accuracy.
    """
    training, task, (x, y) = job.training, job.task, job.task.train
    n = len(y) // HELD_OUT_OF_OWN
    enough = calibrate_held_out(training) is not None or n < LEAST_OF_OWN or not training.method.calibrates
    if enough or task.record is None or task.kind == "regression" or is_table(task) or job.settings.ranks > 1:
        return
    start_time, order = time.perf_counter(), torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    held, rest = order[:n], order[n:]
    again = start(job.settings, task._replace(train=(x[rest], y[rest]), val=(x[held], y[held])), training.fabric)
    try:
        with Progress(f"calibrating {title}, by training without {n:,} examples", again.steps, quiet=quiet) as progress:
            for _ in again.run():
                progress.update(again.step, lambda: f"step {again.step} of {again.steps}")
    except DivergenceError as error:
        logging.getLogger("gossamer").warning(f"the second training diverged, and nothing is calibrated: {error}")
        return
    training.calibration = calibrate_held_out(again, least=n)
    job.second_training = {"n_held_out": n, "seconds": time.perf_counter() - start_time}


def _advance(job: Job, stop: Callable[[], bool], progress: Progress, checkpoint_seconds: float, watch: Watch) -> None:
    training, tally, weights = job.training, job.tally, sparse_weights(job.training.model)
    saved = start = time.perf_counter()
    work = work_of(weights, training)
    for values in training.run():
        is_epoch, is_last = training.step % training.batches.per_epoch == 0, training.step == training.steps
        is_due = time.perf_counter() - saved >= checkpoint_seconds
        wants_stop, is_due = _on_any_rank(training, [stop(), is_due])
        saves, goes_on = wants_stop or is_due or is_last, True
        if is_epoch or saves:
            _wait(training)
            training.check()  # before anything is written down
        tally.add(values, work, time.perf_counter() - start)
        means = tally.means() if is_epoch else {}  # every rank contributes
        if job.run is not None:
            for update in training.updates:
                job.run.append(update, UPDATES)
            training.updates.clear()
            if is_epoch:
                row = record_epoch(job.run, job.task, training, means, tally.seconds)
                goes_on = watch({**row, "epochs": training.epochs})
                progress.update(training.step, partial(describe, row, training.epochs))
        if saves or not goes_on:
            _save(job)
            saved = time.perf_counter()
        progress.total = training.steps  # another round may have begun
        progress.update(training.step)
        if wants_stop and not is_last:
            raise Interrupted(job.folder)
        if not goes_on and not is_last:
            raise SeenEnough(job.folder)
        work = work_of(weights, training)
        start = time.perf_counter()


def _wait(training: Training) -> None:
    """Wait until a GPU has finished its queued steps, so that their time counts as training."""
    if training.fabric.device.type == "cuda":
        torch.cuda.synchronize(training.fabric.device)


def _on_any_rank(training: Training, flags: list[bool]) -> list[bool]:
    """Whether any rank has a flag set, agreed between all ranks at the same step."""
    if training.fabric.world_size > 1 and training.step % STEPS_BETWEEN_TALKS:
        return [False] * len(flags)
    return on_any_rank(flags, training.fabric.device)


def _save(job: Job) -> None:
    device = job.training.fabric.device
    if device.type == "cuda":
        growth = torch.cuda.max_memory_allocated(device) - job.memory_before
        job.tally.peak_memory = max(growth, job.tally.peak_memory or 0)
    state = {"training": job.training.state_dict(), "tally": job.tally.state_dict(device)}  # every rank contributes
    if job.run is not None:
        check_lock(job.run)
        state["files"] = job.run.checksums()  # the records that the checkpoint counts are on the disk before it is
        checkpoint.save(job.run.checkpoint_folder, state, job.training.step)


def start(settings: Settings, task: Task, fabric: OneProcess | Fabric) -> Training:
    """The training, before its first step."""
    _ = task.kind  # what cannot be evaluated is refused now, not after the training
    assert settings.epochs is not None
    assert settings.batch_size is not None
    steps = settings.epochs * -(-task.n_data // settings.batch_size)
    build = partial(models.build, settings.model_name(task), task.input_shape, task.n_outputs)
    with OwnNoise(settings.seed, fabric.device):
        model = build()
    captures = settings.capture and settings.is_on_gpu()
    method, task, more = method_and_task(settings, task, steps, model)
    return Training(
        method,
        model,
        task,
        steps,
        fabric,
        batch_size=settings.batch_size,
        seed=settings.seed,
        captures=captures,
        on_nan=settings.on_nan,
        build=build,
        rounds=settings.rounds or 1,
        **more,
    )


def method_and_task(
    settings: Settings, task: Task, steps: int, network: nn.Module
) -> tuple[Method, Task, dict[str, Any]]:
    """What trains, on which task, and how steps are taken: on tables with rates and noise that suit them."""
    if not is_table(task):
        return methods.build(settings.method, task, steps, **settings.options), task, {}
    from gossamer.estimators.members import native_steps
    from gossamer.estimators.plan import VARYING, rate_for_numbers

    rate = rate_for_numbers(settings.method, settings.options, task.likelihood)
    options = settings.options if rate is None else {**settings.options, "lr": rate}
    method = methods.build(settings.method, task, steps, **options).suited_to(network)
    method = method if rate is None else replace(method, lr_is_given=False)
    if task.has_numbers and not method.one_rate:
        task = task._replace(likelihood=VARYING)
    is_ours = settings.model in ("table", "table_one_noise")
    native = is_ours and not settings.is_on_gpu() and settings.ranks == 1
    return method, task, {"steps_by": native_steps} if native else {}


def _used(job: Job) -> dict[str, Any]:
    """What the run uses where its settings leave the choice open: ``effective`` in ``environment.json``."""
    settings, training = job.settings, job.training
    return {
        "model": settings.model_name(job.task),
        "device": str(training.fabric.device),
        "precision": "bf16" if settings.is_bf16() else "32",
        "steps": training.steps,
        "epochs": training.epochs,
        "members": training.method.members,
        **training.chosen,
    }


def _tell_of_ranks(job: Job) -> None:
    before, now = job.ranks_before, job.settings.ranks
    if before is not None and before != now:
        logging.getLogger("gossamer").warning(
            f"step {job.training.step} was reached with {before} rank(s), the rest trains with {now}: batches are "
            "shared anew and new ranks draw noise of their own, so that the numbers differ from those of one number"
        )
