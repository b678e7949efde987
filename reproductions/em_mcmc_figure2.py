"""DFP against DPF over training (Ke and Fan, arXiv 2210.12957, Figure 2): accuracy, soft and hard sparsity.

The paper has a ResNet-18 on CIFAR-10. Here it is a small convolutional network on the digits that come with
scikit-learn, all of whose layers take part, or any other data set and network of the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from gossamer import data, methods, models
from gossamer._text.tables import Table
from gossamer.train import Training
from gossamer.types import Task
from reproductions.drawing import COLOURS, draw, tidy
from reproductions.parts import PartSettings, Row, StoredParts, Tick

__all__ = ["measure", "plan", "plot", "tables"]

METHODS = {"DFP": False, "DPF": True}  # name -> whether what is pruned may return
PANELS = {"accuracy": "test accuracy, %", "soft": "weights in the spike, %", "hard": "weights pruned, %"}


def plan(
    *, data: str = "digits", network: str = "conv_net", epochs: int = 60, seeds: int = 3, batch_size: int = 64
) -> list[PartSettings]:
    """The parts: DFP and DPF with each seed.

    Args:
        data: Name of the data set.
        network: Name of the network.
        epochs: Length of the trainings.
        seeds: How many trainings of each.
        batch_size: Examples per step.

    Example:
        >>> [part["seed"] for part in plan(seeds=2)]
        [0, 0, 1, 1]
    """
    known = models.names()
    if network not in known:
        raise ValueError(f"--network takes {', '.join(known)}; got {network!r}")
    for name, value in {"epochs": epochs, "seeds": seeds, "batch_size": batch_size}.items():
        if value < 1:
            raise ValueError(f"--{name} must be at least 1; got {value}")
    common = {"data": data, "network": network, "epochs": epochs, "batch_size": batch_size, "preset": "figure2"}
    return [{"method": method, **common, "seed": seed} for seed in range(seeds) for method in METHODS]


def measure(settings: PartSettings, tick: Tick) -> list[Row]:
    """One row per epoch."""
    task = data.load(settings["data"])
    if not task.class_names:
        raise ValueError(f"--data must be a set with classes, such as digits; {settings['data']} has none")
    per_epoch = -(-task.n_data // settings["batch_size"])
    steps = settings["epochs"] * per_epoch
    torch.manual_seed(settings["seed"])
    network = models.build(settings["network"], task.input_shape, task.n_outputs)
    method = methods.build("em_mcmc", task, steps, feedback=METHODS[settings["method"]], preset="figure2")
    training = Training(method, network, task, steps, batch_size=settings["batch_size"], seed=settings["seed"])
    rows = []
    for step in range(1, steps + 1):
        training.advance()
        if step % per_epoch == 0:
            rows.append({"epoch": step // per_epoch, **_state(training, task)})
            tick(step, steps, f"accuracy {rows[-1]['accuracy']:.1%}, pruned {rows[-1]['hard']:.1%}")
    return rows


def tables(results: StoredParts) -> dict[str, Table]:
    """Where each training ends."""
    rows = []
    for method in METHODS:
        last = [part.rows[-1] for part in results.parts if part.settings["method"] == method]
        spans = [_span([100 * row[key] for row in last]) for key in PANELS]
        rows.append([method, str(len(last)), *spans])
    head = ["method", "trainings", *PANELS.values()]
    return {"end": Table("At the end of training", "Mean, and the least and the most of all trainings.", head, rows)}


def plot(results: StoredParts, path: Path) -> None:
    """Three panels over epochs, one line per training."""

    def paint(figure: Any) -> None:
        for axes, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
            for part in results.parts:
                epochs = [row["epoch"] for row in part.rows]
                values, method = [100 * row[key] for row in part.rows], part.settings["method"]
                # The two lie on top of each other: a broad line below, a thin dashed one above.
                style = {"lw": 3, "alpha": 0.35} if method == "DFP" else {"lw": 1.2, "ls": (0, (3, 2))}
                label_of = method if part.settings["seed"] == results.parts[0].settings["seed"] else None
                axes.plot(epochs, values, color=COLOURS[method], label=label_of, **style)
            axes.set_xlabel("epoch")
            tidy(axes, label)
            last = min(100 * part.rows[-1][key] for part in results.parts)
            axes.set_ylim(max(0.0, last - 12) if key == "accuracy" else -2, 100.5 if key == "accuracy" else 102)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)

    draw(path, (10.5, 3.4), paint)


@torch.no_grad()
def _state(training: Training, task: Task) -> Row:
    """Accuracy of the network as it is on the test data, and both kinds of sparsity."""
    training.model.eval()
    x, y = task.test
    parts = zip(x.split(1000), y.split(1000), strict=True)
    n_right = sum(int((training.model(task.transform(rows)).argmax(1) == of).sum()) for rows, of in parts)
    training.model.train()
    prune: Any
    decay: Any
    prune, decay = training.rules
    return {
        "accuracy": round(n_right / len(y), 5),
        "soft": round(decay.spike_share, 5),
        "hard": round(1 - prune.density, 5),
    }


def _span(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
