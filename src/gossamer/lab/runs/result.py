"""What a run has reached: ``result.json``, with what the report draws in arrays of bounded size."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gossamer import metrics
from gossamer.evaluate import summarize
from gossamer.lab.record import Run
from gossamer.lab.runs.accounting import cost_of, prediction_seconds
from gossamer.lab.runs.settings import Settings, is_table, members_of
from gossamer.layers import sparse_weights
from gossamer.likelihoods import Gaussian
from gossamer.models.small import OF_TABLES
from gossamer.posterior import GaussianPosterior, LocalPasses, Prediction, SingleNetwork
from gossamer.posterior.constant import MOST_ROWS
from gossamer.posterior.in_layers import is_bayesian
from gossamer.types import Posterior, Split, Task

if TYPE_CHECKING:  # a job trains and writes results, so it imports this file
    from gossamer.lab.runs.job import Job

N_EXAMPLES = 8  # of each kind, with their images
N_POINTS = 500  # examples that are drawn one by one
N_CONFUSIONS = 1024  # pairs of classes: all of them up to 32 classes
N_GROUPS = 10  # of examples with about the same std
LEVELS = (*(k / 20 for k in range(1, 20)), 0.99)  # of intervals
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the stds of a layer
_MOST_WEIGHTS = 1_000_000  # quantiles of more come from an even sample

Curves = dict[str, dict[str, list[Any]]]


def build_result(job: Job, run: Run) -> dict[str, Any]:
    """The content of ``result.json``: what training did and reached, never what an option promised."""
    from gossamer.train.fitting import objection_to

    settings, task, training = job.settings, job.task, job.training
    start = time.perf_counter()
    posterior = training.posterior()  # some methods compute a part of it here, and that is training, too
    noise = noise_of(settings, task)
    job.tally.seconds += time.perf_counter() - start
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
    of_weights, stds = weight_curves(posterior)
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
        **({"calibration": training.calibration._asdict()} if training.calibration else {}),
        **({"second_training": job.second_training} if job.second_training else {}),
        **({} if error is None else {"largest_error": error, "held_out_noise": noise}),
        **({"lr_limit": asdict(training.limit)} if math.isfinite(training.limit.most) else {}),
    }


def with_errors(task: Task, largest: float, noise: list[float]) -> Task:
    """The task whose predictions leave room for rows like none of the training, by the largest error of those."""
    from gossamer.estimators.plan import predictive

    return task._replace(likelihood=predictive(task.likelihood, task.n_data, [largest], noise))


def noise_of(settings: Settings, task: Task) -> list[float]:
    """The least noise of a table of numbers, as the estimators find it by rows that are held out."""
    if settings.model != "table_one_noise" or not is_table(task):
        return []
    from gossamer.estimators.draws import Architecture
    from gossamer.estimators.plan import TrainingPlan, held_out_noise, rate_for_numbers

    rate, batch = rate_for_numbers(settings.method, settings.options, task.likelihood), settings.batch_size or 1
    options = settings.options | ({} if rate is None else {"lr": rate}) | members_of(settings.method, 1)
    steps = (settings.epochs or 1) * -(-task.n_data // batch)
    network = Architecture(math.prod(task.input_shape), OF_TABLES, task.n_outputs // 2, constant_noise=True)
    how = settings.method, options, network, steps, batch, settings.n_draws, "cpu", settings.seed
    return held_out_noise(TrainingPlan(*how, lowers=rate is not None), task, torch.ones(task.n_data))


def largest_error(task: Task, predict: Any) -> float | None:
    """The largest error among some of the training rows, of a table of numbers whose noise is learnt."""
    if not is_table(task) or task.likelihood != Gaussian():
        return None
    x, y = task.train
    rows = torch.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).long()
    errors: Tensor = (predict(x[rows]).mean - y[rows]).abs()
    return float(errors.max())


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
        return result | {"curves": number_curves(prediction, task, y)}
    return result | {"curves": class_curves(prediction, y), "examples": examples(prediction, task.test)}


def class_curves(prediction: Prediction, y: Tensor) -> Curves:
    """Of predicted classes: calibration, histograms split into right and wrong, and what is confused with what."""
    probs, entropy, information = prediction.probs, prediction.entropy, prediction.mutual_information
    predicted = probs.argmax(1)
    right, most = predicted == y, math.log(probs.shape[1])
    selective = metrics.selective_accuracy(prediction.double().probs, y)
    keep = _evenly(len(y), 200)  # more points would not show in a plot
    reliability = metrics.reliability_curve(probs, y)
    return {
        "reliability": {name: to_list(value) for name, value in reliability._asdict().items()},
        "entropy": _split_histogram(entropy, right, most),
        "mutual_information": _split_histogram(information, right, max(1e-6, float(information.max()))),
        "selective": {"coverage": to_list(selective.coverage[keep]), "accuracy": to_list(selective.accuracy[keep])},
        "confusion": _confusion(predicted, y, probs.shape[1]),
    }


def number_curves(prediction: Prediction, task: Task, y: Tensor) -> Curves:
    """Of predicted numbers, in original units: some of them with intervals, coverage at all levels, errors by std.

    The share of the targets inside central intervals needs no quantiles: with u = F(y), F the predicted distribution
    function, y is inside its interval of the level p exactly where |u − 1/2| ≤ p / 2.
    """
    mean, std = prediction.mean[:, 0].double(), prediction.std[:, 0].double()
    error = (y.reshape(prediction.mean.shape)[:, 0] - mean).abs()
    off_centre = (task.likelihood.cdf(prediction.outputs, y)[:, 0] - 0.5).abs()
    actual = torch.stack([(off_centre <= level / 2).double().mean() for level in LEVELS])
    unit, keep = task.target_std, _evenly(len(y), N_POINTS)
    low, high = (bound[keep, 0].double() for bound in prediction.interval(0.9))
    places = {"target": y.reshape(prediction.mean.shape)[keep, 0], "mean": mean[keep], "low90": low, "high90": high}
    points = {name: to_list(value.double() * unit + task.target_mean) for name, value in places.items()}
    groups = [group for group in std.argsort().tensor_split(max(1, min(N_GROUPS, len(y) // 10))) if len(group)]
    doubt = prediction.epistemic_std[:, 0].double()
    limits = _log_limits(std, doubt)
    return {
        "points": points | {"std": to_list(std[keep] * unit), "epistemic_std": to_list(doubt[keep] * unit)},
        "coverage": {"nominal": list(LEVELS), "actual": to_list(actual)},
        "errors": {
            "std": [_rounded(unit * float(std[group].square().mean().sqrt())) for group in groups],
            "rmse": [_rounded(unit * float(error[group].square().mean().sqrt())) for group in groups],
            "count": [len(group) for group in groups],
        },
        "std": _log_histogram(std, limits, unit),
        **({"epistemic_std": _log_histogram(doubt, limits, unit)} if bool((doubt > 0).any()) else {}),
    }


def weight_curves(posterior: Posterior) -> tuple[Curves, dict[str, list[float]]]:
    """The distribution of log10 |μ|/σ over all random weights, and quantiles of σ by layer."""
    pairs = _random_weights(posterior)
    if not pairs:
        return {}, {}
    ratios = torch.cat([mean.abs() / std for mean, std in pairs.values()]).clamp(1e-4, 1e4).log10()
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    quantiles = {
        name: to_list(torch.quantile(std[:: -(-len(std) // _MOST_WEIGHTS)].cpu(), levels))
        for name, (_, std) in pairs.items()
    }
    return {"snr": _histogram(ratios, (-4.0, 4.0), 80)}, quantiles


def examples(prediction: Prediction, test: Split) -> dict[str, list[dict[str, Any]]]:
    """The examples of the highest entropy, and the wrong predictions of the highest confidence."""
    x, y = test
    probs, entropy, information = prediction.probs, prediction.entropy, prediction.mutual_information
    confidence, predicted = probs.max(1)
    is_image = x.dim() == 4 and x.shape[1] in (1, 3)
    surest = confidence.argsort(descending=True, stable=True)
    chosen = {
        "surest_mistakes": surest[(predicted != y)[surest]][:N_EXAMPLES],
        "least_certain": entropy.argsort(descending=True, stable=True)[:N_EXAMPLES],
    }

    def example(row: int) -> dict[str, Any]:
        return {
            **({"image": _pixels(x[row])} if is_image else {}),
            "row": row,
            "label": int(y[row]),
            "predicted": int(predicted[row]),
            "probs": to_list(probs[row]),
            "entropy": float(entropy[row]),
            "mutual_information": float(information[row]),
        }

    return {name: [example(int(row)) for row in rows] for name, rows in chosen.items()}


def to_list(values: Tensor, digits: int = 6) -> list[Any]:
    """Numbers for JSON, which has no NaN: an empty bin has no accuracy."""
    return [_rounded(value, digits) if math.isfinite(value) else None for value in values.tolist()]


def _rounded(value: float, digits: int = 6) -> float:
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def _evenly(n: int, most: int) -> Tensor:
    """At most ``most`` row numbers of ``n``, evenly spaced."""
    return torch.linspace(0, n - 1, min(most, n)).round().long()


def _histogram(values: Tensor, limits: tuple[float, float], n_bins: int = 40) -> dict[str, list[Any]]:
    count, edges = np.histogram(values.double().cpu().numpy(), n_bins, limits)
    return {"edges": to_list(torch.from_numpy(edges)), "count": count.tolist()}


def _split_histogram(values: Tensor, right: Tensor, most: float) -> dict[str, list[Any]]:
    """All examples, and how many of them are right; rounding may put an entropy just above its largest value."""
    values = values.double().clamp(0.0, most)
    return _histogram(values, (0.0, most)) | {"right": _histogram(values[right], (0.0, most))["count"]}


def _log_limits(*values: Tensor) -> tuple[float, float]:
    positive = torch.cat(values)
    positive = positive[positive > 0]
    low, high = (float(one) for one in positive.log10().aminmax())
    return (low, high) if high - low > 1e-6 else (low - 0.1, high + 0.1)


def _log_histogram(values: Tensor, limits: tuple[float, float], unit: float) -> dict[str, list[Any]]:
    """A histogram of log10 of the values, in original units."""
    shift = math.log10(unit)
    return _histogram(values[values > 0].log10() + shift, (limits[0] + shift - 1e-9, limits[1] + shift + 1e-9))


def _confusion(predicted: Tensor, y: Tensor, n_classes: int) -> dict[str, list[Any]]:
    """Pairs of label and prediction that occur, by label; of very many classes only the most frequent pairs."""
    pairs, counts = (y * n_classes + predicted).unique(return_counts=True)
    kept = counts.argsort(descending=True, stable=True)[:N_CONFUSIONS].sort().values
    pairs, counts = pairs[kept], counts[kept]
    return {"label": (pairs // n_classes).tolist(), "predicted": (pairs % n_classes).tolist(), "count": counts.tolist()}


def _random_weights(posterior: Posterior) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Means and stds by layer, whether the layers or the optimizer hold them."""
    pairs = {
        name: (weight.expected().detach(), weight.std.detach())
        for name, weight in sparse_weights(posterior.model).items()
        if weight.std is not None
    }
    if isinstance(posterior, GaussianPosterior):
        means = dict(posterior.model.named_parameters())
        stds = posterior.stds.items()
        pairs |= {name.removesuffix(".weight"): (means[name].detach(), std) for name, std in stds}
    return {name: (mean.double().flatten(), std.double().flatten()) for name, (mean, std) in pairs.items()}


def _pixels(image: Tensor) -> Any:
    """``(channels, height, width)`` as nested lists of whole numbers from 0 to 255, colours innermost."""
    scaled = image if image.dtype == torch.uint8 else (image.clamp(0, 1) * 255).round().to(torch.uint8)
    return scaled[0].tolist() if len(scaled) == 1 else scaled.permute(1, 2, 0).tolist()
