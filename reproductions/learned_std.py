"""Standard deviations that learn: finished runs of recipes, predicted in several ways and looked at layer by layer.

Nothing is trained here. Each run is read at its last checkpoint and predicts the test data by its means, by draws of
its weights and by local noise; the entropy of its predictions is compared with that on images of other data sets. Runs
that differ by their seed alone also predict together. All of it is computed in float32.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer import data, metrics
from gossamer._text.tables import Table
from gossamer.data import DataNotFoundError
from gossamer.evaluate import summarize
from gossamer.lab.record import Run
from gossamer.lab.runs.job import Job
from gossamer.lab.runs.result import restored
from gossamer.layers import CurvatureWeight, GaussianWeight, sparse_weights
from gossamer.posterior import LocalPasses, Mixture, SingleNetwork
from gossamer.types import Posterior
from reproductions.drawing import draw, tidy
from reproductions.parts import PartSettings, Row, StoredParts, Tick

__all__ = ["measure", "plan", "plot", "tables"]

OUTSIDE = {"cifar10": "cifar100,svhn", "cifar100": "cifar10,svhn"}  # data set -> where unfamiliar images come from
MEMBERS = 4  # runs that predict together
SHARES = (0.05, 0.5, 0.95)  # of the entries of a layer below a quantile
MEASURES = {"std": "σ", "curvature": "h", "snr": "|μ|/σ"}  # of the entries of a layer
METRICS = ("accuracy", "nll", "ece", "brier")
RECORDED = ("model", "epochs", "batch_size", "n_val", "options")  # of the configuration of a run
COLOURS = ("#0072B2", "#D55E00", "#009E73")  # of Okabe and Ito, which colour-blind people can tell apart
FLOOR = 1e-5  # of a logarithmic axis: curvatures may be negative

Way = tuple[Posterior, int]
"""A posterior, and how many networks to draw from it."""


def plan(runs: Sequence[str], *, outside: str = "", data_dir: str = "") -> list[PartSettings]:
    """The parts: each run, and four runs that differ by their seed alone as one ensemble.

    Args:
        runs: Folders of finished runs of gossamer train or compare.
        outside: Data sets with unfamiliar images, with commas between them; by default CIFAR-100 for CIFAR-10, the
            reverse, and SVHN if its file is there.
        data_dir: Folder of the data files; $GOSSAMER_DATA or data/ if not given.
    """
    parts = [_part(Path(folder), outside, data_dir) for folder in runs]
    ensembles: dict[str, list[PartSettings]] = {}
    for part in sorted(parts, key=lambda part: part["seed"]):
        alike = {key: value for key, value in part.items() if key not in ("seed", "folder")}
        ensembles.setdefault(repr(alike), []).append(part)
    for members in [members[:MEMBERS] for members in ensembles.values() if len(members) >= MEMBERS]:
        own = {"seeds": [part["seed"] for part in members], "folders": [part["folder"] for part in members]}
        parts.append({key: value for key, value in members[0].items() if key not in ("seed", "folder")} | own)
    return parts


def measure(settings: PartSettings, tick: Tick) -> list[Row]:
    """A row for each way to predict, then one for each layer of a Bayesian network."""
    is_ensemble = "folders" in settings
    options = {"precision": "32", "capture": False} | ({"data_dir": d} if (d := settings["data_dir"]) else {})
    jobs = [restored(folder, **options) for folder in settings.get("folders") or [settings["folder"]]]
    if not jobs[0].task.class_names:
        raise ValueError(f"the runs must be of a data set with classes, such as cifar10; {jobs[0].task.name} has none")
    posteriors = [job.training.posterior() for job in jobs]
    ways = _ways_together(posteriors) if is_ensemble else _ways(posteriors[0])
    inputs = _outside(settings, jobs[0])
    rows = []
    for number, (name, way) in enumerate(ways.items(), 1):
        rows.append(_row(name, way, jobs[0], inputs))
        tick(number, len(ways), f"{name}: accuracy {rows[-1]['accuracy']:.1%}, NLL {rows[-1]['nll']:.3f}")
    return rows if is_ensemble else rows + _layers(posteriors[0])


def tables(results: StoredParts) -> dict[str, Table]:
    """Predictions, and the widths of whole networks."""
    return {"predictions": _predictions(results), "widths": _widths(results)}


def plot(results: StoredParts, path: Path) -> None:
    """What σ, h and |μ|/σ are in each layer of one network: medians, and lines from the 5 to the 95 % quantile."""
    found = _first_layers(results)
    (data_name, label), layers = next(
        (item for item in found.items() if _has_h(item[1])), next(iter(found.items()), (("", ""), []))
    )
    panels = [key for key in MEASURES if any(key in row for row in layers)] or ["std"]

    def paint(figure: Any) -> None:
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, key, colour in zip(every, panels, COLOURS, strict=False):
            for at, row in enumerate(layers):
                low, middle, high = (max(value, FLOOR) for value in row[key])
                axes.plot([low, high], [at, at], color=colour, linewidth=2, alpha=0.5, solid_capstyle="round")
                axes.plot([middle], [at], "o", color=colour, markersize=4)
            values = [max(value, FLOOR) for row in layers for value in row[key]] or [1.0]
            axes.set_xscale("log")
            axes.set_xlim(10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values))))
            axes.xaxis.set_minor_formatter("")
            axes.set_yticks(range(len(layers)), [row["layer"] for row in layers], fontsize=7)
            axes.set_ylim(len(layers) - 0.5, -0.5)
            tidy(axes, MEASURES[key])
        figure.suptitle(f"{data_name}, {label}", fontsize=9)

    draw(path, (10.5, 1.2 + 0.2 * len(layers)), paint)


def _part(folder: Path, outside: str, data_dir: str) -> PartSettings:
    run = Run.open(folder)
    config = run.config
    if run.result() is None:
        raise ValueError(f"{folder} is not finished: continue it with gossamer train --resume {folder}")
    where = outside or OUTSIDE.get(config["data"], "")
    return {
        "label": _label(folder.absolute(), config["seed"]),
        **{key: config.get(key) for key in ("data", "method", *RECORDED)},
        "outside": [name.strip() for name in where.split(",") if name.strip()],
        "data_dir": data_dir,
        "folder": str(folder),
        "seed": config["seed"],
    }


def _label(folder: Path, seed: int) -> str:
    """The name of a run without its seed, in both forms of folders that the library writes.

    Example:
        >>> _label(Path("runs/compare/ssvi-95-3"), 3), _label(Path("results/ssvi-95/3"), 3)
        ('ssvi-95', 'ssvi-95')
    """
    return folder.parent.name if folder.name == str(seed) else folder.name.removesuffix(f"-{seed}")


def _ways(posterior: Posterior) -> dict[str, Way]:
    if isinstance(posterior, SingleNetwork):
        return {"one network": (posterior, 1)}
    drawn: dict[str, Way] = {f"{n} draws": (posterior, n) for n in (5, 20)}
    if not _gaussians(posterior):
        return drawn
    model, refresh = posterior.model, posterior.refresh
    return {"means": (SingleNetwork(model, refresh), 1), **drawn, "20 local passes": (LocalPasses(model, refresh), 20)}


def _ways_together(posteriors: list[Posterior]) -> dict[str, Way]:
    mixture, n = Mixture(posteriors), len(posteriors)
    if all(isinstance(posterior, SingleNetwork) for posterior in posteriors):
        return {f"{n} networks": (mixture, n)}
    return {f"{draws} draws of {n} networks": (mixture, draws) for draws in (5 * n, 20 * n)}


def _outside(settings: PartSettings, job: Job) -> dict[str, Tensor]:
    """Unfamiliar inputs by the name of their set, as far as its files are there."""
    found = {}
    for name in settings["outside"]:
        try:
            x = _test_inputs(name, settings["data_dir"] or job.settings.data_dir)
        except DataNotFoundError:
            if name != "svhn":  # the one that is not needed
                raise
            continue
        if x.shape[1:] != job.task.test[0].shape[1:]:
            shapes = f"{tuple(x.shape[1:])} and {tuple(job.task.test[0].shape[1:])}"
            raise ValueError(f"--outside needs inputs of the form that {job.task.name} has; {name} has {shapes}")
        found[name] = x
    return found


@functools.lru_cache(maxsize=3)
def _test_inputs(name: str, root: str | None) -> Tensor:
    options: dict[str, Any] = {"only_test": True} if name == "svhn" else {}
    return data.load(name, root, **options).test[0]


def _row(name: str, way: Way, job: Job, outside: Mapping[str, Tensor]) -> Row:
    posterior, n = way
    settings, (x, y) = replace(job.settings, n_draws=n), job.task.test
    # All inputs at once, by the same draws: to refresh batch normalisation for a draw can take longer than to predict.
    together = replace(job, settings=settings).predict(torch.cat([x, *outside.values()]), posterior)
    sizes = [len(x), *map(len, outside.values())]
    own, *others = (replace(together, outputs=outputs) for outputs in together.outputs.split(sizes, 1))
    quality = summarize(own, job.task, y)
    row: Row = {"way": name, **{key: round(quality[key], 6) for key in METRICS}}
    for other, prediction in zip(outside, others, strict=True):
        row[f"auroc_{other}"] = round(metrics.auroc(own.entropy, prediction.entropy), 6)
    return row


def _gaussians(posterior: Posterior) -> dict[str, GaussianWeight]:
    weights = sparse_weights(posterior.model)
    return {name: weight for name, weight in weights.items() if isinstance(weight, GaussianWeight)}


def _layers(posterior: Posterior) -> list[Row]:
    rows = []
    for name, weight in _gaussians(posterior).items():
        mean, std = weight.mean.detach().double(), weight.std.detach().double()
        row: Row = {"layer": name, "n_active": len(mean), "std": _quantiles(std)}
        if isinstance(weight, CurvatureWeight):
            row["curvature"] = _quantiles(weight.curvature.double())
        rows.append(row | {"snr": _quantiles(mean.abs() / std)})
    return rows


def _quantiles(values: Tensor) -> list[float]:
    ordered = values.sort().values  # torch.quantile takes 16 million numbers at most
    return [float(f"{float(ordered[round(share * (len(ordered) - 1))]):.5g}") for share in SHARES]


def _grouped(results: StoredParts) -> dict[tuple[str, str, str], list[Row]]:
    """The rows of predictions by data set, training and way; those of several seeds together."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    # An ensemble comes after the runs that it is made of.
    order = list(dict.fromkeys((part.settings["data"], part.settings["label"]) for part in results.parts))
    for key in sorted(order):
        for part in results.parts:
            if (part.settings["data"], part.settings["label"]) == key:
                for row in (row for row in part.rows if "way" in row):
                    groups.setdefault((*key, row["way"]), []).append(row)
    return groups


def _predictions(results: StoredParts) -> Table:
    groups = _grouped(results)
    outside = list(dict.fromkeys(key for rows in groups.values() for key in rows[0] if key.startswith("auroc_")))
    # The number of decimals, and what it is multiplied by.
    columns = {"accuracy": ("accuracy, %", 2, 100), "nll": ("NLL", 4, 1), "ece": ("ECE, %", 2, 100)}
    columns |= {"brier": ("Brier", 4, 1)} | {key: (f"AUROC {key[6:]}", 4, 1) for key in outside}
    rows = [
        [*names, str(len(found)), *(_spread(found, key, digits, by) for key, (_, digits, by) in columns.items())]
        for names, found in groups.items()
    ]
    head = ["data", "training", "prediction", "runs", *(title for title, _, _ in columns.values())]
    note = "Mean ± standard deviation over the runs. AUROC of the entropy, against the test images of other data sets."
    return Table("Predictions", note, head, rows, 3)


def _spread(rows: list[Row], key: str, digits: int, by: float) -> str:
    values = [row[key] * by for row in rows if key in row]
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if values[1:] else mean


def _first_layers(results: StoredParts) -> dict[tuple[str, str], list[Row]]:
    """The rows of layers by data set and training, of the run with the lowest seed."""
    found: dict[tuple[str, str], list[Row]] = {}
    for part in sorted(results.parts, key=lambda part: (part.settings["data"], part.settings.get("seed", -1))):
        layers = [row for row in part.rows if "layer" in row]
        if layers:
            found.setdefault((part.settings["data"], part.settings["label"]), layers)
    return found


def _widths(results: StoredParts) -> Table:
    def cells(layers: list[Row]) -> Iterable[str]:
        for key in MEASURES:
            quantiles = [row[key] for row in layers if key in row]
            middles = [middle for _, middle, _ in quantiles]
            yield _three([min(middles), statistics.median(middles), max(middles)]) if middles else "–"
            within = [high / low for low, _, high in quantiles if low > 0]
            yield f"{statistics.median(within):.1f}" if within else "–"

    head = ["data", "training", *(text for name in MEASURES.values() for text in (name, "95 % / 5 %"))]
    rows = [[*names, *cells(layers)] for names, layers in _first_layers(results).items()]
    note = "Medians of the layers: lowest, middle, highest; and how far the quantiles of a layer are apart (median)."
    return Table("Widths", note, head, rows, 2)


def _has_h(layers: list[Row]) -> bool:
    return any("curvature" in row for row in layers)


def _three(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)
