"""Reading a run back: a summary, its metrics computed again, predictions for new inputs."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gossamer.data.own import describe as describe_data
from gossamer.data.own.record import TrainingDataNeededError, task_without_data
from gossamer.evaluate import split_of, summarize
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.draw_progress import showing_draws
from gossamer.lab.runs.inputs import named_inputs, outside_range, read_inputs
from gossamer.lab.runs.result import predict_seeded, predict_split
from gossamer.lab.runs.stored import stored_record, stored_result
from gossamer.posterior import Prediction
from gossamer.train import checkpoint
from gossamer.types import Task

if TYPE_CHECKING:
    from gossamer.lab.runs.job import Job

__all__ = ["evaluate_run", "predict_run", "read_inputs", "restored", "show"]


def show(folder: Path | str) -> str:
    """A run in a few lines: its settings, how far it is, what it reached.

    Example:
        >>> import tempfile
        >>> run = Run.create(Path(tempfile.mkdtemp()) / "first", {"method": "ssvi", "epochs": 3})
        >>> print(show(run.folder).splitlines()[1])
          settings   method=ssvi  epochs=3
    """
    run = Run.open(Path(folder))
    rows = {"settings": {key: value for key, value in run.config.items() if key != "options"}}
    rows |= {"options": run.config.get("options") or {}, "effective": run.environment.get("effective") or {}}
    lines = [f"  {name:<11}" + "  ".join(f"{k}={v}" for k, v in row.items()) for name, row in rows.items() if row]
    known = run.environment | run.environment.get("versions", {})
    made_by = [f"{key} {known[key]}" for key in ("gossamer", "torch", "python") if known.get(key)]
    lines.append("  made by    " + "  ".join(made_by))
    own = stored_record(run)
    if own is not None:
        lines += [f"  data       {describe_data(own)}".replace("\n", "\n  ")]
    result = stored_result(run)
    return "\n".join([str(run.folder), *lines, *(_position(run) if result is None else _outcome(run, result))])


def _position(run: Run) -> list[str]:
    rows = run.metrics()
    epochs = run.environment.get("effective", {}).get("epochs", run.config.get("epochs"))  # of all members
    last = f"epoch {rows[-1].get('epoch')} of {epochs}" if rows else "no epoch is finished"
    return [f"  unfinished {last}; continue with: gossamer train --resume {shlex.quote(str(run.folder))}"]


def _outcome(run: Run, result: dict[str, Any]) -> list[str]:
    members = run.environment.get("effective", {}).get("members", 1)
    of_all = f" in {members} networks" if members != 1 else ""
    cost, known = result["cost"], {key: value for key, value in result["metrics"].items() if value is not None}
    return [
        "  test       " + "  ".join(f"{key} {value:.4g}" for key, value in known.items()),
        f"  cost       {cost['active_parameters']:,} of {cost['total_parameters']:,} weights active{of_all}  "
        f"{cost['seconds']:.1f} s of training  checkpoint {cost['checkpoint_bytes']:,} bytes",
    ]


def evaluate_run(
    folder: Path | str, n_draws: int | None = None, split: str = "test", *, data: str | None = None, quiet: bool = True
) -> dict[str, float]:
    """The metrics of a run, computed again from its newest checkpoint.

    Args:
        folder: The run folder.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.
        split: ``"train"``, ``"val"`` or ``"test"``.
        data: Where the data of the run are now, if they have moved.
        quiet: Show no progress.
    """
    job = restored(folder, n_draws=n_draws, data=data)
    with showing_draws(f"evaluating {Path(folder).name}", quiet=quiet):
        prediction = predict_split(job.training.posterior(), job.task, job.settings, split)
    return summarize(prediction, job.task, split_of(job.task, split)[1])


def predict_run(
    folder: Path | str,
    inputs: Path | str,
    n_draws: int | None = None,
    *,
    level: float = 0.9,
    data: str | None = None,
    quiet: bool = True,
) -> list[dict[str, Any]]:
    """Predictions of a run for new inputs; a warning says if they leave the range of the training data.

    A run on data of your own needs them no more, unless its method reads them to predict.

    Args:
        folder: The run folder.
        inputs: A table in a file, found by the names of its columns if the run was trained on one, a ``.npy`` or
            ``.npz`` file, an image or a folder of images, or ``"-"`` for CSV from standard input. One example per
            row, in the units of the data set: pixels from 0 to 255 for images in files, original units for tables.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.
        level: Probability of the intervals of numbers.
        data: Where the data of the run are now, if they have moved and are needed.
        quiet: Show no progress.

    Returns:
        One row per example: class, confidence, entropy, mutual information and the probability of each class, or mean,
        std and the bounds of an interval in original units.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1; got {level}")
    own = stored_record(Run.open(Path(folder)))
    changes = {"n_draws": n_draws, "data": data}
    job = restored(folder, **changes) if own is None else None
    task = job.task if job is not None else task_without_data(own or {})
    x, names = named_inputs(inputs, task)
    warning = outside_range(x, task)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    try:
        prediction = _predicted(job or restored(folder, task, **changes), x, quiet)
    except TrainingDataNeededError:
        prediction = _predicted(restored(folder, **changes), x, quiet)
    columns = names | (_numbers(prediction, task, level) if task.kind == "regression" else _classes(prediction, task))
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _predicted(job: Job, x: Tensor, quiet: bool) -> Prediction:
    with showing_draws(f"predicting {len(x):,} examples", quiet=quiet):
        return predict_seeded(job.training.posterior(), job.task, x, job.settings)


def _numbers(prediction: Prediction, task: Task, level: float) -> dict[str, list[Any]]:
    low, high = prediction.interval(level)
    percent = f"{100 * level:g}"
    columns = {"mean": prediction.mean, f"low{percent}": low, f"high{percent}": high}
    rows = {name: (value[:, 0] * task.target_std + task.target_mean).tolist() for name, value in columns.items()}
    spread = {"std": prediction.std, "epistemic_std": prediction.epistemic_std}
    return rows | {name: (value[:, 0] * task.target_std).tolist() for name, value in spread.items()}


def _classes(prediction: Prediction, task: Task) -> dict[str, list[Any]]:
    names = task.class_names or tuple(map(str, range(task.n_outputs)))
    probs = prediction.probs
    return {
        "class": [names[i] for i in probs.argmax(1).tolist()],
        "confidence": prediction.confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mutual_information": prediction.mutual_information.tolist(),
        **{f"p_{name}": probs[:, i].tolist() for i, name in enumerate(names)},
    }


def restored(folder: Path | str, task: Task | None = None, /, **changes: Any) -> Job:
    """The run as of its newest checkpoint, in this process alone, on whatever device there is.

    ``changes`` that are not ``None`` replace settings of the run, such as ``n_draws`` or ``precision``; a ``task``
    stands for its data, which are then not loaded.
    """
    from gossamer.lab.runs.job import restore, settings_of

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
