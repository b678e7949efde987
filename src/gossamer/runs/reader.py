"""Reading a run back: a summary, its metrics computed again, predictions for new inputs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer import checkpoint
from gossamer.evaluate import split_of, summarize
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction
from gossamer.record import RecordError, Run
from gossamer.runs.result import predict_seeded, predict_split
from gossamer.types import Task

if TYPE_CHECKING:
    from gossamer.runs.job import Job


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
    rows |= {"options": run.config.get("options") or {}}
    lines = [f"  {name:<11}" + "  ".join(f"{k}={v}" for k, v in row.items()) for name, row in rows.items() if row]
    known = run.environment | run.environment.get("versions", {})
    made_by = [f"{key} {known[key]}" for key in ("gossamer", "torch", "python") if known.get(key)]
    lines.append("  made by    " + "  ".join(made_by))
    result = run.result()
    return "\n".join([str(run.folder), *lines, *(_position(run) if result is None else _outcome(run, result))])


def _position(run: Run) -> list[str]:
    rows = run.metrics()
    last = f"epoch {rows[-1]['epoch']} of {run.config.get('epochs')}" if rows else "no epoch is finished"
    return [f"  unfinished {last}; continue with: gossamer train --resume {shlex.quote(str(run.folder))}"]


def _outcome(run: Run, result: dict[str, Any]) -> list[str]:
    try:
        cost = result["cost"]
        return [
            "  test       " + "  ".join(f"{key} {value:.4g}" for key, value in result["metrics"].items()),
            f"  cost       {cost['active_parameters']:,} of {cost['total_parameters']:,} weights active  "
            f"{cost['seconds']:.1f} s of training  checkpoint {cost['checkpoint_bytes']:,} bytes",
        ]
    except (KeyError, TypeError, ValueError) as error:
        path = run.folder / "result.json"
        raise RecordError(f"{path} is broken ({error!r}): delete it and --resume the run") from error


def evaluate_run(folder: Path | str, n_draws: int | None = None, split: str = "test") -> dict[str, float]:
    """The metrics of a run, computed again from its newest checkpoint.

    Args:
        folder: The run folder.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.
        split: ``"train"``, ``"val"`` or ``"test"``.
    """
    job = restored(folder, **_drawing(n_draws))
    prediction = predict_split(job.training.posterior(), job.task, job.settings, split)
    return summarize(prediction, job.task, split_of(job.task, split)[1])


def predict_run(folder: Path | str, inputs: Path | str, n_draws: int | None = None) -> list[dict[str, Any]]:
    """Predictions of a run for new inputs.

    Args:
        folder: The run folder.
        inputs: A ``.npy`` array or a ``.csv`` table with one example per row, in the units of the data set: pixels from
            0 to 255 for the image sets that are read from files, original units for tables.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.

    Returns:
        One row per example: class, confidence, entropy and mutual information, or mean, std and the bounds of a 90 %
        interval in original units.
    """
    job = restored(folder, **_drawing(n_draws))
    x = read_inputs(Path(inputs), job.task)
    prediction = predict_seeded(job.training.posterior(), job.task, x, job.settings)
    columns = (_numbers if isinstance(job.task.likelihood, Gaussian) else _classes)(prediction, job.task)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _numbers(prediction: Prediction, task: Task) -> dict[str, list[Any]]:
    low, high = prediction.interval(0.9)
    columns = {"mean": prediction.mean, "low90": low, "high90": high}
    rows = {name: (value[:, 0] * task.target_std + task.target_mean).tolist() for name, value in columns.items()}
    return rows | {"std": (prediction.std[:, 0] * task.target_std).tolist()}


def _classes(prediction: Prediction, task: Task) -> dict[str, list[Any]]:
    names = task.class_names or tuple(map(str, range(task.n_outputs)))
    return {
        "class": [names[i] for i in prediction.probs.argmax(1).tolist()],
        "confidence": prediction.confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mutual_information": prediction.mutual_information.tolist(),
    }


def _drawing(n_draws: int | None) -> dict[str, Any]:
    return {} if n_draws is None else {"n_draws": n_draws}


def restored(folder: Path | str, **changes: Any) -> Job:
    """The run as of its newest checkpoint, in this process alone, on whatever device there is.

    ``changes`` replace settings of the run, such as ``n_draws`` or ``precision``.
    """
    from gossamer.runs.job import restore, settings_of

    run = Run.open(Path(folder))
    way_on = f"gossamer train --resume {shlex.quote(str(run.folder))}"
    if not checkpoint.exists(run.checkpoint_folder):
        raise RecordError(f"{run.folder} has no checkpoint yet: continue it with {way_on}")
    settings = replace(settings_of(run, device="auto", ranks=1), **changes)
    with torch.random.fork_rng():  # restoring a training restores its random state, too
        job = restore(run, settings)
    if run.result() is not None and job.training.step < job.training.steps:
        raise RecordError(
            f"{run.folder} is finished but lacks its last checkpoint: delete its result.json, then {way_on}"
        )
    return job


def read_inputs(path: Path, task: Task) -> Tensor:
    """New inputs from a file, as the task stores its own: one example per row.

    Images may have their channels last, or all their pixels in one row.
    """
    array = _array(path)
    stored = task.test[0]
    shape = tuple(stored.shape[1:])
    x = torch.from_numpy(np.ascontiguousarray(array))
    if x.shape == shape:
        x = x.unsqueeze(0)
    if x.dim() and x.shape[1:] != shape and x.shape[1:].numel() == stored[0].numel():
        is_channels_last = len(shape) == 3 and tuple(x.shape[1:]) == (*shape[1:], shape[0])
        x = x.movedim(-1, 1) if is_channels_last else x.reshape(-1, *shape)
    if not x.dim() or x.shape[1:] != shape:
        raise RecordError(f"{path} has examples of shape {tuple(x.shape[1:])}, {task.name} has {shape}")
    if not len(x):
        raise RecordError(f"{path} has no examples")
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).flatten(1).any(1).nonzero()[0]) + 1
        raise RecordError(f"{path} has numbers that are not finite, the first in row {row}")
    if stored.dtype == torch.uint8 and bool(((x < 0) | (x > 255) | (x != x.round())).any()):
        raise RecordError(f"{path} must have whole numbers from 0 to 255: {task.name} stores its pixels so")
    return x.to(stored.dtype)


def _array(path: Path) -> npt.NDArray[Any]:
    """The file as an array of numbers."""
    if path.suffix not in (".npy", ".csv"):
        raise RecordError(f"{path}: inputs are read from .npy or .csv files")
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _table(path)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise RecordError(f"{path} is not an array of numbers: {str(error).splitlines()[0]}") from error
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating) or array.dtype == bool):
        raise RecordError(f"{path} is not an array of numbers but of {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch reads this machine's byte order only


def _table(path: Path) -> npt.NDArray[Any]:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    if lines and not _is_number(lines[0].split(",")[0]):
        lines = lines[1:]  # names of the columns
    return np.loadtxt(lines, delimiter=",", ndmin=2) if lines else np.zeros((0, 0))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
