"""The same table by the command and by an estimator: ``python -m benchmarks.doors`` writes ``results/doors.json``.

Each of five times the rows are shuffled, which is another split, and both train on the same rows from the same seed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes

from benchmarks.environment import surroundings
from benchmarks.pages import STUDY
from benchmarks.timing import THREAD
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
from gossamer.files.atomic import json_by_rows
from gossamer.lab import Settings, load_run, train
from gossamer.lab.record import write_atomically
from gossamer.types import Task

SPLITS = 5


def patients() -> tuple[pd.DataFrame, str]:
    """Those of the README."""
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    return x.assign(progression=y), "progression"


def houses() -> tuple[pd.DataFrame, str]:
    """Those of the guide to own data: a gap and a category."""
    rng = np.random.default_rng(0)
    age, rooms, town = rng.uniform(0, 90, 600), rng.integers(1, 7, 600), rng.choice(["Bonn", "Kiel", "Ulm"], 600)
    price = 50 * rooms + 40 * (town == "Ulm") - 0.5 * age + rng.normal(0, 10, 600)
    age[::20] = np.nan
    return pd.DataFrame({"age": age, "town": town, "rooms": rooms, "price": price}), "price"


def churn() -> tuple[pd.DataFrame, str]:
    """Customers, of whom one in eight leaves; two columns say nothing."""
    rng = np.random.default_rng(1)
    months, calls, plan = rng.integers(1, 72, 2000), rng.poisson(1.2, 2000), rng.choice(["basic", "plus"], 2000)
    score = 0.55 * calls + 0.9 * (plan == "basic") - 0.03 * months - 1.9
    left = np.where(rng.uniform(size=2000) < 1 / (1 + np.exp(-score)), "yes", "no")
    others = {"bill": rng.gamma(6, 8, 2000), "age": rng.integers(18, 90, 2000)}
    return pd.DataFrame({"months": months, "calls": calls, "plan": plan, **others, "left": left}), "left"


def tumours() -> tuple[pd.DataFrame, str]:
    """Breast cancer in Wisconsin."""
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return x.assign(benign=np.where(y == 1, "yes", "no")), "benign"


def main() -> None:
    """Train, and write the table."""
    torch.set_num_threads(1)
    tables: list[Callable[[], tuple[pd.DataFrame, str]]] = [patients, houses, churn, tumours]
    rows = [row for table in tables for row in _rows(table)]
    head = ["table", "door", "NLL", "held by 90 % intervals", "accuracy", "largest class"]
    content: dict[str, Any] = {
        "format": 1,
        "kind": STUDY,
        "environment": {**surroundings(THREAD), "date": str(date.today())},
    }
    content["tables"] = {"doors": {"head": head, "rows": rows, "n_labels": 2}}
    write_atomically(Path("results/doors.json"), json_by_rows(content))


def _rows(table: Callable[[], tuple[pd.DataFrame, str]]) -> list[list[str]]:
    frame, target = table()
    found: dict[str, list[dict[str, float]]] = {"command": [], "estimator": []}
    for seed in range(SPLITS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            frame.sample(frac=1, random_state=seed).to_csv(folder / f"{table.__name__}.csv", index=False)
            settings = Settings("ssvi", str(folder / f"{table.__name__}.csv"), target=target, seed=seed, device="cpu")
            run = train(settings, folder / "run", quiet=True)
            task = load_run(run.folder, device="cpu").task
            found["command"].append((run.result() or {})["metrics"])
            found["estimator"].append(_by_estimator(task, seed))
        print(table.__name__, seed, [one[-1]["nll"] for one in found.values()], file=sys.stderr, flush=True)
    largest = "-" if task.has_numbers else f"{100 * frame[target].value_counts(normalize=True).max():.1f} %"
    return [
        [
            table.__name__,
            door,
            _mean(some, "nll", 1, 3),
            _mean(some, "coverage90", 100, 1),
            _mean(some, "accuracy", 100, 1),
            largest,
        ]
        for door, some in found.items()
    ]


def _by_estimator(task: Task, seed: int) -> dict[str, float]:
    (x, y), (x_test, y_test) = task.train, task.test
    if task.has_numbers:
        model = SparseBayesRegressor(random_state=seed).fit(x.numpy(), y.numpy().ravel())
        low, high = model.predict_interval(x_test.numpy())
        truth = y_test.numpy().ravel()
        nll = np.log(task.target_std) - model.predict_log_density(x_test.numpy(), truth).mean()
        return {"nll": float(nll), "coverage90": float(((low <= truth) & (truth <= high)).mean())}
    probs = SparseBayesClassifier(random_state=seed).fit(x.numpy(), y.numpy()).predict_proba(x_test.numpy())
    truth = y_test.numpy()
    nll = -np.log(probs[np.arange(len(truth)), truth]).mean()
    return {"nll": float(nll), "accuracy": float((probs.argmax(1) == truth).mean())}


def _mean(some: list[dict[str, float]], key: str, factor: float, digits: int) -> str:
    """Mean and standard error over the splits."""
    values = [factor * one[key] for one in some if key in one]
    if not values:
        return "-"
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.{digits}f} ± {error:.{digits}f}" + (" %" if factor == 100 else "")


if __name__ == "__main__":
    main()
