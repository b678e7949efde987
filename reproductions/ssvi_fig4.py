"""Corrupted test images (Li et al., ICLR 2024, Figure 4): fifteen corruptions at five severities.

The images are corrupted here (``gossamer.data.corrupt``), so that numbers are near those of CIFAR-C and not equal. The
paper has mBNN and SSVI; dense VI and RigL are ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gossamer._text.formats import number, percent
from gossamer.data import SEVERITIES
from gossamer.lab.record import Lock
from gossamer.lab.report.evaluation import mean_by_severity
from gossamer.lab.runs.evaluation import evaluate_corruptions, opened
from gossamer.metrics import METRICS, Metric
from reproductions.drawing import PALETTE, draw, tidy
from reproductions.frame import Claim, Kept, Measures, Result, Row, Told, trained
from reproductions.rows import NAMES, ssvi_row

SMALL_TEST = 100  # images of a small run: each is corrupted in 75 ways
SHOWN = {"accuracy": "accuracy", "nll": "NLL", "marginal_l2_debiased": "marginal L2", "ece": "ECE"}


def corrupted(told: Told, folder: Path, lock: Lock) -> Measures:
    """Metrics by severity, each the mean over the corruptions, and their mean over all."""
    found = trained(told, folder, lock)
    job = opened(folder)
    if ":" in told["data"]:
        x, y = job.task.test
        job.task = job.task._replace(test=(x[:SMALL_TEST], y[:SMALL_TEST]))
    (entry,) = evaluate_corruptions(job).values()
    for name in SHOWN:
        by_severity = mean_by_severity(entry, name)
        found |= {f"{name}_by_severity": by_severity, f"{name}_corrupted": sum(by_severity) / len(by_severity)}
    return found


def _metric(name: str) -> Metric:
    known = METRICS[name]
    kind = number if name == "marginal_l2_debiased" else known.format
    heading = f"{SHOWN[name]}, corrupted"
    return Metric(f"{name}_corrupted", heading, kind, known.better, known.meaning, heading=heading)


def rows(data: str) -> list[Row]:
    """The methods on a data set; RigL at the density of SSVI."""
    sparse = {"density": 0.05 if data == "cifar10" else 0.1}
    return [
        ssvi_row("mBNN", data, "mbnn", {}),
        ssvi_row("SSVI", data, "ssvi", sparse | {"mode": "reference"}),
        ssvi_row("SSVI, our defaults", data, "ssvi", sparse),
        ssvi_row("VI, dense", data, "vi", {"mode": "reference"}),
        ssvi_row("RigL", data, "rigl", sparse | {"allocation": "uniform"}, n_draws=1),
    ]


def _plot(result: Result, kept: Kept, path: Path) -> None:
    def paint(figure: Any) -> None:
        shown = ("accuracy", "nll", "ece")
        for panels, own in zip(figure.subplots(len(NAMES), len(shown)), NAMES.values(), strict=True):
            for axes, metric in zip(panels, shown, strict=True):
                scale, unit = (100, ", %") if METRICS[metric].format is percent else (1, "")
                for line, row in enumerate(row for row in result.rows if row.label.startswith(f"{own}:")):
                    found = [run.measures[f"{metric}_by_severity"] for run in kept.of(row.label)]
                    if not found:
                        continue
                    means = [scale * sum(column) / len(found) for column in zip(*found, strict=True)]
                    label = row.label.removeprefix(f"{own}: ")
                    axes.plot(SEVERITIES, means, marker="o", ms=4, color=PALETTE[line % len(PALETTE)], label=label)
                tidy(axes, f"{own}: {SHOWN[metric]}{unit}{', small' if kept.small else ''}")
        for axes in panels:
            axes.set_xlabel("severity")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)

    draw(path, (10.5, 5.6), paint)


RESULT = Result(
    title="SSVI, Figure 4: corrupted images",
    claim="On corrupted images SSVI is better than mBNN in accuracy, loss and ECE.",
    rows=[row for data in NAMES for row in rows(data)],
    columns=["accuracy", *(_metric(name) for name in SHOWN)],
    claims=[
        Claim(f"{SHOWN[name]}, {own}", f"{name}_corrupted", {f"{own}: SSVI": sign, f"{own}: mBNN": -sign})
        for own in NAMES.values()
        for name, sign in (("accuracy", 1.0), ("nll", -1.0), ("marginal_l2_debiased", -1.0))
    ],
    measure=corrupted,
    plot=_plot,
)
