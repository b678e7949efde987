"""What a run is worth beyond its metrics: what its held-out examples add to it, and how it does on other data.

The held-out split chooses, the test split judges; ``evaluation.json`` of the run keeps what was found.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer import __version__, conformal, data, metrics
from gossamer._text.names import unknown
from gossamer._text.terminal import Progress
from gossamer.data import CORRUPTIONS, SEVERITIES, corrupt, grey, read_corrupted
from gossamer.data.own.files import FILES
from gossamer.evaluate import split_of, summarize
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.job import Job, restored
from gossamer.lab.runs.progress import showing_draws
from gossamer.lab.runs.reading import read_inputs
from gossamer.lab.runs.unfinished import Unfinished
from gossamer.posterior import Prediction, at_temperature, fit_temperature
from gossamer.types import Task

N_POINTS = 200  # of a curve: more would not show in a plot
N_BINS = 40
OOD, CORRUPTED = "ood", "corruptions"
GENERATED = "generated"
SEED = 0  # made-up inputs are the same for every run, so that runs can be compared


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


def keeping_parts(job: Job) -> Unfinished:
    """A block whose predictions are in a file of the run until its end, so that after a kill the next goes on."""
    state = f"{__version__} {job.training.step} {job.settings.n_draws} {job.training.fabric.device}"
    job.unfinished = Unfinished(job.folder / "evaluating.safetensors", state)
    return job.unfinished


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


def evaluate_selective(run: Path | str | Job, n_draws: int | None = None) -> dict[str, Any]:
    """Accuracy on the examples that a run is surest of, by every score of doubt.

    By score: ``aurc``, ``excess_aurc`` (less that of the best possible order), and the curve, ``coverage`` and
    ``accuracy``.
    """
    job = opened(run, n_draws)
    _require_classes(job, "selective prediction", "--conformal 0.9 gives intervals instead")
    test, truth = job.predict(job.task.test[0]), job.task.test[1]
    scores = metrics.scores_of(test)
    found = {name: {**drawn(job), "n": len(truth), **_curve(test, truth, score)} for name, score in scores.items()}
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


def _require_classes(job: Job, what: str, instead: str) -> None:
    if job.task.kind == "regression":
        raise RecordError(f"{what} is for classes, and {job.task.name} has numbers: {instead}")


def evaluate_ood(run: Path | str | Job, names: Sequence[str], n_draws: int | None = None) -> dict[str, Any]:
    """How well doubt separates inputs from outside from the test data of a run, by name of the set; kept in the run.

    ``names`` are data sets, files or made-up inputs, see :func:`outside`; ``scores`` has AUROC, AUPR both ways, FPR95
    and histograms for each score.
    """
    job = opened(run, n_draws)
    sets = [outside(name, job.task, job.settings.data_dir) for name in names]  # all, before anything is predicted
    inside = metrics.scores_of(job.predict(job.task.test[0]))
    found = {}
    for name, x, note in sets:
        scores = metrics.scores_of(job.predict(x))
        found[name] = {
            **drawn(job),
            "n": len(x),
            "n_test": len(job.task.test[0]),
            "note": note,
            "scores": {score: _separation(inside[score], values) for score, values in scores.items()},
        }
    Run.open(job.folder).add_evaluation(OOD, found)
    return found


def with_ood(folder: Path, names: Sequence[str], score: str | None = None) -> dict[str, Any]:
    """The result of a finished run with ``auroc@set`` by one score among its metrics, and all measures in ``shift``.

    What the run has on record for its last step is not measured again.
    """
    run = Run.open(folder)
    result, known = run.result(), run.evaluation().get(OOD, {})
    if result is None:
        raise RecordError(f"{folder} is not finished: gossamer train --resume {folder} continues it")
    last = {"n_draws": result["n_draws"], "step": max((row["step"] for row in run.metrics()), default=0)}
    stems = [Path(name).stem if is_file(name) else name for name in names]
    if not all(last.items() <= known.get(name, {}).items() for name in stems):
        known = evaluate_ood(folder, names)
    scores = known[stems[0]]["scores"]
    chosen = score or ("entropy" if "entropy" in scores else "std")
    if chosen not in scores:
        raise RecordError(unknown("score of doubt", chosen, scores))
    columns = {f"auroc@{name}": known[name]["scores"][chosen]["auroc"] for name in stems}
    shift = {
        f"{measure}@{name}/{kind}": values[measure]
        for name in stems
        for kind, values in known[name]["scores"].items()
        for measure in metrics.Detection._fields
    }
    return result | {"metrics": result["metrics"] | columns, "shift": shift, "ood_score": chosen}


def evaluate_corruptions(
    run: Path | str | Job, source: str = GENERATED, n_draws: int | None = None, *, quiet: bool = True
) -> dict[str, Any]:
    """The metrics of a run on corrupted test images, by source; kept in the run.

    ``"generated"`` corrupts the test images of the run (:func:`gossamer.data.corrupt`); any other ``source`` is the
    folder of published files, such as CIFAR-10-C. Beside the ``clean`` metrics,
    ``corruptions`` has a list of five for each metric of each corruption.
    """
    job = opened(run, n_draws)
    if job.task.test[0].dim() != 4 or job.task.test[0].shape[1] not in (1, 3):
        raise RecordError(f"{job.task.name} has no images to corrupt: --ood uniform shifts any kind of input")
    if source != GENERATED and not Path(source).is_dir():
        raise RecordError(f"--corruptions {source}: there is no such folder; without one, images are corrupted here")
    clean = summarize(job.predict(job.task.test[0]), job.task, job.task.test[1])
    rows: dict[str, dict[str, list[float]]] = {}
    with Progress("corruptions", len(CORRUPTIONS) * len(SEVERITIES), quiet=quiet) as progress:
        for done, (name, severity) in enumerate(itertools.product(CORRUPTIONS, SEVERITIES), start=1):
            compute = partial(_of_corrupted, job, source, name, severity)
            for metric, value in job.once(f"{source} {name} {severity}", compute).items():
                rows.setdefault(name, {}).setdefault(metric, []).append(value)
            progress.update(done, f"{name} {severity}".format)
    entry = {**drawn(job), "n": len(job.task.test[1]), "clean": clean, "corruptions": rows}
    title = GENERATED if source == GENERATED else Path(source).name
    Run.open(job.folder).add_evaluation(CORRUPTED, {title: entry})
    return {title: entry}


def _of_corrupted(job: Job, source: str, name: str, severity: int) -> dict[str, float]:
    if source == GENERATED:
        x, y = job.task.test
        return summarize(job.predict(corrupt(x, name, severity)), job.task, y)
    images, y = read_corrupted(source, name, severity)
    return summarize(job.predict(as_stored(images, job.task, source)[0]), job.task, y)


def _separation(inside: Tensor, outside: Tensor) -> dict[str, Any]:
    """Measures of one score, and its distribution on either side in common bins."""
    both = torch.cat([inside, outside])
    limits = float(both.min()), float(both.max())
    count_in, edges = np.histogram(inside.cpu().numpy(), N_BINS, limits)
    count_out, _ = np.histogram(outside.cpu().numpy(), N_BINS, limits)
    return {
        **metrics.detect(inside, outside)._asdict(),
        "edges": edges.tolist(),
        "count_in": count_in.tolist(),
        "count_out": count_out.tolist(),
    }


class Outside(NamedTuple):
    """Inputs from outside, and what was done to them so that the network can read them."""

    name: str
    x: Tensor
    note: str = ""


def outside(name: str, task: Task, data_dir: str | None = None) -> Outside:
    """The test inputs of a data set, the inputs of a file, or made-up ones, for a network that was trained on ``task``.

    ``name`` is that of a data set, ``uniform`` or ``permuted`` (see :data:`MADE_UP`), or a file that ``predict`` reads.
    Images are resized, and turned into grey or colour, where the network needs it, and the note tells so.

    Example:
        >>> from gossamer.data import digits
        >>> outside("uniform", digits.load()).x.shape
        torch.Size([599, 1, 8, 8])
    """
    if name in MADE_UP:
        return Outside(name, MADE_UP[name](task, torch.Generator().manual_seed(SEED)))
    if is_file(name):
        return Outside(Path(name).stem, read_inputs(Path(name), task).x)
    if ":" not in name and name not in data.names():
        raise RecordError(unknown("data set or file", name, [*MADE_UP, *data.names()]))
    x, note = as_stored(data.load(name, data_dir).test[0], task, name)
    return Outside(name, x, note)


def is_file(name: str) -> bool:
    """Whether a name is that of a file or folder, not of a data set."""
    return name not in MADE_UP and (Path(name).suffix in FILES or data.own_kind(name) is not None)


def as_stored(x: Tensor, task: Task, name: str = "the other set") -> tuple[Tensor, str]:
    """Inputs of another task as this one stores them, and a note on what was changed."""
    stored = task.test[0]
    if x.shape[1:] == stored.shape[1:] and x.dtype == stored.dtype:
        return x, ""
    if not (_are_images(x) and _are_images(stored)):
        ours, theirs = tuple(stored.shape[1:]), tuple(x.shape[1:])
        raise RecordError(f"{name} has examples of shape {theirs}, {task.name} has {ours}: choose another set")
    pixels, notes = x.float() / 255 if x.dtype == torch.uint8 else x.float(), list[str]()
    if x.shape[1] > stored.shape[1]:
        pixels = grey(pixels)
        notes.append("made grey")
    elif x.shape[1] < stored.shape[1]:
        pixels = pixels.expand(-1, stored.shape[1], -1, -1)
        notes.append("grey in three channels")
    if x.shape[2:] != stored.shape[2:]:
        pixels = F.interpolate(pixels, size=stored.shape[2:], mode="bilinear", antialias=True)
        notes.append("resized from {}×{} to {}×{}".format(*x.shape[2:], *stored.shape[2:]))
    if stored.dtype == torch.uint8:
        pixels = (pixels * 255).round().clamp(0, 255)
    return pixels.to(stored.dtype), ", ".join(notes)


def _uniform(task: Task, generator: torch.Generator) -> Tensor:
    """Noise, uniform between the smallest and the largest value of each feature; of all pixels for images."""
    stored, train = task.test[0], task.train[0].double()
    over = (0, 2, 3) if _are_images(stored) else (0,)
    low, high = train.amin(over, keepdim=True), train.amax(over, keepdim=True)
    noise = low + (high - low) * torch.rand(stored.shape, generator=generator, dtype=torch.float64)
    return (noise.round() if stored.dtype == torch.uint8 else noise).to(stored.dtype)


def _permuted(task: Task, generator: torch.Generator) -> Tensor:
    """The test inputs with each feature shuffled among the examples: its distribution stays, combinations do not."""
    stored = task.test[0]
    order = torch.rand(stored.shape, generator=generator).argsort(0)
    return stored.gather(0, order)


MADE_UP: dict[str, Callable[[Task, torch.Generator], Tensor]] = {"uniform": _uniform, "permuted": _permuted}
"""Inputs that need no files: uniform noise in the range of the training data, and test data whose features are
permuted independently among the examples."""


def _are_images(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)
