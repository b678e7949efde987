"""Pictures of results whose rows are points of lines, or values by severity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer._text.formats import macs, percent
from gossamer.metrics import METRICS
from reproductions.drawing import PALETTE, draw, tidy
from reproductions.frame import Kept, Result, mean_error

__all__ = ["plot_lines", "plot_points", "plot_rows"]

Plot = Callable[[Result, Kept, Path], None]


def plot_lines(label: str, metric: str = "accuracy", *, log: bool = True) -> Plot:
    """A picture with the rows of each ``line`` at their places: mean and standard error."""

    def plot(result: Result, kept: Kept, path: Path) -> None:
        def paint(figure: Any) -> None:
            axes = figure.subplots()
            lines, shown = list(dict.fromkeys(row.line for row in result.rows)), set[float]()
            for number, line in enumerate(lines):
                rows = [row for row in result.rows if row.line == line and kept.values(row.label, metric)]
                found = [mean_error(kept.values(row.label, metric)) for row in rows]
                means, errors = [100 * mean for mean, _ in found], [100 * (error or 0) for _, error in found]
                colour = PALETTE[number % len(PALETTE)]
                places = [row.at for row in rows]
                width = 1 + 0.4 * (len(lines) - number)  # lines that lie on top of each other are all seen
                axes.errorbar(
                    places, means, errors, label=line, color=colour, marker="o", ms=4 + width, lw=width, elinewidth=1
                )
                shown.update(places)
            if log:
                axes.set_xscale("log")
                axes.set_xticks(sorted(shown), [f"{at:g}" for at in sorted(shown)])
                axes.minorticks_off()
            axes.set_xlabel(label)
            axes.legend(frameon=False, fontsize=8)
            tidy(axes, f"{METRICS[metric].heading}, %{_small(kept)}")

        draw(path, (6.4, 3.8), paint)

    return plot


def plot_points(x: str, y: str, groups: Sequence[str]) -> Plot:
    """A panel for each group of rows (the start of their labels): two metrics against each other."""

    def plot(result: Result, kept: Kept, path: Path) -> None:
        def paint(figure: Any) -> None:
            from matplotlib.ticker import LogLocator

            for axes, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
                rows = [row for row in result.rows if row.label.startswith(f"{group}:") and kept.values(row.label, x)]
                for number, row in enumerate(rows):
                    at = mean_error(kept.values(row.label, x))[0]
                    mean, error = mean_error(kept.values(row.label, y))
                    style = {"color": PALETTE[number % len(PALETTE)], "marker": "os"[number // len(PALETTE)], "ls": ""}
                    name = row.label.removeprefix(f"{group}: ")
                    axes.errorbar(at, 100 * mean, 100 * (error or 0), label=name, ms=5, **style)
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
                axes.xaxis.set_major_formatter(lambda value, _: macs(value))
                axes.minorticks_off()
                axes.set_xlabel("multiply-adds of the training")
                tidy(axes, f"{group}: {METRICS[y].heading}, %{_small(kept)}")
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)

        draw(path, (10.5, 3.8), paint)

    return plot


def plot_rows(groups: Mapping[str, str]) -> Plot:
    """A panel for each group of rows (the start of their labels) with a metric of each: mean and standard error."""

    def plot(result: Result, kept: Kept, path: Path) -> None:
        known = {metric.name: metric for metric in result.metrics}
        shown = {
            group: [row for row in result.rows if row.label.startswith(f"{group}: ") and kept.values(row.label, name)]
            for group, name in groups.items()
        }
        panels = {group: rows for group, rows in shown.items() if rows}

        def paint(figure: Any) -> None:
            for axes, (group, rows) in zip(
                figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
            ):
                name = groups[group]
                is_share = known[name].format is percent
                scale = 100 if is_share else 1
                for place, row in enumerate(rows):
                    mean, error = mean_error(kept.values(row.label, name))
                    axes.errorbar(scale * mean, place, xerr=scale * (error or 0), fmt="o", ms=5, color=PALETTE[0])
                    if name in row.printed:
                        printed = float(row.printed[name].rstrip(" %"))
                        axes.plot([printed, printed], [place - 0.35, place + 0.35], color=PALETTE[1], lw=2)
                axes.set_yticks(range(len(rows)), [row.label.partition(": ")[2] for row in rows], fontsize=8)
                axes.invert_yaxis()
                if any(name in row.printed for row in rows):
                    axes.set_xlabel("orange: the paper", color=PALETTE[1])
                tidy(axes, f"{group}: {known[name].heading}{', %' if is_share else ''}{_small(kept)}")

        draw(path, (max(5.0, 3.8 * len(panels)), 1.2 + 0.25 * max(map(len, panels.values()))), paint)

    return plot


def _small(kept: Kept) -> str:
    return ", small" if kept.small else ""
