"""The regressor on the nine UCI sets, against others: RMSE, NLL, CRPS, coverage of 90 % intervals and CPU seconds.

    python -m benchmarks.uci [--sets yacht boston …] [--splits 10] [--methods …] [--out results/uci.json] [--check]

Every method trains on the published training part of a split and predicts its test part, which nothing else ever sees;
a method that has something to choose holds out training rows of its own. Every cell is written when it is done, and a
run measures only the cells that the file does not have: to measure one again, delete its line. At the end the tables
and the bars of uci_tables.py are printed; with ``--check`` a missed bar is an error.
"""

import argparse
import math
import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import uci_rivals as rivals
from benchmarks.uci_tables import GP, KIND, OURS, SETS, bars, uci_tables
from gossamer import __version__
from gossamer.data import DataNotFoundError, uci
from gossamer.estimators import SparseBayesRegressor
from gossamer.files.atomic import json_by_rows, read_file
from gossamer.lab.record import write_atomically
from gossamer.lab.record.contents import environment
from gossamer.likelihoods import Gaussian
from gossamer.metrics import gaussian_mixture_crps
from gossamer.posterior import Prediction

Array = np.ndarray[Any, Any]


def sparse_bayes(x: Array, y: Array, x_new: Array, seed: int, **arguments: Any) -> rivals.Mixture:
    """The estimator, as a rival of its rivals."""
    model = SparseBayesRegressor(random_state=seed, **arguments).fit(x, y)
    # The targets are standardised already, so those that the network sees have the same units.
    mean, std = (part[..., 0].numpy() for part in Gaussian().split(model.prediction(x_new).outputs))
    return rivals.Mixture(mean, std, rare=1 / (len(y) + 1))


# The rows of BEFORE in the file were measured at commit eacb305, whose default it was.
METHODS: dict[str, Callable[[Array, Array, Array, int], rivals.Mixture | dict[str, rivals.Mixture]]] = {
    OURS: sparse_bayes,
    "HistGradientBoosting": rivals.boosting,
    "random forest": rivals.random_forest,
    GP: rivals.gaussian_process,
    "deep ensemble": rivals.deep_ensemble,
    "BayesianRidge": rivals.bayesian_ridge,
}


def main() -> None:
    """All cells that are not done yet, then the tables."""
    options = parse()
    cells = Cells(options.out)
    todo = [
        (name, split, method)
        for name in options.sets
        for split in range(min(options.splits, uci.SETS[name].n_splits))
        for method in options.methods
        if (name, split, method) not in cells.done and not too_many_rows(name, method)
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(todo))
        for name, split, method in todo:
            bar.update(task, description=f"{name} {split} {method}")
            try:
                cells.add(measure(name, split, method, options.data_dir))
            except DataNotFoundError as error:
                sys.exit(f"{error}\nNothing was run.")
            bar.advance(task)
    for table in uci_tables({"cells": cells.rows}).values():
        print(table.to_text(), end="\n\n")
    if options.check and not all(bar.met for bar in bars(cells.rows)):
        sys.exit("a bar was missed")


def too_many_rows(name: str, method: str) -> bool:
    """Whether a Gaussian process would take too long; nine tenths of the rows are for training."""
    return method == GP and 0.9 * uci.SETS[name].shape[0] > rivals.GP_LIMIT


def measure(name: str, split: int, method: str, data: Path | None) -> list[dict[str, Any]]:
    """One method on one split: a cell for each of its predictions."""
    task = uci.load(data, name=name, split=split, n_val=0)
    x, x_new = (task.transform(x).double().numpy() for x, _ in (task.train, task.test))
    y, y_new = (y[:, 0].double().numpy() for _, y in (task.train, task.test))
    start = time.process_time()
    found = METHODS[method](x, y, x_new, split)
    seconds = round(time.process_time() - start, 3)
    named = found if isinstance(found, dict) else {method: found}
    where = {"set": name, "split": split}
    return [
        where | {"method": label} | scores(one, y_new, task.target_std, 1 / (len(y) + 1)) | {"seconds": seconds}
        for label, one in named.items()
    ]


def scores(found: rivals.Mixture, y: Array, unit: float, rare: float) -> dict[str, float]:
    """Predictions of standardised targets ``y``, scored in the original unit.

    ``nll_succession`` is the NLL by the rule of succession: with probability ``rare`` a row is like none before, as in
    :meth:`gossamer.SparseBayesRegressor.predict_log_density`.
    """
    low, high = interval(found)
    mean, std, targets = map(torch.from_numpy, (found.mean, found.std, y))
    found_scores = {
        "rmse": unit * np.sqrt(np.mean((y - found.mean.mean(0)) ** 2)),
        "nll": math.log(unit) - found.log_density(y).mean(),
        "nll_succession": math.log(unit) - found._replace(rare=rare).log_density(y).mean(),
        "crps": unit * gaussian_mixture_crps(mean, std, targets),
        "coverage": np.mean((low <= y) & (y <= high)),
    }
    return {name: float(f"{value:.6g}") for name, value in found_scores.items()}


def interval(found: rivals.Mixture) -> tuple[Array, Array]:
    """The 90 % interval of a mixture, with as much outside below as above."""
    raw = found.std + np.log(-np.expm1(-found.std))  # the softplus of it is the std
    low, high = Prediction(torch.from_numpy(np.stack([found.mean, raw], -1)), Gaussian()).interval(0.9)
    return low.numpy()[:, 0], high.numpy()[:, 0]


class Cells:
    """The file of finished cells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = (read_file(path, "delete it, or restore it") or {"cells": []})["cells"]
        self.done = {(row["set"], row["split"], row["method"]) for row in self.rows}

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add cells, and write them at once."""
        self.rows += rows
        content = {"kind": KIND, "environment": surroundings(), "cells": self.rows}
        write_atomically(self.path, json_by_rows(content))


def surroundings() -> dict[str, Any]:
    """Machine, versions and day."""
    versions = {"gossamer": __version__, "torch": torch.__version__, "scikit-learn": sklearn.__version__}
    known = {"cpu": environment()["cpu"], "python": platform.python_version()}
    return known | {"versions": versions, "date": date.today().isoformat()}


def parse() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS, metavar="SET")
    parser.add_argument("--splits", type=int, default=10, help="how many of the published splits; protein has five")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--out", type=Path, default=Path("results/uci.json"))
    parser.add_argument("--check", action="store_true", help="exit with an error if a bar is missed")
    parser.add_argument("--data-dir", type=Path, help="folder with uci/; without one, $GOSSAMER_DATA, then data/")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
