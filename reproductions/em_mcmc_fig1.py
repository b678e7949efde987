"""Weights that concentrate at zero under a cyclical learning rate (Ke and Fan, arXiv 2210.12957, Figure 1).

The paper follows the weights of single channels of a ResNet-18 on CIFAR-10 under Algorithm 2, without spike, slab or
pruning, and its k = 1/N. Small runs are of a convolutional network on the digits that come with scikit-learn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer._text.formats import percent
from gossamer.lab import Settings
from gossamer.lab.record import Lock
from gossamer.lab.runs.job import start
from gossamer.lab.runs.progress import launch
from gossamer.metrics import Metric
from gossamer.sparsity.groups import grouped_weights
from reproductions.drawing import INK, PALETTE, SOFT, draw, tidy
from reproductions.frame import Claim, Kept, Measures, Result, Row, Told

TIMES = 60  # moments at which weights are recorded
PATHS = 20  # drawn per channel: those of the weights that end furthest from zero
THRESHOLD = 1e-2  # λ2 of the paper's images
AXES = ("input", "output")
MOMENTS = (0.25, 0.5, 0.75, 1.0)
ROW = "CV-SGHMC"


def concentration(told: Told, folder: Path, lock: Lock) -> Measures:
    """The share of channels near zero along the training, and the paths of the weights of five channels."""
    settings = Settings(**told)
    training = start(settings, settings.load_task(), launch(settings))
    every = max(1, training.steps // TIMES)
    seen: dict[str, list[Tensor]] = {name: [] for name in grouped_weights(training.model)}
    found: Measures = {"step": [], "rate": []}
    while training.step < training.steps:
        rate = training.lr
        training.advance()
        if training.step % every == 0:
            found["step"].append(training.step)
            found["rate"].append(round(rate, 6))
            for name, weight in grouped_weights(training.model).items():
                seen[name].append(weight.values().detach().cpu().clone())
    found["share"] = shares(training.model, seen)
    found |= {f"share_{when}": found["share"][round(when * len(found["step"])) - 1] for when in MOMENTS}
    most = [max(found["share"][: i + 1]) for i in range(len(found["share"]))]
    found["undone"] = max(high - now for high, now in zip(most, found["share"], strict=True))
    return found | {"channels": channels(training.model, seen)}


def shares(model: nn.Module, seen: dict[str, list[Tensor]]) -> list[float]:
    """At each moment, the share of all channels, by input and by output, whose weights are all near zero."""
    near = []
    for name, weight in grouped_weights(model).items():
        for axis in AXES:
            members = weight.members(axis)
            near.append(torch.stack([values[members].abs().amax(1) < THRESHOLD for values in seen[name]]))
    return [round(float(share), 4) for share in torch.cat(near, 1).double().mean(1)]


def channels(model: nn.Module, seen: dict[str, list[Tensor]]) -> list[dict[str, Any]]:
    """In two hidden layers the channel that comes closest to zero, by input and by output; and a largest one."""
    names = list(seen)[1:3]
    chosen = [(name, axis, False) for name in names for axis in AXES] + [(names[0], "output", True)]
    found = []
    for name, axis, largest in chosen:
        members = grouped_weights(model)[name].members(axis)
        size = seen[name][-1][members].abs().amax(1)
        number = int(size.argmax() if largest else size.argmin())
        paths = torch.stack([values[members[number]] for values in seen[name]], 1)
        paths = paths[paths[:, -1].abs().argsort(descending=True)[:PATHS]]
        rounded = [[float(f"{value:.3g}") for value in path] for path in paths.tolist()]
        found.append({"layer": name, "axis": axis, "channel": number, "paths": rounded})
    return found


def _plot(result: Result, kept: Kept, path: Path) -> None:
    """Paths of the weights of five channels of the first run, and the learning rate."""
    measures = kept.runs[0].measures

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 3, sharex=True).flatten()
        for axes, row in zip(panels, measures["channels"], strict=False):
            for weight in row["paths"]:
                axes.plot(measures["step"], weight, color=PALETTE[0], lw=0.7, alpha=0.5)
            axes.axhline(0, color=INK, lw=0.6)
            tidy(axes, f"layer {row['layer']}, {row['axis']} {row['channel']}{', small' if kept.small else ''}")
        panels[5].plot(measures["step"], measures["rate"], color=SOFT, lw=1.5)
        tidy(panels[5], "learning rate")
        for axes in panels[3:]:
            axes.set_xlabel("step")

    draw(path, (10.5, 5.6), paint)


def _share(when: float) -> Metric:
    heading = f"channels at zero after {100 * when:.0f} %"
    return Metric(f"share_{when}", heading, percent, None, "Share of the channels near zero.", heading=heading)


DIGITS = {"lr": 0.2, "weight_decay": 2e-3, "temperature": 1e-5, "cycles": 4, "mode": "default"}

RESULT = Result(
    title="EM-MCMC, Figure 1: weights that concentrate at zero",
    claim="All weights of many channels shrink to zero together and stay there when the learning rate rises again.",
    rows=[
        Row(
            ROW,
            {
                **{"method": "cv_sghmc", "data": "cifar10", "model": "resnet18", "n_val": 0},
                **{"epochs": 200, "batch_size": 64, "options": {"mode": "reference"}},
            },
            small={"data": "digits", "model": "conv_net", "epochs": 200, "batch_size": 64, "options": DIGITS},
        )
    ],
    columns=[
        *map(_share, MOMENTS),
        Metric("undone", "largest fall", percent, "lower", "Of the share, from its most.", heading="largest fall"),
    ],
    claims=[
        Claim("share of the channels at zero at the end", "share_1.0", {ROW: 1.0}, 0.1),
        Claim("fall of that share at any time, negative", "undone", {ROW: -1.0}, -0.05),
    ],
    measure=concentration,
    plot=_plot,
)
