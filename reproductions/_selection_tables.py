"""Rows of trainings -> the tables of an example: score, FDR, FNDR, number selected, exact selections, time."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from gossamer.metrics import false_discovery_rate, false_non_discovery_rate
from gossamer.tables import Table
from reproductions._published import EXAMPLES, PUBLISHED
from reproductions._results import Part, Results, Row

__all__ = ["Summary", "lines", "summarize", "tables"]


class Summary(NamedTuple):
    """Means over repetitions with their standard errors, and how many selections were exact."""

    score: tuple[float, float]
    fdr: tuple[float, float]
    fndr: tuple[float, float]
    n_selected: tuple[float, float]
    n_exact: int
    scores: list[float]


class Line(NamedTuple):
    """One way to train, and what came of it."""

    label: str
    part: Part
    summary: Summary


def tables(results: Results) -> dict[str, Table]:
    """A table for each example and, of the first one, for each of its forms."""
    made = {}
    for key in dict.fromkeys(_key(part) for part in results.parts):
        parts = [part for part in results.parts if _key(part) == key]
        made["-".join(key)] = _table(key, parts)
    return made


def lines(parts: Sequence[Part]) -> Iterator[Line]:
    """What a part says: where it has several starts, of the first ones and of the best ones."""
    for part in parts:
        starts = part.settings["starts"]
        if starts > 1:
            yield Line("one start", part, summarize(part, first_starts))
            yield Line(f"best of {starts} starts", part, summarize(part, best_starts))
        else:
            released = part.settings["training"] == "released"
            yield Line("released settings" if released else "one start", part, summarize(part, first_starts))


def summarize(part: Part, choose: Callable[[Part], list[Row]]) -> Summary:
    """Means, standard errors and exact selections over the repetitions, each with the start that ``choose`` takes."""
    source = importlib.import_module(f"gossamer.data.{part.settings['data']}")
    relevant = torch.zeros(source.N_VARIABLES, dtype=torch.bool)
    relevant[list(source.RELEVANT)] = True
    rows = choose(part)
    masks = []
    for row in rows:
        mask = torch.zeros_like(relevant)
        mask[row["selected"]] = True
        masks.append(mask)
    return Summary(
        _mean([row["score"] for row in rows]),
        _mean([false_discovery_rate(mask, relevant) for mask in masks]),
        _mean([false_non_discovery_rate(mask, relevant) for mask in masks]),
        _mean([float(mask.sum()) for mask in masks]),
        sum(torch.equal(mask, relevant) for mask in masks),
        [row["score"] for row in rows],
    )


def first_starts(part: Part) -> list[Row]:
    """The first start of each repetition: what who trains once gets."""
    return [row for row in part.rows if row["start"] == 0]


def best_starts(part: Part) -> list[Row]:
    """The start with the lowest loss on its own training data, of each repetition."""
    by_repetition: dict[int, list[Row]] = {}
    for row in part.rows:
        by_repetition.setdefault(row["repetition"], []).append(row)
    return [min(rows, key=lambda row: row["train_nll"]) for rows in by_repetition.values()]


def _key(part: Part) -> tuple[str, ...]:
    variant = part.settings.get("variant")
    return (f"example{part.settings['example']}", *([variant] if variant else []))


def _table(key: tuple[str, ...], parts: Sequence[Part]) -> Table:
    number = parts[0].settings["example"]
    score, repetitions = EXAMPLES[number].score, parts[0].settings["repetitions"]
    source = importlib.import_module(f"gossamer.data.{parts[0].settings['data']}")
    title = f"Example {number}" + (f", form {key[1]}" if len(key) > 1 else "")
    note = (
        f"{source.N_VARIABLES} variables, {len(source.RELEVANT)} of them relevant; {repetitions} repetitions with "
        "fresh data; mean ± standard error. S is the number of variables selected; exact: no more and no less than the "
        "relevant ones. Time is that of all repetitions and all starts together."
    )
    # Which of their two forms the figures of Ke and Fan belong to is not said; the third is that of Sun et al.
    rows = [] if key[-1] == "sun" else [_published_row(number, name) for name in PUBLISHED[number]]
    rows += [_row(line, score, source.N_VARIABLES) for line in lines(parts)]
    return Table(title, note, ["method", "network", "training", score, "FDR", "FNDR", "S", "exact", "time"], rows, 3)


def _published_row(number: int, name: str) -> list[str]:
    found, score = PUBLISHED[number][name], EXAMPLES[number].score
    value = f"{100 * found.score:.1f} %" if score == "accuracy" else f"{found.score:.2f}"
    return [name, "", "published", value, _rate(found.fdr), _rate(found.fndr), f"{found.n_selected:g}", "", ""]


def _row(line: Line, score: str, n_variables: int) -> list[str]:
    settings, found = line.part.settings, line.summary
    n_outputs = 2 if score == "accuracy" else 1
    network = "-".join(map(str, [n_variables, *settings["hidden"], n_outputs]))
    scale, unit = (100, " %") if score == "accuracy" else (1, "")
    value, error = (scale * number for number in found.score)
    digits = 1 if score == "accuracy" else 2
    return [
        settings["method"],
        network,
        line.label,
        f"{value:.{digits}f} ± {error:.{digits}f}{unit}",
        *(_rate(*rate) for rate in (found.fdr, found.fndr)),
        f"{found.n_selected[0]:.1f} ± {found.n_selected[1]:.1f}",
        f"{found.n_exact} of {settings['repetitions']}",
        _minutes(line.part.seconds),
    ]


def _rate(rate: float, error: float | None = None) -> str:
    if rate == 0:
        return "0"
    return f"{100 * rate:.3g}" + (f" ± {100 * error:.2g} %" if error is not None else " %")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _mean(values: Sequence[float]) -> tuple[float, float]:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.fmean(values), error
