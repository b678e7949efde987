"""How a run behaves away from its training data: other data sets, corrupted images. Recorded in ``evaluation.json``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer import metrics
from gossamer._text.names import unknown
from gossamer._text.progress import Progress
from gossamer._text.tables import Table
from gossamer.data import CORRUPTIONS, SEVERITIES, corrupt, read_corrupted
from gossamer.evaluate import summarize
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.outside import as_stored, is_file, outside
from gossamer.lab.runs.reader import restored
from gossamer.lab.runs.result import predict_seeded
from gossamer.metrics.registry import texts
from gossamer.posterior import Prediction

if TYPE_CHECKING:
    from gossamer.lab.runs.job import Job

N_BINS = 40
OOD, CORRUPTED = "ood", "corruptions"
GENERATED = "generated"


def evaluate_ood(run: Path | str | Job, names: Sequence[str], n_draws: int | None = None) -> dict[str, Any]:
    """How well doubt separates inputs from outside from the test data of a run; recorded in the run.

    Args:
        run: The run folder, or the run as :func:`opened` gives it.
        names: Data sets, files or made-up inputs, see :func:`gossamer.lab.runs.outside.outside`.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.

    Returns:
        By name of the set: ``n``, ``n_test``, ``n_draws``, ``step``, ``note``, and ``scores``, which has AUROC, AUPR
        both ways, FPR95 and histograms for each score.
    """
    job = opened(run, n_draws)
    sets = [outside(name, job.task, job.settings.data_dir) for name in names]  # all, before anything is predicted
    inside = metrics.scores_of(predict(job, job.task.test[0]))
    found = {}
    for name, x, note in sets:
        scores = metrics.scores_of(predict(job, x))
        found[name] = {
            **drawn(job),
            "n": len(x),
            "n_test": len(job.task.test[0]),
            "note": note,
            "scores": {score: _separation(inside[score], values) for score, values in scores.items()},
        }
    Run.open(job.folder).add_evaluation(OOD, found)
    return found


def ood_table(found: Mapping[str, Any]) -> Table:
    """What :func:`evaluate_ood` returned, a row per set and score."""
    names = list(metrics.Detection._fields)
    rows = [
        [name, score.replace("_", " "), *texts({key: values[key] for key in names}).values()]
        for name, content in found.items()
        for score, values in content["scores"].items()
    ]
    head = [metrics.METRICS[key].heading for key in names]
    return Table("", "", ["out of distribution", "score", *head], rows, n_labels=2)


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
    """The metrics of a run on corrupted test images, at every severity; recorded in the run.

    Args:
        run: The run folder, or the run as :func:`opened` gives it.
        source: ``"generated"`` corrupts the test images of the run (:func:`gossamer.data.corrupt`); anything else is
            the folder of published files, such as CIFAR-10-C.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.
        quiet: Show no progress.

    Returns:
        By source: ``clean`` metrics, and ``corruptions``, a list of five for each metric of each corruption.
    """
    job = opened(run, n_draws)
    if job.task.test[0].dim() != 4 or job.task.test[0].shape[1] not in (1, 3):
        raise RecordError(f"{job.task.name} has no images to corrupt: --ood uniform shifts any kind of input")
    if source != GENERATED and not Path(source).is_dir():
        raise RecordError(f"--corruptions {source}: there is no such folder; without one, images are corrupted here")
    clean = summarize(predict(job, job.task.test[0]), job.task, job.task.test[1])
    rows: dict[str, dict[str, list[float]]] = {}
    with Progress("corruptions", len(CORRUPTIONS) * len(SEVERITIES), quiet=quiet) as progress:
        for done, (name, severity, x, y) in enumerate(_corrupted(job, source), start=1):
            for metric, value in summarize(predict(job, x), job.task, y).items():
                rows.setdefault(name, {}).setdefault(metric, []).append(value)
            progress.update(done, f"{name} {severity}".format)
    entry = {**drawn(job), "n": len(job.task.test[1]), "clean": clean, "corruptions": rows}
    name = GENERATED if source == GENERATED else Path(source).name
    Run.open(job.folder).add_evaluation(CORRUPTED, {name: entry})
    return {name: entry}


def corruption_tables(found: Mapping[str, Any]) -> list[Table]:
    """What :func:`evaluate_corruptions` returned: the main metric of each corruption, and the means by severity."""
    tables = []
    for name, entry in found.items():
        clean, rows = entry["clean"], entry["corruptions"]
        main = metrics.METRICS[next(iter(clean))]
        body = [[row, *(main.text(v) for v in values[main.name])] for row, values in rows.items()]
        head = [f"{main.heading}, {name}", *(f"severity {severity}" for severity in SEVERITIES)]
        tables.append(Table("", "", head, body))
        means = [[metrics.METRICS[key].heading, metrics.METRICS[key].text(clean[key])] for key in _shown(clean)]
        for row, key in zip(means, _shown(clean), strict=True):
            row += [metrics.METRICS[key].text(value) for value in mean_by_severity(entry, key)]
        tables.append(Table("", "", ["mean over corruptions", "clean", *head[1:]], means))
    return tables


def mean_by_severity(entry: Mapping[str, Any], metric: str) -> list[float]:
    """Mean of a metric over the corruptions, for each severity."""
    columns = zip(*(values[metric] for values in entry["corruptions"].values()), strict=True)
    return [statistics.fmean(column) for column in columns]


def opened(run: Path | str | Job, n_draws: int | None = None, data: str | None = None) -> Job:
    """The run as of its newest checkpoint; one that is open already stays as it is."""
    if not isinstance(run, Path | str):
        return run
    return restored(run, n_draws=n_draws, data=data)


def predict(job: Job, x: Tensor) -> Prediction:
    """Prediction of the run's draws, the same networks at every call."""
    return predict_seeded(job.training.posterior(), job.task, x, job.settings)


def drawn(job: Job) -> dict[str, int]:
    """What every entry of ``evaluation.json`` says about its networks."""
    return {"n_draws": job.settings.n_draws, "step": job.training.step}


def _corrupted(job: Job, source: str) -> Iterator[tuple[str, int, Tensor, Tensor]]:
    """Name, severity, images and targets of every corruption."""
    x, y = job.task.test
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            if source == GENERATED:
                yield name, severity, corrupt(x, name, severity), y
            else:
                images, labels = read_corrupted(source, name, severity)
                yield name, severity, as_stored(images, job.task, source)[0], labels


def _shown(values: Mapping[str, float]) -> list[str]:
    """The metrics of a comparison among those measured."""
    return [metric.name for metric in metrics.shown("comparison") if metric.name in values]


def _separation(inside: Tensor, outside: Tensor) -> dict[str, Any]:
    """Measures of one score, and its distribution on either side in common bins."""
    both = torch.cat([inside, outside])
    limits = float(both.min()), float(both.max())
    count_in, count_out = (metrics.histogram(side, N_BINS, limits) for side in (inside, outside))
    return {
        **metrics.detect(inside, outside)._asdict(),
        "edges": count_in.edges.tolist(),
        "count_in": count_in.count.tolist(),
        "count_out": count_out.count.tolist(),
    }
