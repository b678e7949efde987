"""Which method to use, from the measured costs and log losses of a comparison of all of them.

A rule allows the methods whose costs are at most some multiples of those of the plain network; of these the one with
the lowest log loss is chosen, and those that are as good within two standard errors of the difference are named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.tables import MISSING
from benchmarks.trials import Trials
from gossamer._text.terminal import Table
from gossamer.lab.runs.comparison import Comparison, Entry, mean_and_error
from gossamer.metrics.registry import METRICS

__all__ = ["RULES", "choice_tables"]

FILES = "all-methods-"  # how the names of these comparisons begin
PLAIN = "sgd"  # what all costs are compared with
NEEDED = ("training_macs", "parameter_bytes", "prediction_seconds")
MOST_NAMED = 4
STDS = 2.0
MOST_SPREAD = 0.1  # of the mean, as standard error: beyond it a method is not known to be as good as another


class Rule(NamedTuple):
    """A wish in words, and the largest cost that it allows, in multiples of the plain network's."""

    words: str
    most: Mapping[str, float]


RULES = (
    Rule("the lowest log loss, whatever it costs", {}),
    Rule("no more operations in training than SGD", {"training_macs": 1.0}),
    Rule("at most half the operations in training", {"training_macs": 0.5}),
    Rule("no larger than SGD's network", {"parameter_bytes": 1.0}),
    Rule("at most a fifth of its size", {"parameter_bytes": 0.2}),
    Rule("predicts within twice the time of SGD's network", {"prediction_seconds": 2.0}),
)


def choice_tables(name: str, trials: Trials) -> dict[str, Table]:
    """Quality and cost as ``gossamer compare`` prints them, and a choice for each rule; none for other comparisons."""
    if not name.startswith(FILES):
        return {}
    entries = [
        Entry(
            label, [{"metrics": trial.metrics, "cost": trial.cost} for trial in found], trials.failures.get(label, "")
        )
        for label, found in trials.by_label().items()
    ]
    known = [entry for entry in entries if all(mean_and_error(entry.results, name) for name in (*NEEDED, "nll"))]
    plain = next(entry for entry in known if entry.label == PLAIN)
    head = ["what matters", "method", "as good", "NLL", *(f"{METRICS[cost].heading}, × SGD" for cost in NEEDED)]
    rows = [_row(rule, known, plain) for rule in RULES]
    note = "The lowest mean log loss among the methods that the rule allows."
    return {
        name: Comparison(entries, []).to_table(),
        f"{name}-choices": Table("Which method", note, head, [row for row in rows if row], n_labels=3),
    }


def _row(rule: Rule, entries: Sequence[Entry], plain: Entry) -> list[str]:
    allowed = [
        entry for entry in entries if all(_ratio(entry, plain, cost) <= most for cost, most in rule.most.items())
    ]
    if not allowed:
        return []
    first, *others = sorted(allowed, key=lambda entry: _mean(entry, "nll"))
    best, error = _mean(first, "nll")
    gaps = [(entry.label, *_mean(entry, "nll")) for entry in others]
    equal = [
        label
        for label, mean, own in gaps
        if mean - best <= STDS * math.hypot(error, own) and own < MOST_SPREAD * abs(mean)
    ]
    more = len(equal) - MOST_NAMED
    named = ", ".join(equal[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    costs = [f"{_ratio(first, plain, cost):.2f}" for cost in NEEDED]
    return [rule.words, first.label, named or MISSING, METRICS["nll"].text(best, error or None), *costs]


def _mean(entry: Entry, name: str) -> tuple[float, float]:
    """Mean and standard error of a metric or cost that the entry has."""
    found = mean_and_error(entry.results, name)
    assert found is not None  # the caller has looked
    return found[0], found[1] or 0.0


def _ratio(entry: Entry, plain: Entry, cost: str) -> float:
    return _mean(entry, cost)[0] / _mean(plain, cost)[0]
