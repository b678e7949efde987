"""The picture of Table 4: the score of every repetition, its mean, the published figure, and exact selections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproductions._drawing import COLOURS, INK, SOFT, draw, tidy
from reproductions._published import EXAMPLES, PUBLISHED
from reproductions._results import Part, Results
from reproductions._selection_tables import Line, lines

__all__ = ["plot"]


def plot(results: Results, path: Path) -> None:
    """A panel an example, of its first form where there are several; a point a repetition."""
    numbers = sorted({part.settings["example"] for part in results.parts})

    def paint(figure: Any) -> None:
        panels = figure.subplots(len(numbers), 1, squeeze=False)[:, 0]
        for axes, number in zip(panels, numbers, strict=True):
            _panel(axes, number, _one_form(_of(results, number)))

    n_lines = sum(len(list(lines(_one_form(_of(results, number))))) for number in numbers)
    draw(path, (8.6, 1.1 * len(numbers) + 0.3 * n_lines), paint)


def _of(results: Results, number: int) -> list[Part]:
    return [part for part in results.parts if part.settings["example"] == number]


def _one_form(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.settings.get("variant") == parts[0].settings.get("variant")]


def _panel(axes: Any, number: int, parts: Sequence[Part]) -> None:
    found = list(lines(parts))
    scale = 100 if EXAMPLES[number].score == "accuracy" else 1
    for place, line in enumerate(found):
        _line(axes, place, line, scale)
    for method in ("DFP", "DPF"):
        value = scale * PUBLISHED[number][method].score
        axes.axvline(value, color=COLOURS[method], lw=1, ls=(0, (4, 3)))
    axes.set_yticks(range(len(found)), [_label(line) for line in found], fontsize=9)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.margins(x=0.04)
    unit = "accuracy, %" if scale == 100 else "mean squared error"
    axes.set_xlabel(f"{unit}, on fresh data (dashed: published)", fontsize=9)
    tidy(axes, f"Example {number}")
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=SOFT, alpha=0.25, lw=0.7)


def _line(axes: Any, place: int, line: Line, scale: float) -> None:
    colour, summary = COLOURS[line.part.settings["method"]], line.summary
    scores = [scale * score for score in summary.scores]
    axes.plot(scores, [place] * len(scores), "o", ms=5, color=colour, alpha=0.4, mec="none")
    mean, error = (scale * value for value in summary.score)
    axes.errorbar(mean, place, xerr=error, fmt="|", ms=13, mew=2, color=INK, lw=1.5)
    exact = f"exact {summary.n_exact}/{line.part.settings['repetitions']}"
    axes.annotate(exact, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9)


def _label(line: Line) -> str:
    return f"{line.part.settings['method']} {'-'.join(map(str, line.part.settings['hidden']))}, {line.label}"
