"""The result of a run: its quality, its cost, and the curves and examples of the report."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gossamer.distributed.devices import OwnNoise
from gossamer.evaluate import predict_inputs, split_of, summarize
from gossamer.lab.record import Run
from gossamer.lab.runs import curves
from gossamer.lab.runs.cost import cost_of, prediction_seconds
from gossamer.lab.runs.draw_progress import watched
from gossamer.lab.runs.settings import Settings
from gossamer.lab.runs.tally import Tally
from gossamer.posterior import LocalPasses, Prediction, SingleNetwork
from gossamer.posterior.in_layers import is_bayesian
from gossamer.types import Posterior, Task

if TYPE_CHECKING:  # the training loop is slow to import, and reading a run does not need it
    from gossamer.train import Training


def build_result(settings: Settings, task: Task, training: Training, tally: Tally, run: Run) -> dict[str, Any]:
    """The content of ``result.json``: what training did and reached, never what an option promised."""
    from gossamer.train.fitting import calibrate_held_out, objection_to

    start = time.perf_counter()
    posterior = training.posterior()  # some methods compute a part of it here, and that is training, too
    tally.seconds += time.perf_counter() - start
    calibration = calibrate_held_out(training) if settings.calibrate else None
    if calibration is not None:
        posterior = training.posterior()
    prediction = predict_split(posterior, task, settings)
    result = _quality(prediction, task)
    with training.noise:  # a layer may have to be drawn to be counted
        cost, layers = cost_of(training, posterior, task, tally, run)
    latency = prediction_seconds(lambda x: predict_seeded(posterior, task, x, settings), task.test[0])
    others = _other_predictions(settings, task, posterior)
    if warning := objection_to(training, posterior):
        logging.getLogger("gossamer").warning(f"{settings.method} on {settings.data_name}: {warning}")
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
        **_map(posterior, prediction, task, settings),
        **({"predictions": {"draws": result["metrics"], **others}} if others else {}),
        "cost": cost | {"prediction_seconds": latency},
        "layers": [row | ({"std_quantiles": stds[row["name"]]} if row["name"] in stds else {}) for row in layers],
        "class_names": list(task.class_names),
        **({"warnings": [warning]} if warning else {}),
        **({"calibration": calibration._asdict()} if calibration else {}),
        **({"lr_limit": asdict(training.limit)} if math.isfinite(training.limit.most) else {}),
    }


def _other_predictions(settings: Settings, task: Task, posterior: Posterior) -> dict[str, dict[str, float]]:
    """Metrics of the posterior's network at its means, and of passes with local noise, refreshed as its draws are."""
    model, refresh = posterior.model, posterior.refresh
    if not is_bayesian(model):
        return {}
    ways: dict[str, Posterior] = {"mean": SingleNetwork(model, refresh), "local": LocalPasses(model, refresh)}
    return {name: summarize(predict_split(way, task, settings), task, task.test[1]) for name, way in ways.items()}


def predict_split(posterior: Posterior, task: Task, settings: Settings, split: str = "test") -> Prediction:
    """Prediction of the draws for a split; the random state is left as it was."""
    return predict_seeded(posterior, task, split_of(task, split)[0], settings)


def predict_seeded(posterior: Posterior, task: Task, x: Tensor, settings: Settings) -> Prediction:
    """Prediction of the draws for ``x``, inputs as the task stores them; the draws depend on the seed alone."""
    with OwnNoise(settings.seed, next(posterior.model.parameters()).device):
        return predict_inputs(watched(posterior), task, x, settings.n_draws)


def _quality(prediction: Prediction, task: Task) -> dict[str, Any]:
    """Metrics of a prediction for the test data, and the curves and examples behind them."""
    y = task.test[1]
    result: dict[str, Any] = {"metrics": summarize(prediction, task, y)}
    if task.kind == "regression":
        return result | {"curves": curves.number_curves(prediction, task, y)}
    return result | {
        "curves": curves.class_curves(prediction, y),
        "examples": curves.examples(prediction, task.test),
    }


def _map(posterior: Posterior, prediction: Prediction, task: Task, settings: Settings) -> dict[str, Any]:
    """Inputs in a plane get a map of their uncertainty."""
    grid = curves.grid_of(task)
    if grid is None:
        return {}
    x, limits = grid
    return {"map": curves.map_of(predict_seeded(posterior, task, x, settings), limits, prediction, task)}
