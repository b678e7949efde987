"""What can be asked of a run that is there: its numbers again, predictions for new inputs, a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.experiments.results import predict_split, quality
from gossamer.experiments.training import restore
from gossamer.likelihoods import Gaussian
from gossamer.posterior import predict
from gossamer.record import RecordError, Run
from gossamer.types import Task

__all__ = ["evaluate_run", "predict_run", "show"]


def evaluate_run(folder: Path | str, n_draws: int | None = None, split: str = "test") -> dict[str, float]:
    """The metrics of a run, computed again from its newest checkpoint.

    Args:
        folder: The run folder.
        n_draws: How many networks to draw; ``None`` as many as the run was told.
        split: ``"train"``, ``"val"`` or ``"test"``.
    """
    settings, task, training, _ = restore(_with_checkpoint(folder))
    if n_draws is not None:
        settings = settings.__class__(**{**settings.to_config(), "n_draws": n_draws})
    prediction = predict_split(training.posterior(), task, settings, split)
    metrics: dict[str, float] = quality(prediction, task, split)["metrics"]
    return metrics


def predict_run(folder: Path | str, inputs: Path | str, n_draws: int | None = None) -> list[dict[str, Any]]:
    """Predictions of a run for new inputs.

    Args:
        folder: The run folder.
        inputs: A ``.npy`` array or a ``.csv`` table with one example a row, in the form of the data set: images as
            whole numbers from 0 to 255 or as its own numbers, tables in their original units.
        n_draws: How many networks to draw; ``None`` as many as the run was told.

    Returns:
        A row an example: class, confidence, entropy and mutual information, or mean, std and the bounds of a 90 %
        interval in original units.
    """
    settings, task, training, _ = restore(_with_checkpoint(folder))
    x = task.transform(_read_inputs(Path(inputs), task))
    likelihood = task.likelihood if isinstance(task.likelihood, Gaussian) else None
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        prediction = predict(training.posterior(), x, n_draws or settings.n_draws, likelihood=likelihood)
    if likelihood is not None:
        low, high = prediction.interval(0.9)
        columns = {"mean": prediction.mean, "low90": low, "high90": high}
        rows = {name: (value[:, 0] * task.target_std + task.target_mean).tolist() for name, value in columns.items()}
        rows["std"] = (prediction.std[:, 0] * task.target_std).tolist()
    else:
        names = task.class_names or tuple(map(str, range(task.n_outputs)))
        rows = {
            "class": [names[i] for i in prediction.probs.argmax(1).tolist()],
            "confidence": prediction.confidence.tolist(),
            "entropy": prediction.entropy.tolist(),
            "mutual_information": prediction.mutual_information.tolist(),
        }
    return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]


def show(folder: Path | str) -> str:
    """A run in a few lines: what it was told, how far it is, what it reached."""
    run = Run.open(Path(folder))
    told = "  ".join(f"{key}={value}" for key, value in run.config.items() if key != "options")
    options = run.config.get("options") or {}
    lines = [str(run.folder), f"  settings   {told}"]
    if options:
        lines.append("  options    " + "  ".join(f"{key}={value}" for key, value in options.items()))
    lines.append("  made by    " + "  ".join(f"{key} {value}" for key, value in _versions(run).items()))
    result, rows = run.result(), run.metrics()
    if result is None:
        last = f"epoch {rows[-1]['epoch']} of {run.config.get('epochs')}" if rows else "no epoch is finished"
        lines.append(f"  unfinished {last}; continue with: gossamer train --resume {run.folder}")
    else:
        lines.append("  test       " + "  ".join(f"{key} {value:.4g}" for key, value in result["metrics"].items()))
        cost = result["cost"]
        lines.append(
            f"  cost       {cost['active_parameters']:,} of {cost['total_parameters']:,} weights active  "
            f"{cost['seconds']:.1f} s of training  checkpoint {cost['checkpoint_bytes']:,} bytes"
        )
    return "\n".join(lines)


def _versions(run: Run) -> dict[str, Any]:
    versions = run.environment.get("versions", run.environment)
    return {key: versions[key] for key in ("gossamer", "torch", "python") if versions.get(key)}


def _with_checkpoint(folder: Path | str) -> Run:
    run = Run.open(Path(folder))
    if not (run.checkpoint_folder / "latest.json").exists():
        raise RecordError(f"{run.folder} has no checkpoint yet: continue it with gossamer train --resume {run.folder}")
    return run


def _read_inputs(path: Path, task: Task) -> Tensor:
    """Inputs as the task stores them."""
    shape, kind = tuple(task.test[0].shape[1:]), task.test[0].dtype
    try:
        array = np.load(path, allow_pickle=False) if path.suffix == ".npy" else _read_csv(path)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RecordError(f"{path} is not an array of numbers: {str(error).splitlines()[0]}") from error
    x = torch.from_numpy(np.ascontiguousarray(array))
    if x.shape == shape:
        x = x.unsqueeze(0)
    if x.shape[1:] != shape and x[0].numel() == task.test[0][0].numel():
        is_channels_last = len(shape) == 3 and tuple(x.shape[1:]) == (*shape[1:], shape[0])
        x = x.movedim(-1, 1) if is_channels_last else x.reshape(-1, *shape)
    if x.shape[1:] != shape:
        raise RecordError(f"{path} has examples of shape {tuple(x.shape[1:])}, {task.name} has {shape}")
    return x.to(kind)


def _read_csv(path: Path) -> np.ndarray[Any, Any]:
    if path.suffix != ".csv":
        raise RecordError(f"{path}: inputs are read from .npy or .csv files")
    with path.open() as file:
        header = file.readline()
    skip = 0 if _is_number(header.split(",")[0]) else 1
    return np.loadtxt(path, delimiter=",", skiprows=skip, ndmin=2)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
