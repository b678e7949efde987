"""Columns found and columns wrongly taken: the estimators against other ways to select columns, on simulated tables.

    python -m benchmarks.discovery [--tables friedman …] [--selectors …] [--seeds 20] [--out results/discovery.json]

Each seed is a table of its own. The rules of the others are common ones, and fixed: gain above 5 % of the largest,
a permutation importance of at least two standard deviations above zero, nonzero coefficients at the penalty that
cross-validation chooses, and coefficients that are nonzero in 60 % of the halves of stability selection. Results are
written after every table, and an interrupted run goes on where it was; ``make figures`` writes the table of the page.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import sklearn
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.inspection import permutation_importance
from sklearn.linear_model import Lasso, LassoCV, LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.environment import surroundings
from benchmarks.timing import THREAD
from gossamer import data
from gossamer._text.tables import Table
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
from gossamer.files.atomic import json_by_rows, read_json
from gossamer.lab.record import write_atomically

__all__ = ["KIND", "SELECTORS", "TABLES", "SimulatedTable", "discovery_tables"]

KIND = "discovery"
Array = npt.NDArray[Any]


class SimulatedTable(NamedTuple):
    """A table of which the relevant columns are known."""

    x: Array
    y: Array
    relevant: Sequence[int]
    classes: bool = False


def friedman(seed: int) -> SimulatedTable:
    """Friedman (1991): 800 rows, 30 columns, five of them relevant, one about its middle and two by their product."""
    rng = np.random.default_rng(seed)
    x = rng.random((800, 30))
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return SimulatedTable(x, mean + rng.normal(size=800), range(5))


def autoregressive(seed: int) -> SimulatedTable:
    """500 rows, 20 columns in a row, neighbours with correlation 0.9; two of them are relevant, linearly."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, 20))
    for j in range(1, 20):
        x[:, j] = 0.9 * x[:, j - 1] + math.sqrt(1 - 0.9**2) * x[:, j]
    return SimulatedTable(x, x[:, 4] + x[:, 12] + rng.normal(size=500), (4, 12))


def proxies(seed: int) -> SimulatedTable:
    """500 rows, 20 columns, two relevant; columns 1 and 2 are the relevant column 0 with some noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, 20))
    x[:, 1:3] = x[:, :1] + 0.2 * x[:, 1:3]
    return SimulatedTable(x, x[:, 0] + x[:, 3] + rng.normal(size=500), (0, 3))


def simulated_by_sun(name: str, seed: int) -> SimulatedTable:
    """2,000 rows of an example of Sun, Song and Liang (2021): 1,000 or 2,000 columns with pairwise correlation ½."""
    x, y = data.load(name, n_train=2_000, n_test=1, seed=seed).train
    relevant = getattr(data, name).RELEVANT
    return SimulatedTable(x.double().numpy(), y.double().numpy().ravel(), relevant, classes=name == "sun3")


TABLES: dict[str, Callable[[int], SimulatedTable]] = {
    "friedman": friedman,
    "autoregressive": autoregressive,
    "proxies": proxies,
    "sun1": lambda seed: simulated_by_sun("sun1", seed),
    "sun2": lambda seed: simulated_by_sun("sun2", seed),
    "sun3": lambda seed: simulated_by_sun("sun3", seed),
}


class _SelectingClassifier(SparseBayesClassifier):
    def _fit_members(self, *parts: Any) -> None:
        """The networks that predict have no say in what is selected."""


class _SelectingRegressor(SparseBayesRegressor):
    def _fit_members(self, *parts: Any) -> None:
        """As above."""


def sparse_bayes(table: SimulatedTable, seed: int) -> Array:
    """The estimator at its defaults, its first stage alone."""
    model = (_SelectingClassifier if table.classes else _SelectingRegressor)(random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing was selected is counted here
        found: Array = model.fit(table.x, table.y).get_support(indices=True)
    return found


def boosting(table: SimulatedTable, seed: int) -> Any:
    """Gradient boosting at its defaults."""
    model = HistGradientBoostingClassifier if table.classes else HistGradientBoostingRegressor
    return model(random_state=seed, early_stopping=False)


def gain(table: SimulatedTable, seed: int) -> Array:
    """Columns whose splits gain more than 5 % of what those of the best column gain."""
    total = total_gain(boosting(table, seed).fit(table.x, table.y), table.x.shape[1])
    return np.flatnonzero(total > 0.05 * total.max())


def total_gain(model: Any, n_columns: int) -> Array:
    """Sum of the gains of the splits at each column."""
    total = np.zeros(n_columns)
    for trees in model._predictors:
        for tree in trees:
            splits = tree.nodes[tree.nodes["is_leaf"] == 0]
            np.add.at(total, splits["feature_idx"], splits["gain"])
    return total


def permutation(table: SimulatedTable, seed: int) -> Array:
    """Columns of boosting whose permutation costs score on a held-out third: a mean of two standard deviations."""
    parts = train_test_split(table.x, table.y, test_size=1 / 3, random_state=seed)
    model = boosting(table, seed).fit(parts[0], parts[2])
    used = np.flatnonzero(total_gain(model, table.x.shape[1]))  # all others have exactly none
    falls = np.zeros((table.x.shape[1], 10))
    scorer = _Only(model, parts[1], used)
    falls[used] = permutation_importance(scorer, parts[1][:, used], parts[3], n_repeats=10, random_state=seed)[
        "importances"
    ]
    return np.flatnonzero(falls.mean(1) > 2 * falls.std(1))


class _Only:
    """A fitted model as a function of the columns that it uses."""

    def __init__(self, model: Any, x: Array, used: Array) -> None:
        self.model, self.x, self.used = model, x.copy(), used

    def fit(self, x: Array, y: Array) -> None:
        """Fitted already."""

    def score(self, x: Array, y: Array) -> float:
        """Of the model, with the other columns as they were."""
        self.x[:, self.used] = x
        return float(self.model.score(self.x, y))


def lasso(table: SimulatedTable, seed: int) -> Array:
    """Nonzero coefficients at the penalty of five-fold cross-validation."""
    x = StandardScaler().fit_transform(table.x)
    if table.classes:
        penalties = np.logspace(-2.5, -0.5, 8)  # weaker ones keep hundreds of columns of sun3, and take minutes
        model = LogisticRegressionCV(
            Cs=penalties,
            cv=5,
            l1_ratios=(1.0,),
            solver="liblinear",
            scoring="neg_log_loss",
            use_legacy_attributes=False,
        )
        return np.flatnonzero(model.fit(x, table.y).coef_)
    return np.flatnonzero(LassoCV(cv=5, random_state=seed).fit(x, table.y).coef_)


def stability(table: SimulatedTable, seed: int) -> Array:
    """Stability selection (Meinshausen and Bühlmann 2010): nonzero on 60 % of 50 halves, at √(0.8 p) columns a half."""
    rng = np.random.default_rng(seed)
    x, n_wanted = StandardScaler().fit_transform(table.x), round(math.sqrt(0.8 * table.x.shape[1]))
    halves = [rng.permutation(len(x))[: len(x) // 2] for _ in range(50)]
    taken = np.mean([_first_columns(x[half], table.y[half], n_wanted, table.classes) for half in halves], axis=0)
    return np.flatnonzero(taken >= 0.6)


def _first_columns(x: Array, y: Array, n_wanted: int, classes: bool) -> Array:
    """Whether each column is among the first on the path from a large penalty to a small one."""
    largest = np.abs(x.T @ (y - y.mean())).max() / len(y)
    found = np.zeros(x.shape[1], dtype=bool)
    for alpha in largest * 0.8 ** np.arange(1, 40):
        if classes:
            model = LogisticRegression(l1_ratio=1.0, C=1 / (alpha * len(y)), solver="liblinear")
        else:
            model = Lasso(alpha=alpha)
        now = model.fit(x, y).coef_.ravel() != 0
        if (found | now).sum() > n_wanted:
            break
        found |= now
    return found


SELECTORS: dict[str, Callable[[SimulatedTable, int], Array]] = {
    "gossamer": sparse_bayes,
    "boosting, gain": gain,
    "boosting, permutation": permutation,
    "lasso": lasso,
    "stability selection": stability,
}


def measure(table: str, selector: str, seed: int) -> dict[str, Any]:
    """One selector on one table."""
    simulated = TABLES[table](seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        selected = SELECTORS[selector](simulated, seed)
    true = int(np.isin(selected, list(simulated.relevant)).sum())
    return {
        "table": table,
        "selector": selector,
        "seed": seed,
        "columns": simulated.x.shape[1],
        "relevant": len(simulated.relevant),
        "true": true,
        "false": len(selected) - true,
        "cpu_seconds": round(time.process_time() - start, 2),
    }


def discovery_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """True and false columns per table, with standard errors over seeds, by the name of its place in the page.

    Example:
        >>> row = {"table": "friedman", "selector": "lasso", "columns": 30, "relevant": 5, "cpu_seconds": 1.0}
        >>> rows = [row | {"seed": 0, "true": 4, "false": 6}, row | {"seed": 1, "true": 4, "false": 8}]
        >>> discovery_tables({"rows": rows})["discovery"].rows
        [['friedman, 5 of 30', '2', 'lasso', '4.0 ± 0.0', '7.0 ± 1.0', '63 %', '0 of 2', '1.0 s']]
    """
    lines = []
    names = list(dict.fromkeys((row["table"], row["selector"]) for row in content["rows"]))
    for table, selector in sorted(
        names, key=lambda pair: (list(TABLES).index(pair[0]), list(SELECTORS).index(pair[1]))
    ):
        rows = [row for row in content["rows"] if (row["table"], row["selector"]) == (table, selector)]
        rates = [row["false"] / max(1, row["true"] + row["false"]) for row in rows]
        exact = sum(row["true"] == row["relevant"] and row["false"] == 0 for row in rows)
        lines.append(
            [
                f"{table}, {rows[0]['relevant']} of {rows[0]['columns']:,}",
                str(len(rows)),
                selector,
                _mean([row["true"] for row in rows]),
                _mean([row["false"] for row in rows]),
                f"{100 * statistics.mean(rates):.0f} %",
                f"{exact} of {len(rows)}",
                f"{statistics.median(row['cpu_seconds'] for row in rows):.1f} s",
            ]
        )
    head = ["table", "seeds", "selected by", "true", "false", "FDR", "exact", "CPU time"]
    return {"discovery": Table("Discoveries", "", head, lines, 3)}


def _mean(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) / math.sqrt(len(values)):.1f}"


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES), metavar="TABLE")
    parser.add_argument("--selectors", nargs="+", default=list(SELECTORS), choices=list(SELECTORS), metavar="SELECTOR")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("results/discovery.json"))
    options = parser.parse_args()
    known = read_json(options.out, "delete it, or give another --out") or {"rows": []}
    rows = known["rows"]
    done = {(row["table"], row["selector"], row["seed"]) for row in rows}
    for seed in range(options.seeds):
        for table in options.tables:
            for selector in options.selectors:
                if (table, selector, seed) in done:
                    continue
                rows.append(measure(table, selector, seed))
                where = surroundings(THREAD) | {"versions": {"scikit-learn": sklearn.__version__}}
                write_atomically(options.out, json_by_rows({"kind": KIND, "environment": where, "rows": rows}))
                print(*rows[-1].values(), flush=True)
    print(discovery_tables({"rows": rows})["discovery"].to_text())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
