"""What can be asked of a run that is there: its numbers again, predictions for new inputs."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gossamer import checkpoint
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction
from gossamer.record import RecordError, Run
from gossamer.runs.inputs import read_inputs
from gossamer.runs.results import predict_seeded, predict_split, quality
from gossamer.runs.starting import launch
from gossamer.runs.training import Job, restore, settings_of
from gossamer.types import Task

__all__ = ["evaluate_run", "predict_run"]


def evaluate_run(folder: Path | str, n_draws: int | None = None, split: str = "test") -> dict[str, float]:
    """The metrics of a run, computed again from its newest checkpoint.

    Args:
        folder: The run folder.
        n_draws: How many networks to draw; ``None`` as many as the run was told.
        split: ``"train"``, ``"val"`` or ``"test"``.
    """
    job = _read(folder, n_draws)
    prediction = predict_split(job.training.posterior(), job.task, job.settings, split)
    metrics: dict[str, float] = quality(prediction, job.task, split)["metrics"]
    return metrics


def predict_run(folder: Path | str, inputs: Path | str, n_draws: int | None = None) -> list[dict[str, Any]]:
    """Predictions of a run for new inputs.

    Args:
        folder: The run folder.
        inputs: A ``.npy`` array or a ``.csv`` table with one example a row, in the numbers of the data set: pixels from
            0 to 255 for the image sets that are read from files, original units for tables.
        n_draws: How many networks to draw; ``None`` as many as the run was told.

    Returns:
        A row an example: class, confidence, entropy and mutual information, or mean, std and the bounds of a 90 %
        interval in original units.
    """
    job = _read(folder, n_draws)
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


def _read(folder: Path | str, n_draws: int | None) -> Job:
    """The run as of its newest checkpoint, in this one process, on whatever device there is."""
    run = Run.open(Path(folder))
    way_on = f"gossamer train --resume {shlex.quote(str(run.folder))}"
    if not checkpoint.exists(run.checkpoint_folder):
        raise RecordError(f"{run.folder} has no checkpoint yet: continue it with {way_on}")
    settings = settings_of(run, device="auto", ranks=1)
    if n_draws is not None:
        settings = replace(settings, n_draws=n_draws)
    with torch.random.fork_rng():  # a restored training takes the random state along
        job = restore(run, settings, settings.load_task(), launch(settings))
    if run.result() is not None and job.training.step < job.training.steps:
        raise RecordError(
            f"{run.folder} is finished but lacks its last checkpoint: delete its result.json, then {way_on}"
        )
    return job
