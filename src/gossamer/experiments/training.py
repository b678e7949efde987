"""Train in a run folder, and continue there after any interruption, to the bit."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from torch import Tensor

from gossamer import checkpoint
from gossamer.evaluate import evaluate
from gossamer.experiments.progress import Progress
from gossamer.experiments.results import build_result
from gossamer.experiments.settings import Settings
from gossamer.layers import density, sparse_weights
from gossamer.posterior import SingleNetwork
from gossamer.record import RecordError, Run
from gossamer.train import Training
from gossamer.types import Task

__all__ = ["Interrupted", "restore", "resume", "train"]

CHECKPOINT_SECONDS = 30.0


class Interrupted(Exception):  # noqa: N818 - not an error: the run can go on
    """The run was stopped and can be continued from its checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"interrupted; continue with: gossamer train --resume {folder}")
        self.folder = folder


def train(settings: Settings, out: Path | str | None = None, *, quiet: bool = False) -> Run:
    """Train a new run and evaluate it on the test data.

    Args:
        settings: What to train, and how.
        out: The run folder, which must not hold anything yet; ``None`` is ``runs/<date>-<method>-<data>-<seed>``.
        quiet: No progress, no lines.

    Returns:
        The run; its ``result()`` has the numbers.

    Example:
        >>> import tempfile
        >>> settings = Settings("ssvi", "digits", epochs=1, n_draws=2, options={"density": 0.1})
        >>> run = train(settings, Path(tempfile.mkdtemp()) / "run", quiet=True)
        >>> run.result()["metrics"]["accuracy"] > 0.1
        True
    """
    task = settings.load_task()
    training = settings.start(task)
    folder = Path(out) if out is not None else _default_folder(settings)
    run = Run.create(folder, settings.to_config()) if training.fabric.is_global_zero else None
    return _go_on(run, folder, settings, task, training, Tally(), quiet)


def resume(folder: Path | str, *, quiet: bool = False) -> Run:
    """Continue an interrupted run: its final weights are those of a run without interruption.

    A finished run is returned as it is.

    Args:
        folder: The run folder.
        quiet: No progress, no lines.
    """
    run = Run.open(Path(folder))
    if run.result() is not None:
        return run
    settings, task, training, tally = restore(run)
    if training.fabric.is_global_zero:
        run.rewind(training.step)
    return _go_on(run if training.fabric.is_global_zero else None, run.folder, settings, task, training, tally, quiet)


def restore(run: Run) -> tuple[Settings, Task, Training, Tally]:
    """The training of a run as of its newest checkpoint, or before its first step where there is none yet."""
    config = run.folder / "config.toml"
    try:
        settings = Settings.from_config(run.config)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{config}: {error}") from error
    task = settings.load_task()
    training, tally = settings.start(task), Tally()
    if (run.checkpoint_folder / "latest.json").exists():
        state = checkpoint.load(run.checkpoint_folder)
        try:
            training.load_state_dict(state["training"])
            tally.load_state_dict(state["tally"])
        except (KeyError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise RecordError(f"{run.checkpoint_folder} does not fit {config}: {reason}") from error
    return settings, task, training, tally


@dataclass
class Tally:
    """Sums since the last line of metrics, and the time spent."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    count: int = 0
    seconds: float = 0.0
    seconds_before: float = 0.0  # at the last line of metrics
    n_updates: int = 0  # how many updates of the subspace are in the record

    def add(self, values: dict[str, Tensor]) -> None:
        """One step's values; they stay on their device."""
        self.sums = {name: self.sums.get(name, 0) + value.double() for name, value in values.items()}
        self.count += 1

    def means(self) -> dict[str, float]:
        """The means since the last call."""
        means = {name: float(total) / self.count for name, total in self.sums.items()}
        self.sums, self.count, self.seconds_before = {}, 0, self.seconds
        return means

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From the checkpoint."""
        for name in vars(self):
            setattr(self, name, state[name])


def _go_on(
    run: Run | None, folder: Path, settings: Settings, task: Task, training: Training, tally: Tally, quiet: bool
) -> Run:
    """Steps until the end or a signal; only the first rank (the one with a ``run``) writes."""
    per_epoch = training.batches.per_epoch
    saved = time.monotonic()
    with _stop_signal() as stop, Progress(settings, training, quiet=quiet or run is None) as progress:
        while training.step < training.steps:
            start = time.perf_counter()
            tally.add(training.advance())
            tally.seconds += time.perf_counter() - start
            if run is not None:
                _record_updates(run, training, tally)
                if training.step % per_epoch == 0:
                    progress.line(_record_epoch(run, task, training, tally))
                ends = training.step == training.steps
                if stop.is_set or ends or time.monotonic() - saved > CHECKPOINT_SECONDS:
                    _save(run, training, tally)
                    saved = time.monotonic()
            progress.advance(training.step)
            if stop.is_set and training.step < training.steps:
                raise Interrupted(folder)
    if run is not None:
        run.write_result(build_result(settings, task, training, tally.seconds, run))
        return run
    return Run.open(folder)


def _record_updates(run: Run, training: Training, tally: Tally) -> None:
    updates = [update for rule in training.rules for update in getattr(rule, "record", ())]
    for update in updates[tally.n_updates :]:
        run.append_update(update)
    tally.n_updates = len(updates)


def _record_epoch(run: Run, task: Task, training: Training, tally: Tally) -> dict[str, Any]:
    speed = tally.count * training.batches.batch_size / max(tally.seconds - tally.seconds_before, 1e-9)
    means = tally.means()
    row: dict[str, Any] = {
        "step": training.step,
        "epoch": training.step // training.batches.per_epoch,
        "loss": means["loss"],
        "nll": means["nll"],
        "kl": means["penalty"],
        "lr": training.method.lr(training.step - 1),
        "density": density(training.model) if sparse_weights(training.model) else 1.0,
    }
    if len(task.val[1]):
        # The network at its means: no random number is drawn, so looking does not change the training.
        values = evaluate(SingleNetwork(training.model), task, n_draws=1, split="val")
        names = [name for name in ("accuracy", "rmse", "nll") if name in values]
        row |= {f"val_{name}": values[name] for name in names}
    row |= {"examples_per_second": speed, "seconds": tally.seconds}
    run.append_metrics(row)
    return row


def _save(run: Run, training: Training, tally: Tally) -> None:
    state = {"training": training.state_dict(), "tally": tally.state_dict()}
    checkpoint.save(run.checkpoint_folder, state, training.step)


def _default_folder(settings: Settings) -> Path:
    name = f"{date.today().isoformat()}-{settings.method}-{settings.data}-{settings.seed}"
    return Path("runs") / name.replace("/", "-")


class _Stop:
    is_set = False


@contextlib.contextmanager
def _stop_signal() -> Iterator[_Stop]:
    """Ctrl-C and SIGTERM ask for a stop after the current step; a second one stops at once."""
    stop = _Stop()

    def ask(number: int, frame: Any) -> None:
        if stop.is_set:
            raise KeyboardInterrupt
        stop.is_set = True

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever runs us there stops us there
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
