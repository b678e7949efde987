"""Table 4 from rows of trainings: score, FDR, FNDR, number selected, exact selections, time; and its picture."""

from __future__ import annotations

import importlib
import math
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gossamer._text.tables import Table
from gossamer.metrics import false_discovery_rate, false_non_discovery_rate
from reproductions.baselines import BASELINES
from reproductions.drawing import COLOURS, INK, SOFT, draw, tidy
from reproductions.parts import Part, Row, StoredParts

__all__ = ["EXAMPLES", "SimulatedExample", "best_starts", "first_starts", "lines", "plot", "summarize", "tables"]


class SimulatedExample(NamedTuple):
    """A simulated example: its data set, its networks, how long we train, and what the paper printed of each method."""

    data: str
    score: str
    hidden: Sequence[int]  # the paper's
    wide: Sequence[int]  # ours
    epochs: int
    paper_epochs: int
    published: Mapping[str, Mapping[str, float]]


RECIPE = tomllib.loads(Path(__file__).with_name("em_mcmc_table4.toml").read_text(encoding="utf-8"))
EXAMPLES = {int(number): SimulatedExample(**example) for number, example in RECIPE["examples"].items()}


class SelectionSummary(NamedTuple):
    """Means over repetitions with their standard errors, and how many selections were exact."""

    score: tuple[float, float]
    fdr: tuple[float, float]
    fndr: tuple[float, float]
    n_selected: tuple[float, float]
    n_exact: int
    n_dead: int
    scores: list[float]


class TrainedWay(NamedTuple):
    """One way to train, and its summary."""

    label: str
    part: Part
    summary: SelectionSummary


def tables(results: StoredParts) -> dict[str, Table]:
    """A table for each example, and for each form of the first one."""
    made = {}
    for key in dict.fromkeys(_key(part) for part in results.parts):
        parts = [part for part in results.parts if _key(part) == key]
        made["-".join(key)] = _table(key, parts)
    return made


def lines(parts: Sequence[Part]) -> Iterator[TrainedWay]:
    """The lines of a part: with several starts, one for the first starts and one for the best ones."""
    for part in parts:
        starts = part.settings["starts"]
        if starts > 1:
            yield TrainedWay("one start", part, summarize(part, first_starts))
            yield TrainedWay(f"best of {starts} starts", part, summarize(part, best_starts))
        else:
            training = str(part.settings["training"])
            own = {
                "released": "released settings",
                "tuned": "one start",
                "baseline": BASELINES.get(part.settings["method"], ""),
            }
            yield TrainedWay(own.get(training, training), part, summarize(part, first_starts))


def summarize(part: Part, choose: Callable[[Part], list[Row]]) -> SelectionSummary:
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
    return SelectionSummary(
        _mean([row["score"] for row in rows]),
        _mean([false_discovery_rate(mask, relevant) for mask in masks]),
        _mean([false_non_discovery_rate(mask, relevant) for mask in masks]),
        _mean([float(mask.sum()) for mask in masks]),
        sum(torch.equal(mask, relevant) for mask in masks),
        sum(row.get("dead", False) for row in rows),
        [row["score"] for row in rows],
    )


def first_starts(part: Part) -> list[Row]:
    """The first start of each repetition: what you get from training once."""
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
    score = EXAMPLES[number].score
    repetitions = " or ".join(map(str, sorted({part.settings["repetitions"] for part in parts})))
    source = importlib.import_module(f"gossamer.data.{parts[0].settings['data']}")
    title = f"Example {number}" + (f", form {key[1]}" if len(key) > 1 else "")
    note = (
        f"{source.N_VARIABLES} variables, {len(source.RELEVANT)} of them relevant; {repetitions} repetitions with "
        "fresh data; mean ± standard error. S is the number of variables selected; exact: no more and no less than the "
        "relevant ones; a dead network predicts a constant. Time is that of all repetitions and all starts together."
    )
    # Ke and Fan do not say to which of their two forms the figures belong; the third form is that of Sun et al.
    rows = [] if key[-1] == "sun" else [_published_row(number, name) for name in EXAMPLES[number].published]
    rows += [_row(line, score, source.N_VARIABLES) for line in lines(parts)]
    return Table(title, note, ["method", "network", "training", score, "FDR", "FNDR", "S", "exact", "time"], rows, 3)


def _published_row(number: int, name: str) -> list[str]:
    found, score = EXAMPLES[number].published[name], EXAMPLES[number].score
    value = f"{100 * found['score']:.1f} %" if score == "accuracy" else f"{found['score']:.2f}"
    rates = [_rate(found["fdr"]), _rate(found["fndr"])]
    return [name, "", "published", value, *rates, f"{found['n_selected']:g}", "", ""]


def _row(line: TrainedWay, score: str, n_variables: int) -> list[str]:
    settings, found = line.part.settings, line.summary
    n_outputs = 2 if score == "accuracy" else 1
    network = "-".join(map(str, [n_variables, *settings["hidden"], n_outputs])) if "hidden" in settings else ""
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
        f"{found.n_exact} of {settings['repetitions']}" + (f", {found.n_dead} dead" if found.n_dead else ""),
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


def plot(results: StoredParts, path: Path) -> None:
    """One panel per example (its first form, where there are several), one point per repetition."""
    numbers = sorted({part.settings["example"] for part in results.parts})

    def paint(figure: Any) -> None:
        panels = figure.subplots(len(numbers), 1, squeeze=False)[:, 0]
        for axes, number in zip(panels, numbers, strict=True):
            _panel(axes, number, _one_form(_of(results, number)))

    n_lines = sum(len(list(lines(_one_form(_of(results, number))))) for number in numbers)
    draw(path, (8.6, 1.1 * len(numbers) + 0.3 * n_lines), paint)


def _of(results: StoredParts, number: int) -> list[Part]:
    return [part for part in results.parts if part.settings["example"] == number]


def _one_form(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.settings.get("variant") == parts[0].settings.get("variant")]


def _panel(axes: Any, number: int, parts: Sequence[Part]) -> None:
    found = list(lines(parts))
    scale = 100 if EXAMPLES[number].score == "accuracy" else 1
    for place, line in enumerate(found):
        _draw_line(axes, place, line, scale)
    trained, published = {part.settings["method"] for part in parts}, EXAMPLES[number].published
    for method in [method for method in published if method in trained]:
        value = scale * published[method]["score"]
        axes.axvline(value, color=COLOURS[method], lw=1, ls=(0, (4, 3)))
    axes.set_yticks(range(len(found)), [_picture_label(line) for line in found], fontsize=9)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.margins(x=0.04)
    unit = "accuracy, %" if scale == 100 else "mean squared error"
    axes.set_xlabel(f"{unit}, on fresh data (dashed: published)", fontsize=9)
    tidy(axes, f"Example {number}")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=SOFT, alpha=0.25, lw=0.7)


def _draw_line(axes: Any, place: int, line: TrainedWay, scale: float) -> None:
    colour, summary = COLOURS.get(line.part.settings["method"], SOFT), line.summary
    scores = [scale * score for score in summary.scores]
    axes.plot(scores, [place] * len(scores), "o", ms=5, color=colour, alpha=0.4, mec="none")
    mean, error = (scale * value for value in summary.score)
    axes.errorbar(mean, place, xerr=error, fmt="|", ms=13, mew=2, color=INK, lw=1.5)
    exact = f"exact {summary.n_exact}/{line.part.settings['repetitions']}"
    axes.annotate(exact, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9)


def _picture_label(line: TrainedWay) -> str:
    hidden = "-".join(map(str, line.part.settings.get("hidden", [])))
    return f"{line.part.settings['method']} {hidden}, {line.label}".replace(" ,", ",")
