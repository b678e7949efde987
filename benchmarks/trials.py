"""The table of a comparison that was kept by ``gossamer compare --json``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.tables import MISSING
from gossamer.runs.trials import Trial, Trials
from gossamer.tables import Table

__all__ = ["trials_table"]

# How a metric is headed and written: factor, digits, unit.
METRICS: dict[str, tuple[str, float, int, str]] = {
    "accuracy": ("accuracy", 100, 1, " %"),
    "nll": ("NLL", 1, 3, ""),
    "ece": ("ECE", 1, 3, ""),
    "mutual_information": ("mutual information", 1, 3, ""),
}


def trials_table(trials: Trials) -> Table:
    """A row a method: mean ± standard error over its seeds.

    Example:
        >>> reached = [{"accuracy": 0.90}, {"accuracy": 0.94}]
        >>> seeds = [Trial("SSVI", i, {}, metrics, {"active_parameters": 4224}) for i, metrics in enumerate(reached)]
        >>> trials_table(Trials(seeds, {})).rows[0][:4]
        ['SSVI', '2', '4,224', '92.0 ± 2.0 %']
    """
    rows = [[label, str(len(found)), *_figures(found)] for label, found in trials.by_label().items()]
    head = ["method", "seeds", "active weights", *(title for title, *_ in METRICS.values())]
    return Table("Comparison", "Mean ± standard error over the seeds.", head, rows)


def _figures(found: Sequence[Trial]) -> list[str]:
    if not found:  # it failed with every seed
        return [MISSING] * (1 + len(METRICS))
    active = statistics.fmean(trial.cost["active_parameters"] for trial in found)
    return [f"{active:,.0f}", *(_cell(name, found) for name in METRICS)]


def _cell(name: str, found: Sequence[Trial]) -> str:
    _, scale, digits, unit = METRICS[name]
    values = [scale * trial.metrics[name] for trial in found if name in trial.metrics]
    if not values:
        return MISSING
    if not any(values):  # one network cannot disagree with itself
        return "0"
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}" if values[1:] else ""
    return f"{statistics.fmean(values):.{digits}f}{error}{unit}"
