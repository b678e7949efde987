"""Weights that concentrate at zero under a cyclical learning rate (Ke and Fan, arXiv 2210.12957, Figure 1).

The paper follows the weights of single channels of a ResNet-18 on CIFAR-10 under Algorithm 2, without spike, slab or
pruning, and its k = 1/N. Here the network is small and the data are the digits that come with scikit-learn, or any
other data set and network of the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import data, methods, models
from gossamer._text.tables import Table
from gossamer.sparsity.groups import grouped_weights
from gossamer.train import Training
from reproductions.drawing import COLOURS, INK, SOFT, draw, tidy
from reproductions.parts import PartSettings, Row, StoredParts, Tick

__all__ = ["measure", "plan", "plot", "tables"]

TIMES = 60  # moments at which weights are recorded
PATHS = 20  # drawn per channel: those of the weights that end furthest from zero
AXES = {"input": "input", "output": "output"}
THRESHOLD = 1e-2  # λ2 of the paper's images


def plan(
    *,
    data: str = "digits",
    network: str = "conv_net",
    epochs: int = 200,
    lr: float = 0.2,
    weight_decay: float = 2e-3,
    temperature: float = 1e-5,
    cycles: int = 4,
    seed: int = 0,
) -> list[PartSettings]:
    """One part: a training.

    Args:
        data: Name of the data set.
        network: Name of the network.
        epochs: Length of the training.
        lr: Learning rate at the start of each cycle.
        weight_decay: Weight decay, the same for all weights: there is no spike.
        temperature: Temperature of the noise. The paper's k = 1/N acts as 1e-5 with its 50,000 images, see
            gossamer.optim.sghmc.
        cycles: Cycles of the learning rate.
        seed: Seed of the network, the order of the examples and the noise.

    Example:
        >>> plan(epochs=10)[0]["cycles"]
        4
    """
    if network not in models.names():
        raise ValueError(f"--network takes {', '.join(models.names())}; got {network!r}")
    if epochs < 1 or cycles < 1:
        raise ValueError(f"--epochs and --cycles must be at least 1; got {epochs} and {cycles}")
    options = {"lr": lr, "weight_decay": weight_decay, "temperature": temperature, "cycles": cycles}
    return [{"data": data, "network": network, "epochs": epochs, "batch_size": 64, **options, "seed": seed}]


def measure(settings: PartSettings, tick: Tick) -> list[Row]:
    """For each of some channels the paths of its weights; for each layer and axis how many channels are near zero."""
    task = data.load(settings["data"])
    steps = settings["epochs"] * -(-task.n_data // settings["batch_size"])
    torch.manual_seed(settings["seed"])
    network = models.build(settings["network"], task.input_shape, task.n_outputs)
    sampler = {key: settings[key] for key in ("lr", "weight_decay", "temperature", "cycles")}
    method = methods.build("cv_sghmc", task, steps, **sampler)
    training = Training(method, network, task, steps, batch_size=settings["batch_size"], seed=settings["seed"])
    every = max(1, steps // TIMES)
    seen: dict[str, list[Tensor]] = {name: [] for name in grouped_weights(training.model)}
    at, rates = [], []
    for step in range(1, steps + 1):
        values = training.advance()
        if step % every == 0:
            at.append(step)
            rates.append(round(method.lr(step - 1), 6))
            for name, weight in grouped_weights(training.model).items():
                seen[name].append(weight.values().clone())
            tick(step, steps, f"loss {float(values['loss']):.3f}")
    shares = [row for name in seen for row in _shares(training.model, name, seen[name])]
    return [{"kind": "rate", "step": at, "rate": rates}, *shares, *_channels(training.model, seen)]


def tables(results: StoredParts) -> dict[str, Table]:
    """How many channels have all their weights near zero, along the training."""
    rows = [row for part in results.parts for row in part.rows if row["kind"] == "share"]
    moments = (0.25, 0.5, 0.75, 1.0)
    cells = [
        [
            row["layer"],
            AXES[row["axis"]],
            str(row["n"]),
            *(f"{100 * _at(row['share'], when):.0f} %" for when in moments),
        ]
        for row in rows
    ]
    head = ["layer", "channels", "number", *(f"after {100 * when:.0f} %" for when in moments)]
    note = f"Share of the channels (units, in linear layers) with max |w| below {THRESHOLD:g}, along the training."
    return {"concentration": Table("Channels at zero", note, head, cells, 2)}


def plot(results: StoredParts, path: Path) -> None:
    """Paths of the weights of five channels, and the learning rate."""
    rows = results.parts[0].rows
    rate = next(row for row in rows if row["kind"] == "rate")
    channels = [row for row in rows if row["kind"] == "channel"][:5]

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 3, sharex=True).flatten()
        for axes, row in zip(panels, channels, strict=False):
            for weight in row["paths"]:
                axes.plot(rate["step"], weight, color=COLOURS["DFP"], lw=0.7, alpha=0.5)
            axes.axhline(0, color=INK, lw=0.6)
            tidy(axes, f"layer {row['layer']}, {row['axis']} {row['channel']}")
            axes.margins(x=0.02)
        panels[5].plot(rate["step"], rate["rate"], color=SOFT, lw=1.5)
        tidy(panels[5], "learning rate")
        for axes in panels[3:]:
            axes.set_xlabel("step")

    draw(path, (10.5, 5.6), paint)


def _shares(model: nn.Module, name: str, seen: list[Tensor]) -> list[Row]:
    weight, found = grouped_weights(model)[name], []
    for axis in AXES:
        members = weight.members(axis)
        share = [round(float((values[members].abs().amax(1) < THRESHOLD).double().mean()), 4) for values in seen]
        found.append({"kind": "share", "layer": name, "axis": axis, "n": len(members), "share": share})
    return found


def _channels(model: nn.Module, seen: dict[str, list[Tensor]]) -> list[Row]:
    """In each hidden layer the channel that comes closest to zero, by input and by output; and the largest one."""
    found = []
    for name in list(seen)[1:3]:
        for axis in AXES:
            found.append(_channel(model, name, axis, seen[name], smallest=True))
    last = list(seen)[1]
    return [*found, _channel(model, last, "output", seen[last], smallest=False)]


def _channel(model: nn.Module, name: str, axis: str, seen: list[Tensor], *, smallest: bool) -> Row:
    members = grouped_weights(model)[name].members(axis)
    size = seen[-1][members].abs().amax(1)
    number = int(size.argmin() if smallest else size.argmax())
    paths = torch.stack([values[members[number]] for values in seen], 1)
    paths = paths[paths[:, -1].abs().argsort(descending=True)[:PATHS]]
    rounded = [[float(f"{value:.3g}") for value in path] for path in paths.tolist()]
    return {"kind": "channel", "layer": name, "axis": axis, "channel": number, "paths": rounded}


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, round(share * len(values)) - 1)]
