"""DFP against DPF over training (Ke and Fan, arXiv 2210.12957, Figure 2): accuracy, soft and hard sparsity.

The paper has a ResNet-18 on CIFAR-10, with hyper-parameters that it does not give; ours are for a density of 0.1. Small
runs are of a convolutional network on the digits that come with scikit-learn, all of whose layers take part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gossamer._text.formats import percent
from gossamer.lab import Settings
from gossamer.lab.record import Lock
from gossamer.lab.runs.job import start
from gossamer.lab.runs.progress import launch
from gossamer.metrics import Metric
from gossamer.sparsity import Prune, SpikeSlabDecay
from gossamer.train import Training
from reproductions.drawing import PALETTE, draw, tidy
from reproductions.frame import Claim, Kept, Measures, Result, Row, Told

METHODS = {"DFP": False, "DPF": True}  # name -> whether what is pruned may return
PANELS = {"accuracy": "test accuracy, %", "soft": "weights in the spike, %", "hard": "weights pruned, %"}


def pruning(told: Told, folder: Path, lock: Lock) -> Measures:
    """Accuracy and both kinds of sparsity after every epoch, and at the end."""
    settings = Settings(**told)
    training = start(settings, settings.load_task(), launch(settings))
    curves: dict[str, list[float]] = {f"{name}_by_epoch": [] for name in PANELS}
    while training.step < training.steps:
        training.advance()
        if training.step % training.batches.per_epoch == 0:
            for name, value in state(training).items():
                curves[f"{name}_by_epoch"].append(round(value, 5))
    return curves | {name: curves[f"{name}_by_epoch"][-1] for name in PANELS}


@torch.no_grad()
def state(training: Training) -> dict[str, float]:
    """Accuracy of the network as it is on the test data, and both kinds of sparsity."""
    training.model.eval()
    x, y = training.task.test
    device = training.fabric.device
    parts = zip(x.split(1000), y.split(1000), strict=True)
    right = [training.model(training.task.transform(rows.to(device))).argmax(1).cpu() == of for rows, of in parts]
    training.model.train()
    (prune,) = (rule for rule in training.rules if isinstance(rule, Prune))
    (decay,) = (rule for rule in training.rules if isinstance(rule, SpikeSlabDecay))
    return {"accuracy": float(torch.cat(right).double().mean()), "soft": decay.spike_share, "hard": 1 - prune.density}


def _plot(result: Result, kept: Kept, path: Path) -> None:
    """Three panels over epochs, one line per training."""

    def paint(figure: Any) -> None:
        for axes, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for run in kept.runs:
                values = [100 * value for value in run.measures[f"{key}_by_epoch"]]
                # The two lie on top of each other: a broad line below, a thin dashed one above.
                style = {"lw": 3, "alpha": 0.35} if run.row == "DFP" else {"lw": 1.2, "ls": (0, (3, 2))}
                named = run.row if run is kept.of(run.row)[0] else None
                colour = PALETTE[list(METHODS).index(run.row)]
                axes.plot(range(1, len(values) + 1), values, color=colour, label=named, **style)
            axes.set_xlabel("epoch")
            tidy(axes, f"{label}{', small' if kept.small else ''}")
            if key == "accuracy":
                axes.set_ylim(max(0.0, min(100 * run.measures[key] for run in kept.runs) - 12), 100.5)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)

    draw(path, (10.5, 3.4), paint)


def _row(name: str) -> Row:
    full = {"method": "em_mcmc", "data": "cifar10", "model": "resnet18", "n_val": 0, "epochs": 200, "batch_size": 64}
    digits = {"data": "digits", "model": "conv_net", "epochs": 60, "batch_size": 64}
    options: dict[str, Any] = {"feedback": METHODS[name]}
    less = digits | {"options": {"preset": "figure2", "density": None}}
    return Row(name, full | {"options": options | {"density": 0.1}}, small=less)


def _share(name: str) -> Metric:
    heading = PANELS[name].removesuffix(", %")
    return Metric(name, heading, percent, None, "Share of the weights.", heading=heading)


RESULT = Result(
    title="EM-MCMC, Figure 2: pruned for good, or with feedback",
    claim="DFP and DPF do not differ in test accuracy or in sparsity.",
    rows=[_row(name) for name in METHODS],
    columns=["accuracy", _share("soft"), _share("hard")],
    claims=[
        Claim(f"{words}, {one} less {other}", name, {one: 1.0, other: -1.0}, -most, paired=True)
        for name, words, most in (("accuracy", "accuracy", 0.005), ("hard", "weights pruned", 0.05))
        for one, other in (("DFP", "DPF"), ("DPF", "DFP"))
    ],
    measure=pruning,
    plot=_plot,
)
