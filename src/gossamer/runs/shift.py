"""How a run behaves away from its training data; what is measured goes into ``evaluation.json`` of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer import metrics
from gossamer.metrics.registry import texts
from gossamer.posterior import Prediction
from gossamer.record import Run
from gossamer.runs.outside import outside
from gossamer.runs.reader import restored
from gossamer.runs.result import predict_seeded
from gossamer.tables import Table

if TYPE_CHECKING:
    from gossamer.runs.job import Job

N_BINS = 40
OOD = "ood"


def evaluate_ood(folder: Path | str, names: Sequence[str], n_draws: int | None = None) -> dict[str, Any]:
    """How well doubt separates inputs from outside from the test data of a run; recorded in the run.

    Args:
        folder: The run folder.
        names: Data sets, files or made-up inputs, see :func:`gossamer.runs.outside.outside`.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.

    Returns:
        By name of the set: ``n``, ``n_test``, ``n_draws``, ``step``, ``note``, and ``scores``, which has AUROC, AUPR
        both ways, FPR95 and histograms for each score.
    """
    job = restored(folder, **({} if n_draws is None else {"n_draws": n_draws}))
    sets = [outside(name, job.task, job.settings.data_dir) for name in names]  # all, before anything is predicted
    inside = metrics.scores_of(predict(job, job.task.test[0]))
    found = {}
    for name, x, note in sets:
        scores = metrics.scores_of(predict(job, x))
        found[name] = {
            "n": len(x),
            "n_test": len(job.task.test[0]),
            "n_draws": job.settings.n_draws,
            "step": job.training.step,
            "note": note,
            "scores": {score: _separation(inside[score], values) for score, values in scores.items()},
        }
    Run.open(Path(folder)).add_evaluation(OOD, found)
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


def predict(job: Job, x: Tensor) -> Prediction:
    """Prediction of the run's draws, the same networks at every call."""
    return predict_seeded(job.training.posterior(), job.task, x, job.settings)


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
