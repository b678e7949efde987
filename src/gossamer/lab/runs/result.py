"""What a run has reached: its result, and the run itself as a posterior and a network in Python."""

from __future__ import annotations

import logging
import math
import shlex
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from gossamer.data.own.record import check_record
from gossamer.deploy.files import save
from gossamer.deploy.programs import Format, What, export
from gossamer.evaluate import predict_inputs, summarize
from gossamer.files.atomic import checked
from gossamer.files.schema import Count, Finite
from gossamer.lab.record import RecordError, Run
from gossamer.lab.record.contents import DATA, RESULT
from gossamer.lab.runs import curves
from gossamer.lab.runs.accounting import cost_of, prediction_seconds
from gossamer.lab.runs.settings import Settings
from gossamer.lab.runs.tables import largest_error, noise_of, with_errors
from gossamer.posterior import LocalPasses, Prediction, SingleNetwork
from gossamer.posterior.in_layers import is_bayesian
from gossamer.train import checkpoint
from gossamer.types import Posterior, Task

if TYPE_CHECKING:  # a job trains and writes results, so it imports this file
    from gossamer.lab.runs.job import Job


def build_result(job: Job, run: Run) -> dict[str, Any]:
    """The content of ``result.json``: what training did and reached, never what an option promised."""
    from gossamer.train.fitting import calibrate_held_out, objection_to

    settings, task, training = job.settings, job.task, job.training
    start = time.perf_counter()
    posterior = training.posterior()  # some methods compute a part of it here, and that is training, too
    noise = noise_of(settings, task)
    job.tally.seconds += time.perf_counter() - start
    calibration = calibrate_held_out(training) if settings.calibrate else None
    if calibration is not None:
        posterior = training.posterior()
    error = largest_error(task, lambda x: job.predict(x, posterior))
    if error is not None:
        task = job.task = with_errors(task, error, noise)
    prediction = job.predict(task.test[0], posterior)
    result = _quality(prediction, task)
    with training.noise:  # a layer may have to be drawn to be counted
        cost, layers = cost_of(training, posterior, task, job.tally, run)
    latency = prediction_seconds(lambda x: job.predict(x, posterior), task.test[0])
    others = _other_predictions(job, posterior)
    warnings = [text for text in (objection_to(training, posterior),) if text]
    for text in warnings:
        logging.getLogger("gossamer").warning(f"{settings.method} on {settings.data_name}: {text}")
    of_weights, stds = curves.weight_curves(posterior)
    result["curves"] |= of_weights
    return {
        "method": settings.method,
        "data": task.name,
        "model": settings.model_name(task),
        "seed": settings.seed,
        "options": settings.options,
        "n_draws": settings.n_draws,
        **result,
        **({"predictions": {"draws": result["metrics"], **others}} if others else {}),
        "cost": cost | {"prediction_seconds": latency},
        "layers": [row | ({"std_quantiles": stds[row["name"]]} if row["name"] in stds else {}) for row in layers],
        "class_names": list(task.class_names),
        **({"warnings": warnings} if warnings else {}),
        **({"calibration": calibration._asdict()} if calibration else {}),
        **({} if error is None else {"largest_error": error, "held_out_noise": noise}),
        **({"lr_limit": asdict(training.limit)} if math.isfinite(training.limit.most) else {}),
    }


def _other_predictions(job: Job, posterior: Posterior) -> dict[str, dict[str, float]]:
    """Metrics of the posterior's network at its means, and of passes with local noise, refreshed as its draws are."""
    model, refresh = posterior.model, posterior.refresh
    if not is_bayesian(model):
        return {}
    x, y = job.task.test
    ways: dict[str, Posterior] = {"mean": SingleNetwork(model, refresh), "local": LocalPasses(model, refresh)}
    return {name: summarize(job.predict(x, way), job.task, y) for name, way in ways.items()}


def _quality(prediction: Prediction, task: Task) -> dict[str, Any]:
    y = task.test[1]
    result: dict[str, Any] = {"metrics": summarize(prediction, task, y)}
    if task.kind == "regression":
        return result | {"curves": curves.number_curves(prediction, task, y)}
    return result | {"curves": curves.class_curves(prediction, y), "examples": curves.examples(prediction, task.test)}


class _Cost(TypedDict):
    active_parameters: Count
    total_parameters: Count
    checkpoint_bytes: Count
    seconds: Finite


class _Outcome(TypedDict):
    model: str
    cost: _Cost


class _Numbers(TypedDict):
    metrics: dict[str, float | None]
    cost: dict[str, float | None]
    shift: NotRequired[dict[str, float | None]]


def stored_result(run: Run) -> dict[str, Any] | None:
    """The result of a run, its metrics and costs checked; ``None`` if the run is not finished."""
    result = run.result()
    if result is not None:
        for hint in (_Outcome, _Numbers):
            checked(result, hint, run.folder / RESULT, "delete it, and --resume writes it again")
    return result


def stored_record(run: Run) -> dict[str, Any] | None:
    """How data of the user's own became numbers; ``None`` for a published data set."""
    own: dict[str, Any] | None = (run.data() or {}).get("own")
    try:
        return None if own is None else check_record(own, run.folder / DATA)
    except ValueError as error:
        raise RecordError(str(error)) from error


def restored(folder: Path | str, task: Task | None = None, /, **changes: Any) -> Job:
    """The run as of its newest checkpoint, in this process alone, on whatever device there is.

    ``changes`` that are not ``None`` replace settings of the run, such as ``n_draws`` or ``precision``; a ``task``
    stands for its data, which are then not loaded.
    """
    from gossamer.lab.runs.folders import settings_of
    from gossamer.lab.runs.job import restore

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


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What a run has left, from :func:`load_run`.

    Attributes:
        folder: The run folder.
        settings: Its settings.
        task: Its data.
        posterior: Its posterior, for :func:`gossamer.predict`, :func:`gossamer.save` and :func:`gossamer.export`.
    """

    folder: Path
    settings: Settings
    task: Task
    posterior: Posterior

    @property
    def model(self) -> nn.Module:
        """The network as it was trained: with distributions in its layers, if the method has these."""
        return self.posterior.model

    def network(self) -> nn.Module:
        """A plain torch network at the means of the weights; ensembles have none, only draws."""
        return self.posterior.mean_network()

    def predict(self, x: Tensor, n_draws: int | None = None) -> Prediction:
        """The prediction for inputs in the form that the data set stores: bytes of images, standardised columns."""
        return predict_inputs(self.posterior, self.task, x, n_draws or self.settings.n_draws)

    def save(self, file: Path | str, **options: Any) -> Path:
        """Write the posterior to one file: :func:`gossamer.save`."""
        return save(self.posterior, file, **options)

    def export(
        self, file: Path | str, *, format: Format = "onnx", what: What = "mean", n_draws: int | None = None
    ) -> Path:
        """Write a network that runs without Gossamer, in the units of the data: :func:`gossamer.export`."""
        count = n_draws or self.settings.n_draws
        return export(self.posterior, file, format=format, what=what, n_draws=count, task=self.task)


def load_run(folder: Path | str, *, device: str | torch.device = "auto", unfinished: bool = False) -> TrainedRun:
    """The posterior and the network of a run, for every method.

    The data are read again from where the run read them: posteriors that refresh batch normalisation need them.

    Args:
        folder: The run folder.
        device: Where the network is to be: ``"cpu"``, ``"cuda"``, or ``"auto"``, a GPU if there is one.
        unfinished: Take a run that is not finished as of its newest checkpoint.

    Example:
        >>> import tempfile
        >>> from gossamer.lab import Settings, train
        >>> settings = Settings("ssvi", "digits", epochs=1, n_draws=2, options={"density": 0.1})
        >>> run = load_run(train(settings, Path(tempfile.mkdtemp()) / "run", quiet=True).folder)
        >>> run.predict(run.task.test[0][:3]).probs.shape, run.network()[1]
        (torch.Size([3, 10]), Linear(in_features=64, out_features=256, bias=True))
    """
    run = Run.open(Path(folder))
    if run.result() is None and not unfinished:
        way_on = f"gossamer train --resume {shlex.quote(str(run.folder))}"
        raise RecordError(
            f"{run.folder} is not finished: continue it with {way_on}, or take its newest checkpoint with "
            "load_run(folder, unfinished=True)"
        )
    job = restored(run.folder, device=str(device))
    return TrainedRun(run.folder, job.settings, job.task, job.training.posterior())
