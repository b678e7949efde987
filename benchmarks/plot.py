"""One picture: how many times faster than dense LRT, against the density, by family of layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.layers import FORWARD, TRAINING
from benchmarks.measurements import PLAIN, Measurements, Timing, density_of
from gossamer.files.atomic import unwritable

__all__ = ["plot"]

BATCH = 32
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, SOFT = "#24292f", "#8c959f"


def plot(results: Measurements, path: Path) -> None:
    """Write a picture (``.svg``, ``.png`` or ``.pdf``) of the layers at batch 32.

    A thin line is a layer, a thick one the geometric mean of its family; the grey band holds the deterministic layers.
    """
    rows = [row for row in results.layers if row.batch == BATCH] or results.layers
    densities = sorted({density_of(way) for row in rows for way in row.ms if way.startswith("sparse")})
    works = [work for work in (FORWARD, TRAINING) if any(row.work == work for row in rows)]
    if not works:
        raise ValueError("a plot needs layers: measure them, without --only or with --only layers")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.edgecolor": SOFT,
        "text.color": INK,
        "axes.labelcolor": INK,
        "svg.hashsalt": "bench",
    }
    with mpl.rc_context(style | {"xtick.color": INK, "ytick.color": INK}):
        figure = Figure(figsize=(5.4 * len(works), 4.6), layout="constrained")
        panels: Any = figure.subplots(1, len(works), sharey=True, squeeze=False)[0]
        for axes, work in zip(panels, works, strict=True):
            _panel(axes, [row for row in rows if row.work == work], densities, f"{work}, batch {rows[0].batch}")
        for axes in panels:  # after all lines are drawn, because the panels share their scale
            _scales(axes, densities)
        panels[0].set_ylabel("times faster than dense LRT")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
        try:
            figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise unwritable(path, error) from error


def _panel(axes: Any, rows: Sequence[Timing], densities: Sequence[float], title: str) -> None:
    families = list(dict.fromkeys(row.family for row in rows))
    plain = [row.speedup(PLAIN).median for row in rows if PLAIN in row.ms]
    if plain:
        axes.axhspan(min(plain), max(plain), color=SOFT, alpha=0.22, lw=0, label="deterministic layers")
    axes.axhline(1, color=INK, lw=1, ls=(0, (4, 3)))
    axes.annotate("dense LRT", (densities[-1], 1), (0, -12), textcoords="offset points", ha="right", fontsize=9)
    for family, colour in zip(families, COLOURS, strict=False):
        lines = [_line(row) for row in rows if row.family == family]
        for line in lines[: len(lines) if len(lines) > 1 else 0]:
            axes.plot(list(line), list(line.values()), color=colour, lw=0.9, alpha=0.45)
        mean = {d: geometric_mean(line[d] for line in lines) for d in densities if all(d in line for line in lines)}
        axes.plot(list(mean), list(mean.values()), color=colour, lw=2.4, marker="o", ms=5, label=family)
    axes.set_title(title, loc="left", fontsize=11)


def _scales(axes: Any, densities: Sequence[float]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="active weights")
    axes.autoscale(axis="y")
    axes.set_xticks(densities, [f"{100 * density:g} %" for density in densities], minor=False)
    low, high = min(0.8, axes.get_ylim()[0]), axes.get_ylim()[1]
    axes.set_ylim(low, high)
    ticks = [tick for tick in (0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50) if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y", color=SOFT, alpha=0.25, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def _line(row: Timing) -> dict[float, float]:
    """Speed-up by density, the least dense first."""
    ways = sorted((way for way in row.ms if way.startswith("sparse")), key=density_of)
    return {density_of(way): row.speedup(way).median for way in ways}
