"""What all pictures share: colours, panels without clutter, files that are the same for the same results."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer.files.atomic import unwritable
from gossamer.lab.record import RecordError

__all__ = ["COLOURS", "INK", "PALETTE", "SOFT", "draw", "tidy"]

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = {"DFP": "#0072B2", "DPF": "#D55E00", "SPLBNN": "#009E73", "SVBNN": "#CC79A7"}
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
INK, SOFT = "#24292f", "#8c959f"


def draw(path: Path, size: tuple[float, float], paint: Callable[[Any], None]) -> None:
    """Write the figure that ``paint`` fills; the suffix chooses the format."""
    if importlib.util.find_spec("matplotlib") is None:
        raise RecordError("the picture needs matplotlib: pip install matplotlib, then run the command again")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    colours = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    style: dict[Any, Any] = {"font.size": 10, "axes.edgecolor": SOFT, "svg.hashsalt": "reproduce", **colours}
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        try:
            figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise unwritable(path, error) from error


def tidy(axes: Any, title: str) -> None:
    """A title to the left, faint lines behind the data, no box."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="y", color=SOFT, alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
