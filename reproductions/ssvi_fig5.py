"""Intersection over union of what the removal criteria take, over training (Li et al., ICLR 2024, Figure 5).

At every update, before it is made, each criterion says what it would remove from each layer. Scores are taken twice: by
the formulas of the paper in float32, and by their exact orders. SNR(|θ|) is a function of |μ|/σ that increases, so the
two exact orders are one; in float32 it is constant where |μ|/σ is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from gossamer._text.formats import number
from gossamer.lab import Settings
from gossamer.lab.record import Lock
from gossamer.lab.runs.job import start
from gossamer.lab.runs.progress import launch
from gossamer.layers import SparseWeight
from gossamer.metrics import Metric
from gossamer.sparsity import Subspace
from gossamer.sparsity.criteria import REMOVAL, expected_abs, snr_abs_reference
from gossamer.types import Criterion, WeightStats
from reproductions.drawing import PALETTE, draw, tidy
from reproductions.frame import Claim, Kept, Measures, Result, Told
from reproductions.rows import CRITERIA, ssvi_row

Score = Callable[[Tensor, Tensor], Tensor]
"""(means, standard deviations) of a layer -> a number for each weight; the lowest go."""

PAIRS = list(combinations(CRITERIA, 2))
WHEN = ("first", "middle", "last")
LEAST = 0.01  # share of the weights of a layer that an update must take: of fewer, agreement says nothing
ROW = "CIFAR-100: SSVI 90 %"


def _expected_exp(mean: Tensor, std: Tensor) -> Tensor:
    """Φ(μ/σ + σ) exp(σ²/2 + μ) + Φ(−μ/σ + σ) exp(σ²/2 − μ) in float32, λ = 1."""
    sides = [torch.special.ndtr(signed / std + std) * (std**2 / 2 + signed).exp() for signed in (mean, -mean)]
    return torch.stack(sides).sum(0)


def _exact(criterion: Criterion, mean: Tensor, std: Tensor) -> Tensor:
    return criterion(WeightStats(mean.double(), std.double()))


PUBLISHED: dict[str, Score] = {
    "|μ|": lambda mean, std: mean.abs(),
    "SNR(θ)": lambda mean, std: mean.abs() / std,
    "E|θ|": lambda mean, std: expected_abs(WeightStats(mean, std)),
    "SNR(|θ|)": lambda mean, std: snr_abs_reference(WeightStats(mean, std)),
    "E exp|θ|": _expected_exp,
}
EXACT: dict[str, Score] = {name: partial(_exact, REMOVAL[key]) for name, key in CRITERIA.items()}
ARITHMETICS = {"published": PUBLISHED, "exact": EXACT}


def iou(one: Tensor, other: Tensor) -> float:
    """Intersection over union of two masks; of two empty ones 1.

    >>> iou(torch.tensor([True, True, False]), torch.tensor([True, False, False]))
    0.5
    """
    union = int((one | other).sum())
    return int((one & other).sum()) / union if union else 1.0


def removed(scores: Mapping[str, Score], mean: Tensor, std: Tensor, n: int) -> dict[str, Tensor]:
    """What each criterion takes of a layer: a mask of its ``n`` lowest entries, of equal ones the first."""
    masks = {}
    for name, score in scores.items():
        mask = torch.zeros(len(mean), dtype=torch.bool)
        mask[score(mean, std).cpu().argsort(stable=True)[:n]] = True
        masks[name] = mask
    return masks


def deviations(weight: SparseWeight) -> Tensor:
    """σ of a weight of SSVI, which has one."""
    assert weight.std is not None
    return weight.std.detach()


def overlaps(told: Told, folder: Path, lock: Lock) -> Measures:
    """The IoU of every pair at every update, over all layers together, by both arithmetics."""
    settings = Settings(**told)
    training = start(settings, settings.load_task(), launch(settings))
    (subspace,) = (rule for rule in training.rules if isinstance(rule, Subspace))
    found: Measures = {"step": []} | {f"{kind}: {a}, {b}": [] for kind in ARITHMETICS for a, b in PAIRS}
    while training.step < training.steps:
        if subspace.acts and (rate := subspace.rate(training.step + 1)) >= LEAST:
            found["step"].append(training.step + 1)
            layers = [(weight.mean.detach(), deviations(weight)) for weight in subspace.weights.values()]
            for kind, scores in ARITHMETICS.items():
                masks = [removed(scores, mean, std, int(rate * len(mean))) for mean, std in layers]
                whole = {name: torch.cat([mask[name] for mask in masks]) for name in scores}
                for a, b in PAIRS:
                    found[f"{kind}: {a}, {b}"].append(round(iou(whole[a], whole[b]), 5))
        training.advance()
    for kind in ARITHMETICS:
        pairs = [found[f"{kind}: {a}, {b}"] for a, b in PAIRS]
        means = [fmean(values) for values in zip(*pairs, strict=True)]
        first, last = means[0], means[-1]
        found |= {f"{kind}_mean": means, f"{kind}_first": first, f"{kind}_last": last, f"{kind}_fall": first - last}
        for (a, b), values in zip(PAIRS, pairs, strict=True):
            moments = dict(zip(WHEN, (values[0], values[len(values) // 2], values[-1]), strict=True))
            found |= {f"{kind}: {a}, {b}, {when}": value for when, value in moments.items()}
        found[f"{kind}: snr apart"] = 1 - found[f"{kind}: SNR(θ), SNR(|θ|), last"]
        found[f"{kind}: mean apart"] = 1 - found[f"{kind}: |μ|, E|θ|, last"]
    return found


def _metric(name: str, heading: str) -> Metric:
    return Metric(name, heading, number, None, "Intersection over union.", heading=heading)


def _plot(result: Result, kept: Kept, path: Path) -> None:
    def paint(figure: Any) -> None:
        axes = figure.subplots()
        # The two may lie on top of each other: a broad line below, a thin one above.
        styles: list[dict[str, Any]] = [{"color": PALETTE[1], "lw": 4, "alpha": 0.4}, {"color": PALETTE[0], "lw": 1.2}]
        for kind, style in zip(ARITHMETICS, styles, strict=True):
            for i, run in enumerate(kept.runs):
                label = {"published": "formulas in float32", "exact": "exact orders"}[kind] if i == 0 else None
                axes.plot(run.measures["step"], run.measures[f"{kind}_mean"], label=label, **style)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("step")
        axes.legend(frameon=False)
        tidy(axes, f"mean IoU of the ten pairs{', small' if kept.small else ''}")

    draw(path, (6.4, 3.6), paint)


RESULT = Result(
    title="SSVI, Figure 5: agreement of the removal criteria",
    claim="The five criteria first remove nearly the same weights, and differ more and more as training goes on.",
    rows=[ssvi_row("SSVI 90 %", "cifar100", "ssvi", {"density": 0.1, "mode": "reference"})],
    columns=[
        _metric(f"{kind}_{when}", f"{'float32' if kind == 'published' else 'exact'}, {when} update")
        for kind in ARITHMETICS
        for when in ("first", "last")
    ],
    claims=[
        Claim("fall of the mean IoU from first to last, float32", "published_fall", {ROW: 1.0}),
        Claim("fall of the mean IoU from first to last, exact", "exact_fall", {ROW: 1.0}),
    ],
    measure=overlaps,
    plot=_plot,
)
