"""The tables of docs/uci.md and the bars of the regressor, from the cells that uci.py measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gossamer._text.terminal import Table
from gossamer.data import uci

__all__ = ["BEFORE", "GP", "KIND", "OURS", "PUBLISHED", "SETS", "Bar", "bars", "mean_ranks", "uci_tables"]

KIND = "uci"
OURS, BEFORE, GP = "SparseBayesRegressor", "its former default: one network", "Gaussian process"
SETS = ["yacht", "boston", "energy", "concrete", "wine-red", "kin8nm", "power", "naval", "protein"]
METRICS = {
    "nll": "NLL",
    "nll_succession": "NLL, all by the rule of succession",
    "rmse": "RMSE",
    "crps": "CRPS",
    "coverage": "coverage of 90 % intervals",
    "seconds": "CPU seconds",
}
LOWER = ("nll", "nll_succession", "rmse", "crps")  # is better
# Table 1 of Lakshminarayanan et al. (2017): means over 20 splits (protein: 5), in the order of SETS. Its ± is left out,
# since it is a standard error for PBP and a standard deviation for the other two.
ENSEMBLES = "published: deep ensembles"
PUBLISHED: dict[str, dict[str, Sequence[float]]] = {
    "published: PBP": {
        "rmse": (1.02, 3.01, 1.80, 5.67, 0.64, 0.10, 4.12, 0.01, 4.73),
        "nll": (1.63, 2.57, 2.04, 3.16, 0.97, -0.90, 2.84, -3.73, 2.97),
    },
    "published: MC dropout": {
        "rmse": (1.11, 2.97, 1.66, 5.23, 0.62, 0.10, 4.02, 0.01, 4.36),
        "nll": (1.55, 2.46, 1.99, 3.04, 0.93, -0.95, 2.80, -3.80, 2.89),
    },
    ENSEMBLES: {
        "rmse": (1.58, 3.28, 2.09, 6.03, 0.64, 0.09, 4.11, 0.00, 4.71),
        "nll": (1.18, 2.41, 1.38, 3.06, 0.94, -1.20, 2.79, -5.63, 2.83),
    },
}
COVERAGE, N_ABOVE_ENSEMBLES = (0.87, 0.95), 6

Cells = Sequence[Mapping[str, Any]]
Scores = Mapping[str, Mapping[str, float]]  # of each method, on each set


class Bar(NamedTuple):
    """What the regressor must reach, what it reached, and whether that is enough."""

    what: str
    must: str
    found: str
    met: bool


def uci_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """A table for each metric, the sets and the bars, by the names of their places in the page.

    Example:
        >>> cell = {"set": "yacht", "split": 0, "method": "BayesianRidge", "n_train": 277, "nll": 3.64}
        >>> uci_tables({"cells": [cell, cell | {"split": 1, "nll": 3.6}]})["uci-nll"].rows[0]
        ['BayesianRidge', '4.00', '**3.62 ± 0.02**']
    """
    cells = comparable(content["cells"])
    return {f"uci-{metric}": _metric(cells, metric) for metric in METRICS} | {
        "uci-sets": _sets(cells),
        "uci-bars": _bars(cells),
    }


def bars(cells: Cells) -> list[Bar]:
    """The bars, for the sets on which the regressor was measured; none before it and its old default were."""
    cells = comparable(cells)
    nll = scores(cells, "nll")
    if not {OURS, BEFORE} <= nll.keys():
        return []
    ours, ranks = nll[OURS], mean_ranks(_on(nll, _measured(cells)))
    coverage = scores(cells, "coverage")[OURS]
    everywhere = {method: rank for method, rank in ranks.items() if set(nll[method]) >= set(ours)}
    first, second = sorted(everywhere, key=everywhere.__getitem__)[:2]
    better = sum(ours[name] < nll[BEFORE].get(name, -math.inf) for name in ours)
    above = sum(ours[name] < nll[ENSEMBLES][name] for name in ours)
    covered = sum(COVERAGE[0] <= value <= COVERAGE[1] for value in coverage.values())
    spread = f"{min(coverage.values()):.3f} to {max(coverage.values()):.3f}"
    n, low_high = len(ours), f"{COVERAGE[0]} to {COVERAGE[1]}"
    return [
        Bar(f"NLL below that of {BEFORE}", f"{n} of {n} sets", f"{better} of {n}", better == n),
        Bar(
            f"NLL below that of {ENSEMBLES}",
            f"{N_ABOVE_ENSEMBLES} of {len(SETS)} sets",
            f"{above} of {n}",
            above >= N_ABOVE_ENSEMBLES,
        ),
        Bar(f"coverage from {low_high}", f"{n} of {n} sets", f"{covered} of {n}: {spread}", covered == n),
        Bar(
            "mean rank in NLL among methods that ran on every set",
            "first",
            "; ".join(f"{method} {everywhere[method]:.2f}" for method in dict.fromkeys([first, second, OURS])),
            first == OURS,
        ),
    ]


def comparable(cells: Cells) -> Cells:
    """The cells of splits on which the regressor ran: splits differ more than methods do."""
    ours = {(cell["set"], cell["split"]) for cell in cells if cell["method"] == OURS}
    sets = {name for name, _ in ours}
    return [cell for cell in cells if cell["set"] not in sets or (cell["set"], cell["split"]) in ours]


def scores(cells: Cells, metric: str) -> dict[str, dict[str, float]]:
    """Means over splits, with the published ones."""
    found: dict[str, dict[str, float]] = {}
    for (method, name), values in _values(cells, metric).items():
        found.setdefault(method, {})[name] = statistics.mean(values)
    for method, published in PUBLISHED.items():
        if metric in published:
            found[method] = dict(zip(SETS, published[metric], strict=True))
    return found


def mean_ranks(found: Scores) -> dict[str, float]:
    """Mean over the sets of the rank of each method, 1 for the lowest score; a method is ranked only where it ran.

    Example:
        >>> mean_ranks({"a": {"x": 1.0, "y": 5.0}, "b": {"x": 2.0, "y": 4.0}, "c": {"y": 3.0}})
        {'a': 2.0, 'b': 2.0, 'c': 1.0}
    """

    def rank(method: str, name: str) -> int:
        return 1 + sum(other[name] < found[method][name] for other in found.values() if name in other)

    return {method: statistics.fmean(rank(method, name) for name in found[method]) for method in found}


def _values(cells: Cells, metric: str) -> dict[tuple[str, str], list[float]]:
    """The values of the splits, by method and set."""
    values: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        if metric in cell:
            values.setdefault((cell["method"], cell["set"]), []).append(cell[metric])
    return values


def _metric(cells: Cells, metric: str) -> Table:
    """Mean ± standard error over splits, and for the NLL the mean rank; bold is the best that was measured on a set."""
    values, sets = _values(cells, metric), _measured(cells)
    means = _on(scores(cells, metric), sets)
    best = {
        name: min((means[method][name] for method, other in values if other == name), default=None) for name in sets
    }

    def cell(method: str, name: str) -> str:
        text = _text(values.get((method, name)), means[method].get(name))
        return f"**{text}**" if metric in LOWER and means[method].get(name) == best[name] else text

    rows = [[method, *(cell(method, name) for name in sets)] for method in means]
    if not metric.startswith("nll"):
        return Table(METRICS[metric], "", [METRICS[metric], *sets], rows)
    ranks = mean_ranks(means)
    rows = [[row[0], f"{ranks[row[0]]:.2f}", *row[1:]] for row in rows]  # where nobody has to scroll for it
    return Table(METRICS[metric], "", [METRICS[metric], "mean rank", *sets], rows)


def _on(found: Scores, sets: Sequence[str]) -> dict[str, dict[str, float]]:
    """The scores on some sets, in their order."""
    return {method: {name: of[name] for name in sets if name in of} for method, of in found.items()}


def _text(values: Sequence[float] | None, mean: float | None) -> str:
    """Mean ± standard error with two decimals, or as many as the error needs; a published mean as it was printed."""
    if values is None:
        return "–" if mean is None else f"{mean:.2f}"
    if len(values) < 2:
        return f"{values[0]:#.3g}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    digits = max(2, math.ceil(-math.log10(error))) if error > 0 else 2
    return f"{statistics.mean(values):.{digits}f} ± {error:.{digits}f}"


def _measured(cells: Cells) -> list[str]:
    names = {cell["set"] for cell in cells}
    return [name for name in SETS if name in names]


def _sets(cells: Cells) -> Table:
    """Sizes, and how many splits each method ran on where they differ."""
    rows = []
    for name in _measured(cells):
        n_rows, n_columns = uci.SETS[name].shape
        counts = [len(values) for (_, other), values in _values(cells, "nll").items() if other == name]
        splits = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{max(counts)}"
        rows.append([name, f"{n_rows:,}", f"{n_columns - 1}", splits])
    return Table("Sets", "", ["set", "rows", "columns", "splits"], rows)


def _bars(cells: Cells) -> Table:
    rows = [[bar.what, bar.must, bar.found, "yes" if bar.met else "no"] for bar in bars(cells)]
    return Table("Bars", "", ["bar", "must be", "found", "met"], rows, 4)
