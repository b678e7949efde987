"""What the held-out examples of a run add to it: a temperature of its logits, conformal sets, a right to abstain.

The held-out split chooses, the test split judges; ``evaluation.json`` of the run keeps what was found.
"""

from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from gossamer import conformal, metrics
from gossamer.evaluate import split_of, summarize
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.job import Job
from gossamer.lab.runs.progress import showing_draws
from gossamer.lab.runs.result import restored
from gossamer.posterior import Prediction, at_temperature, fit_temperature

N_POINTS = 200  # of a curve: more would not show in a plot
CONFIDENCE = 0.95  # with which a risk is promised


def evaluate_run(
    run: Path | str | Job, n_draws: int | None = None, split: str = "test", data: str | None = None, quiet: bool = True
) -> dict[str, float]:
    """The metrics of a run, computed again from its newest checkpoint.

    Args:
        run: The run folder, or the run as :func:`opened` gives it.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.
        split: ``"train"``, ``"val"`` or ``"test"``.
        data: Where the data of the run are now, if they have moved.
        quiet: Show no progress.
    """
    job = opened(run, n_draws, data)
    x, y = split_of(job.task, split)
    with showing_draws(f"evaluating {job.folder.name}", quiet=quiet):
        return summarize(job.predict(x), job.task, y)


def opened(run: Path | str | Job, n_draws: int | None = None, data: str | None = None) -> Job:
    """The run as of its newest checkpoint; one that is open already stays as it is."""
    return run if isinstance(run, Job) else restored(run, n_draws=n_draws, data=data)


def drawn(job: Job) -> dict[str, int]:
    """What every entry of ``evaluation.json`` says about its networks."""
    return {"n_draws": job.settings.n_draws, "step": job.training.step}


def evaluate_temperature(run: Path | str | Job, n_draws: int | None = None) -> dict[str, Any]:
    """The divisor of the logits that fits the held-out examples, and the test metrics without and with it."""
    job = opened(run, n_draws)
    _require_classes(job, "temperature scaling", "--conformal 0.9 calibrates intervals")
    x, y = split_of(job.task, "val")
    temperature = fit_temperature(job.predict(x), y)
    test, truth = job.predict(job.task.test[0]), job.task.test[1]
    both = {"before": test, "after": at_temperature(test, temperature)}
    values = {name: summarize(prediction, job.task, truth) for name, prediction in both.items()}
    found = {"val": {**drawn(job), "n_val": len(y), "temperature": temperature, **values}}
    Run.open(job.folder).add_evaluation("temperature", found)
    return found


def evaluate_conformal(run: Path | str | Job, level: float = 0.9, n_draws: int | None = None) -> dict[str, Any]:
    """Coverage and size on the test data of sets or intervals that the held-out examples calibrated, by level.

    ``kinds`` of a level has for classes ``lac`` and ``aps`` with ``coverage``, ``mean_size`` and ``sizes`` (how many
    sets have 0, 1, … classes), for numbers ``predicted`` (the intervals of the draws), ``scaled`` and ``shifted`` with
    ``coverage`` and ``mean_width`` in original units.
    """
    job = opened(run, n_draws)
    x, y = split_of(job.task, "val")
    val, test = job.predict(x), job.predict(job.task.test[0])
    kinds = _intervals if job.task.kind == "regression" else _sets
    entry = {**drawn(job), "n_val": len(y), "n_test": len(job.task.test[1]), "kinds": kinds(val, y, test, job, level)}
    found = {f"{level:g}": entry}
    Run.open(job.folder).add_evaluation("conformal", found)
    return found


def evaluate_selective(run: Path | str | Job, risk: float | None = None, n_draws: int | None = None) -> dict[str, Any]:
    """Accuracy on the examples that a run is surest of, by every score of doubt.

    By score: ``aurc``, ``excess_aurc`` (less that of the best possible order), and the curve, ``coverage`` and
    ``accuracy``. With a ``risk``, the share of wrong answers to stay below, also ``selection``: the threshold that the
    held-out examples choose, and on the test data the ``coverage`` and the ``error`` of the answers.
    """
    job = opened(run, n_draws)
    _require_classes(job, "selective prediction", "--conformal 0.9 gives intervals instead")
    test, truth = job.predict(job.task.test[0]), job.task.test[1]
    scores = metrics.scores_of(test)
    found = {name: {**drawn(job), "n": len(truth), **_curve(test, truth, score)} for name, score in scores.items()}
    if risk is not None:
        x, y = split_of(job.task, "val")
        val = job.predict(x)
        wrong_val, wrong = val.probs.argmax(1) != y, test.probs.argmax(1) != truth
        for name, score in metrics.scores_of(val).items():
            threshold = conformal.selection_threshold(score, wrong_val, risk, CONFIDENCE)
            found[name]["selection"] = _selection(scores[name] <= threshold, wrong, threshold, risk)
    Run.open(job.folder).add_evaluation("selective", found)
    return found


def _sets(val: Prediction, y: Tensor, test: Prediction, job: Job, level: float) -> dict[str, Any]:
    found = {}
    probs_val, probs = val.double().probs, test.double().probs  # in float32 the sums of a sure network end at one
    for score in get_args(conformal.SetScore):
        sets = conformal.class_sets(probs_val, y, probs, level, score)
        size = sets.sum(1)
        found[score] = {
            "coverage": float(sets.gather(1, job.task.test[1][:, None]).double().mean()),
            "mean_size": float(size.double().mean()),
            "sizes": torch.bincount(size, minlength=sets.shape[1] + 1).tolist(),
        }
    found["lac"]["threshold"] = _stored(conformal.threshold(1 - probs_val.gather(1, y[:, None])[:, 0], level))
    return found


def _intervals(val: Prediction, y: Tensor, test: Prediction, job: Job, level: float) -> dict[str, Any]:
    plain_val, plain_test = val.interval(level), test.interval(level)
    ways = {
        "predicted": plain_test,
        "scaled": conformal.scaled_intervals(val.mean, val.std, y, test.mean, test.std, level),
        "shifted": conformal.shifted_intervals(*plain_val, y, *plain_test, level),
    }
    found: dict[str, Any] = {
        name: {
            "coverage": metrics.coverage(*bounds, job.task.test[1]),
            "mean_width": job.task.target_std * metrics.mean_width(*bounds),
        }
        for name, bounds in ways.items()
    }
    residuals = (y.reshape(val.mean.shape) - val.mean).abs() / val.std
    found["scaled"]["threshold"] = _stored(conformal.threshold(residuals.flatten(), level))
    return found


def _stored(threshold: Tensor) -> float | None:
    """A threshold as JSON can hold it: ``None`` stands for infinity."""
    return float(threshold) if threshold.isfinite() else None


def _curve(prediction: Prediction, y: Tensor, score: Tensor) -> dict[str, Any]:
    curve = metrics.selective_accuracy(prediction.probs, y, score)
    wrong = (prediction.probs.argmax(1) != y).double()
    best = metrics.selective_accuracy(prediction.probs, y, wrong).aurc
    keep = torch.linspace(0, len(y) - 1, min(N_POINTS, len(y))).long()
    return {
        "aurc": curve.aurc,
        "excess_aurc": curve.aurc - best,
        "coverage": curve.coverage[keep].tolist(),
        "accuracy": curve.accuracy[keep].tolist(),
    }


def _selection(answered: Tensor, wrong: Tensor, threshold: float, risk: float) -> dict[str, float | None]:
    n = int(answered.sum())
    return {
        "risk": risk,
        "confidence": CONFIDENCE,
        "threshold": threshold,
        "coverage": n / len(answered),
        "error": float(wrong[answered].double().mean()) if n else None,
    }


def _require_classes(job: Job, what: str, instead: str) -> None:
    if job.task.kind == "regression":
        raise RecordError(f"{what} is for classes, and {job.task.name} has numbers: {instead}")
