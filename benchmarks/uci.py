"""The regressor on the UCI sets, against five others: RMSE, NLL and coverage of 90 % intervals.

    python -m benchmarks.uci [--sets yacht boston …] [--splits 10] [--models …] [--out runs/uci] [--data FOLDER]

On each published split every model chooses among its few settings (GRIDS) by the log density of a tenth of the
training rows, is trained again on all of them, and predicts the test rows, which nothing else ever sees. Standard
errors are over splits. Every cell is written when it is done: an interrupted run goes on where it was. The tables are
printed, and written to ``table.md`` and ``result.json`` in the folder.
"""

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import uci_rivals as rivals
from gossamer.data import DataNotFoundError, uci
from gossamer.estimators import SparseBayesRegressor
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction
from gossamer.record.files import append_line, read_lines

Array = np.ndarray[Any, Any]
SMALL = ["yacht", "boston", "energy", "concrete", "wine-red"]
METRICS = {"rmse": "RMSE", "nll": "NLL", "coverage": "coverage of 90 % intervals"}


def sparse_bayes(x: Array, y: Array, x_new: Array, seed: int, **options: Any) -> rivals.Mixture:
    """The estimator, as a rival of its rivals."""
    model = SparseBayesRegressor(random_state=seed, **options).fit(x, y)
    # The targets are standardised already, so those that the network sees have the same units.
    mean, std = (part[..., 0].numpy() for part in Gaussian().split(model.prediction(x_new).outputs))
    return rivals.Mixture(mean, std)


MODELS: dict[str, Callable[..., rivals.Mixture]] = {
    "SparseBayesRegressor": sparse_bayes,
    "BayesianRidge": rivals.bayesian_ridge,
    "Gaussian process": rivals.gaussian_process,
    "random forest, quantiles": rivals.random_forest,
    "deep ensemble, 5": rivals.deep_ensemble,
    "MC dropout": rivals.mc_dropout,
}
GRIDS: dict[str, list[dict[str, Any]]] = {
    "SparseBayesRegressor": [
        {"noise": noise} | longer
        for noise in ("constant", "varying")
        for longer in ({}, {"density": 0.3, "max_steps": 2000})
    ],
    "random forest, quantiles": [{"leaf": 1}, {"leaf": 5}],
    "deep ensemble, 5": [{"steps": 1000, "weight_decay": decay} for decay in (1e-4, 1e-2)],
    "MC dropout": [{"steps": 1000, "rate": rate} for rate in (0.05, 0.2)],
}


class TableRows(NamedTuple):
    """Rows of a split in their original units."""

    x: Array
    y: Array


def main() -> None:
    """All cells that are not done yet, then the tables."""
    options = parse()
    cells = Cells(options.out)
    todo = [
        (name, split, model)
        for name in options.sets
        for split in range(min(options.splits, uci.SETS[name].n_splits))
        for model in options.models
        if (name, split, model) not in cells.done
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(todo))
        for name, split, model in todo:
            bar.update(task, description=f"{name} {split} {model}")
            try:
                cells.add(cell(name, split, model, options.data))
            except DataNotFoundError as error:
                sys.exit(f"{error}\nNothing was run.")
            bar.advance(task)
    text = table(cells.rows)
    (options.out / "table.md").write_text(text)
    (options.out / "result.json").write_text(json.dumps({"environment": environment(), "cells": cells.rows}, indent=1))
    print(text)


def cell(name: str, split: int, model: str, data: Path | None) -> dict[str, Any]:
    """One model on one split: settings chosen on held-out training rows, then scores on the test rows."""
    train, val, test = parts(name, split, data)
    row: dict[str, Any] = {"set": name, "split": split, "model": model, "n_train": len(train.y) + len(val.y)}
    if model == "Gaussian process" and row["n_train"] > rivals.GP_LIMIT:
        return row | {"skipped": f"more than {rivals.GP_LIMIT} training rows"}
    start = time.process_time()
    grid = GRIDS.get(model, [{}])
    losses = [run(model, train, val, split, choice)["nll"] for choice in grid] if len(grid) > 1 else [0.0]
    chosen = grid[int(np.argmin(losses))]
    everything = TableRows(*(np.concatenate(both) for both in zip(train, val, strict=True)))
    scores = run(model, everything, test, split, chosen)
    return row | scores | {"chosen": chosen, "cpu_seconds": time.process_time() - start}


def parts(name: str, split: int, data: Path | None) -> tuple[TableRows, TableRows, TableRows]:
    """Rows to train on, rows to choose by (both of the published training part), rows to report."""
    task = uci.load(data, name=name, split=split)
    return tuple(  # type: ignore[return-value]
        TableRows(x.double().numpy(), (y[:, 0].double() * task.target_std + task.target_mean).numpy())
        for x, y in (task.train, task.val, task.test)
    )


def run(model: str, train: TableRows, new: TableRows, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """Train on ``train`` and score on ``new``, both standardised by ``train``; scores in the original units."""
    centre, unit = train.x.mean(0), train.x.std(0)
    unit[unit == 0] = 1
    y_centre, y_unit = train.y.mean(), train.y.std()
    x, x_new = ((part.x - centre) / unit for part in (train, new))
    found = MODELS[model](x, (train.y - y_centre) / y_unit, x_new, seed, **options)
    y = (new.y - y_centre) / y_unit
    low, high = found.interval or interval(found)
    log_density = -0.5 * ((y - found.mean) / found.std) ** 2 - np.log(found.std) - 0.5 * math.log(2 * math.pi)
    return {
        "rmse": float(y_unit * np.sqrt(np.mean((y - found.mean.mean(0)) ** 2))),
        "nll": float(math.log(y_unit) - np.mean(np.logaddexp.reduce(log_density) - math.log(len(log_density)))),
        "coverage": float(np.mean((low <= y) & (y <= high))),
        "width": float(y_unit * np.mean(high - low)),
    }


def interval(found: rivals.Mixture) -> tuple[Array, Array]:
    """The 90 % interval of a mixture, with as much outside below as above."""
    raw = found.std + np.log(-np.expm1(-found.std))  # the softplus of it is the std
    outputs = torch.from_numpy(np.stack([found.mean, raw], -1))
    low, high = Prediction(outputs, Gaussian()).interval(0.9)
    return low.numpy()[:, 0], high.numpy()[:, 0]


class Cells:
    """The finished cells, one line each."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "cells.jsonl"
        self.rows = [row for _, row in read_lines(self.path)]  # a line cut short by a kill is left out
        self.done = {(row["set"], row["split"], row["model"]) for row in self.rows}

    def add(self, row: dict[str, Any]) -> None:
        """Add a cell, and write it at once."""
        self.rows.append(row)
        append_line(self.path, row)


def table(rows: list[dict[str, Any]]) -> str:
    """One Markdown table per metric: mean ± standard error over splits."""
    sets, models = list(dict.fromkeys(row["set"] for row in rows)), list(dict.fromkeys(row["model"] for row in rows))
    texts = []
    for metric, title in METRICS.items():
        head = [f"| {title} | {' | '.join(sets)} |", f"| --- |{' --- |' * len(sets)}"]
        body = [f"| {model} | {' | '.join(summary(rows, name, model, metric) for name in sets)} |" for model in models]
        texts.append("\n".join([*head, *body]))
    return "\n\n".join(texts) + "\n"


def summary(rows: Iterable[dict[str, Any]], name: str, model: str, metric: str) -> str:
    """Mean ± standard error over splits."""
    values = [row[metric] for row in rows if (row["set"], row["model"]) == (name, model) and metric in row]
    if not values:
        return "–"
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.2f} ± {error:.2f}"


def environment() -> dict[str, str]:
    """Versions behind the numbers."""
    return {"python": platform.python_version(), "torch": torch.__version__, "scikit-learn": sklearn.__version__}


def parse() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SMALL, choices=list(uci.FOLDERS), metavar="SET")
    parser.add_argument("--splits", type=int, default=10, help="how many of the published splits")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--out", type=Path, default=Path("runs/uci"))
    parser.add_argument("--data", type=Path, help="folder with uci/; without one, $GOSSAMER_DATA, then data/")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
