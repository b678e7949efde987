"""The picture of the guide to shift: a network trained on digits, and what it says about inputs unlike them.

    python -m benchmarks.shift_pictures docs/images

Writes ``shift.svg``: the entropy of test images and of images from outside, accuracy and calibration error by severity
of the corruptions, accuracy against coverage, and one image under all fifteen corruptions.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gossamer import lab
from gossamer.data import CORRUPTIONS, SEVERITIES, corrupt, digits
from gossamer.lab.report.evaluation import mean_by_severity
from gossamer.lab.runs.evaluation import evaluate_corruptions, evaluate_ood, evaluate_selective, opened
from reproductions.drawing import draw, tidy


def main(folder: Path) -> None:
    """Train, evaluate, then draw into ``folder``."""
    settings = lab.Settings("ssvi", "digits", epochs=20, device="cpu", options={"density": 0.1})
    with tempfile.TemporaryDirectory() as place:
        job = opened(lab.train(settings, Path(place) / "run", quiet=True).folder)
        outside, selective = evaluate_ood(job, ["permuted"])["permuted"], evaluate_selective(job)
        corrupted = evaluate_corruptions(job)["generated"]

    def paint(figure: Any) -> None:
        above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
        left, middle, right = above.subplots(1, 3)
        _histograms(left, outside["scores"]["entropy"])
        _severities(middle, corrupted)
        _selective(right, selective)
        _images(below)

    draw(folder / "shift.svg", (10.5, 5.6), paint)


def _histograms(axes: Any, score: dict[str, Any]) -> None:
    edges = np.array(score["edges"])
    for key, label in (("count_in", "test images"), ("count_out", "permuted pixels")):
        share = np.array(score[key]) / sum(score[key])
        axes.stairs(share, edges, fill=True, alpha=0.5, label=label)
    tidy(axes, f"Out of distribution: AUROC {score['auroc']:.1%}")
    axes.set(xlabel="entropy in nats", ylabel="share")
    axes.set_yscale("log")
    axes.legend(frameon=False)


def _severities(axes: Any, entry: dict[str, Any]) -> None:
    for metric, label in (("accuracy", "accuracy"), ("ece", "calibration error (ECE)")):
        axes.plot([0, *SEVERITIES], [entry["clean"][metric], *mean_by_severity(entry, metric)], "o-", label=label)
    tidy(axes, "Fifteen corruptions")
    axes.set(xlabel="severity (0: none)", ylim=(0, 1))
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(frameon=False, loc="center left")


def _selective(axes: Any, found: dict[str, Any]) -> None:
    for name in ("entropy", "mutual_information"):
        curve = found[name]
        axes.plot(curve["coverage"], curve["accuracy"], label=name.replace("_", " "))
    tidy(axes, "Selective prediction")
    axes.set(xlabel="share answered, the surest first", ylabel="accuracy", xlim=(0, 1))
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.yaxis.set_major_formatter("{x:.1%}")
    axes.legend(frameon=False, loc="lower left")


def _images(figure: Any) -> None:
    x = digits.load().test[0][:1]
    for axes, name in zip(figure.subplots(2, 8).flat, ["clean", *CORRUPTIONS], strict=True):
        shown = x if name == "clean" else corrupt(x, name, 5)
        axes.imshow(shown[0, 0], cmap="gray", vmin=0, vmax=1)
        axes.set_title(name.replace("_", "\n"), fontsize=7)
        axes.axis("off")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
