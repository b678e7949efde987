"""Detection of inputs from outside (Li et al., ICLR 2024, Table 3), by every score of doubt.

Networks of one CIFAR meet the test images of the other, and those of SVHN. Beside the scores of a prediction there are
two of the features before the last layer, of the first drawn network. AUPR takes the outside as positive.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import data, metrics
from gossamer._text.formats import number
from gossamer.lab.record import Lock
from gossamer.lab.runs.evaluation import opened
from gossamer.lab.runs.job import Job
from gossamer.metrics import METRICS, Metric
from gossamer.types import Task
from reproductions.drawing import PALETTE, SOFT, draw, tidy
from reproductions.frame import Claim, Kept, Measures, Result, Row, Told, mean_error, trained
from reproductions.rows import NAMES, ssvi_row

PRINTED = {
    ("cifar10", "mBNN"): ("0.84", "0.81", "0.89", "0.94"),
    ("cifar10", "SSVI"): ("0.86", "0.84", "0.93", "0.96"),
    ("cifar100", "mBNN"): ("0.76", "0.72", "0.78", "0.88"),
    ("cifar100", "SSVI"): ("0.80", "0.77", "0.85", "0.91"),
}
OTHER = {"cifar10": "cifar100", "cifar100": "cifar10"}
SIDES = {"near": "the other CIFAR", "svhn": "SVHN"}
SCORES = ("entropy", "max_probability", "mutual_information", "energy", "neighbour", "mahalanobis")
NEIGHBOUR = 50


def detection(told: Told, folder: Path, lock: Lock) -> Measures:
    """AUROC, AUPR and FPR95 of every score, for both sets from outside."""
    found = trained(told, folder, lock)
    job = opened(folder)
    bare = told["data"].rpartition(":")[2]
    prefix = told["data"].removesuffix(bare)
    sets = {"near": f"{prefix}{OTHER[bare]}", "svhn": f"{prefix}svhn"}
    only_test: dict[str, dict[str, Any]] = {"svhn": {"only_test": True}}
    outside = {
        side: data.load(name, told.get("data_dir"), **only_test.get(name, {})).test[0] for side, name in sets.items()
    }
    scores = _scores(job, [job.task.test[0], *outside.values()])
    for side, own in zip(outside, scores[1:], strict=True):
        for name, inside in scores[0].items():
            for measure, value in metrics.detect(inside, own[name])._asdict().items():
                found[f"{measure}:{side}:{name}"] = value
    return found


def _scores(job: Job, inputs: list[Tensor]) -> list[dict[str, Tensor]]:
    """Every score of each set of inputs."""
    network = next(iter(job.training.posterior().draws(1)))
    train, labels = job.task.train
    known = features(network, job.task, train)
    of_features = {
        "neighbour": partial(neighbour_distance, known, k=min(NEIGHBOUR, len(known))),
        "mahalanobis": partial(relative_mahalanobis, known, labels),
    }
    return [
        {
            **metrics.scores_of(job.predict(x)),
            **{name: score(x=features(network, job.task, x)) for name, score in of_features.items()},
        }
        for x in inputs
    ]


@torch.no_grad()
def features(network: nn.Module, task: Task, x: Tensor) -> Tensor:
    """What the last linear layer reads."""
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    seen: list[Tensor] = []
    handle = last.register_forward_pre_hook(lambda module, given: seen.append(given[0].float().cpu()))
    device = next(network.parameters()).device
    network.eval()
    for rows in x.split(256):
        network(task.transform(rows.to(device)))
    handle.remove()
    return torch.cat(seen)


def neighbour_distance(train: Tensor, x: Tensor, k: int = 50) -> Tensor:
    """Distance to the ``k``-th nearest training example, a score of doubt (Sun et al., ICML 2022).

    ``train`` and ``x`` are features, such as the inputs of the last layer; both are scaled to length 1.
    """
    if not 1 <= k <= len(train):
        raise ValueError(f"k must be from 1 to the {len(train)} training examples; got {k}")
    train, x = F.normalize(train.double()), F.normalize(x.double())
    exact = "donot_use_mm_for_euclid_dist"  # the product of matrices loses the digits of small distances
    return torch.cat([torch.cdist(rows, train, compute_mode=exact).kthvalue(k).values for rows in x.split(256)])


def relative_mahalanobis(train: Tensor, labels: Tensor, x: Tensor) -> Tensor:
    """Squared Mahalanobis distance to the nearest class, less that to all: a score of doubt (Ren et al., 2021).

    All classes share one covariance.
    """
    train, x = train.double(), x.double()
    means = torch.stack([train[labels == label].mean(0) for label in labels.unique()])
    own = means[torch.searchsorted(labels.unique(), labels)]
    nearest = torch.stack([_mahalanobis(train - own, x - mean) for mean in means]).amin(0)
    return nearest - _mahalanobis(train - train.mean(0), x - train.mean(0))


def _mahalanobis(centred: Tensor, x: Tensor) -> Tensor:
    """Squared distances of ``x`` from 0 in the metric of the covariance of ``centred``, which may be singular."""
    inverse = torch.linalg.pinv(centred.mT @ centred / len(centred), hermitian=True)
    return torch.einsum("bi,ij,bj->b", x, inverse, x)


def _metric(measure: str, side: str, score: str) -> Metric:
    known = METRICS[measure]
    heading = f"{known.heading}, {SIDES[side]}, {score.replace('_', ' ')}"
    return Metric(f"{measure}:{side}:{score}", heading, number, known.better, known.meaning, heading=heading)


def rows(name: str, method: str, **options: Any) -> list[Row]:
    """A method on both data sets, with what the paper printed of it."""
    made = []
    for own in NAMES:
        sparse = {"density": 0.05 if own == "cifar10" else 0.1} if method == "ssvi" else {}
        printed = dict(zip(HEADS, PRINTED.get((own, name), ()), strict=False))
        made.append(ssvi_row(name, own, method, sparse | options, printed))
    return made


def _plot(result: Result, kept: Kept, path: Path) -> None:
    """AUROC of every score, a panel for each pair of sets."""

    def paint(figure: Any) -> None:
        panels = figure.subplots(1, 4, sharey=True)
        for axes, (own, side) in zip(panels, [(own, side) for own in NAMES.values() for side in SIDES], strict=True):
            for line, row in enumerate(row for row in result.rows if row.label.startswith(f"{own}:")):
                found = [kept.values(row.label, f"auroc:{side}:{score}") for score in SCORES]
                values = [mean_error(value)[0] if value else float("nan") for value in found]
                label = row.label.removeprefix(f"{own}: ")
                axes.plot(values, range(len(SCORES)), "o", color=PALETTE[line % len(PALETTE)], label=label)
            axes.axvline(0.5, color=SOFT, lw=0.8)
            axes.set_yticks(range(len(SCORES)), [score.replace("_", " ") for score in SCORES])
            tidy(axes, f"{own} → {SIDES[side]}")
        figure.suptitle(f"AUROC{', small' if kept.small else ''}", fontsize=10)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)

    draw(path, (11.0, 3.4), paint)


HEADS = [f"{measure}:{side}:entropy" for side in SIDES for measure in ("auroc", "aupr_out")]
METRIC_OF = {
    f"{measure}:{side}:{score}": _metric(measure, side, score)
    for side in SIDES
    for score in SCORES
    for measure in ("auroc", "aupr_out", "fpr95")
}
SHOWN = [
    *(f"{measure}:{side}:entropy" for side in SIDES for measure in ("auroc", "aupr_out", "fpr95")),
    *(f"auroc:{side}:{score}" for side in SIDES for score in SCORES[1:]),
]

RESULT = Result(
    title="SSVI, Table 3: detection of inputs from outside",
    claim="Trained on one CIFAR, SSVI tells the other and SVHN from it better than mBNN.",
    rows=[*rows("mBNN", "mbnn"), *rows("SSVI", "ssvi", mode="reference"), *rows("SSVI, our defaults", "ssvi")],
    columns=[METRIC_OF[name] for name in SHOWN],
    claims=[
        Claim(f"{METRIC_OF[head].heading}, {own}", head, {f"{own}: SSVI": 1.0, f"{own}: mBNN": -1.0})
        for own in NAMES.values()
        for head in HEADS
    ],
    measure=detection,
    needs=["svhn"],
    plot=_plot,
)
