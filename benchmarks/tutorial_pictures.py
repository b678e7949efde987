"""The pictures of the tutorials, drawn from what the code of their pages computes.

    python -m benchmarks.tutorial_pictures docs

Runs the Python blocks of ``tutorials/images.md`` and ``tutorials/table.md`` and the recipe of ``tutorials/paper.md`` in
an empty folder, then writes ``images/tutorial-*.svg`` and ``tutorials/paper.tex``.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.estimators import ImportanceDisplay, IntervalDisplay
from gossamer.lab.cli import main as gossamer
from reproductions.drawing import INK, SOFT, draw, tidy

BLUE, ORANGE = "#0072B2", "#D55E00"
PANELS = {"nll": "NLL", "ece": "ECE", "auroc@uniform": "AUROC, uniform noise"}


def main(docs: Path) -> None:
    """Run the pages, then draw into ``docs/images``."""
    pages, images = docs / "tutorials", docs.resolve() / "images"
    draw(images / "tutorial-images.svg", (10, 5.6), lambda figure: _images(figure, _run_page(pages / "images.md")))
    draw(images / "tutorial-table.svg", (10, 7.6), lambda figure: _table(figure, _run_page(pages / "table.md")))
    rows, latex = _compare(pages / "paper.md")
    (pages / "paper.tex").write_text(latex, encoding="utf-8")
    draw(images / "tutorial-paper.svg", (10, 4.6), lambda figure: _paper(figure, rows))


def _run_page(page: Path) -> dict[str, Any]:
    """The variables of a page after its Python blocks."""
    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    with _empty_folder(), contextlib.redirect_stdout(io.StringIO()):
        exec("\n".join(blocks), namespace)
    return namespace


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _images(figure: Any, page: dict[str, Any]) -> None:
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2.3))
    left, right = above.subplots(1, 2)
    known, unknown = (page[name].mutual_information.numpy() for name in ("known", "unknown"))
    edges = np.linspace(0, max(known.max(), unknown.max()), 31)
    for values, label, colour in ((known, "digits 0–7, known", BLUE), (unknown, "digits 8 and 9, new", ORANGE)):
        share = np.histogram(values, edges)[0] / len(values)
        left.stairs(share, edges, fill=True, alpha=0.5, color=colour, label=label)
    left.axvline(float(page["threshold"]), color=INK, lw=1, ls="--", label="threshold of this page")
    left.set_yscale("log")
    left.set(xlabel="mutual information in nats", ylabel="share of the images")
    tidy(left, f"AUROC {page['by_disagreement']:.1%}, by entropy {page['by_entropy']:.1%}")
    left.legend(frameon=False)
    levels = np.sort(np.concatenate([known, unknown]))[::-1]
    alarms, found = ((values[None] > levels[:, None]).mean(1) for values in (known, unknown))
    right.plot(alarms, found, color=BLUE)
    right.plot([0, 1], [0, 1], color=SOFT, lw=1, ls="--")
    right.plot(1 - page["answered"].float().mean(), page["caught"], "o", color=INK)
    right.set(xlabel="known digits sent to a person", ylabel="new digits sent to a person")
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:.0%}")
    tidy(right, "What a threshold costs, and this page's")
    _rows_of_digits(below, page)


def _rows_of_digits(figure: Any, page: dict[str, Any]) -> None:
    """The new digits that are found most clearly, and those that are not found."""
    axes, scores = figure.subplots(2, 10), page["unknown"].mutual_information
    order = scores.argsort(descending=True)
    for row, (chosen, title) in enumerate(((order[:10], "new, most disagreement"), (order[-10:], "new, least"))):
        for column, (place, at) in enumerate(zip(axes[row], chosen.tolist(), strict=True)):
            place.imshow(page["x_new"][at, 0], cmap="gray_r", vmin=0, vmax=1)
            answer = int(page["unknown"].probs[at].argmax())
            place.set_title(f"{title}\n" if column == 0 else "", loc="left", fontsize=9)
            place.set_xlabel(f"“{answer}” {float(page['unknown'].confidence[at]):.0%}", fontsize=8)
            place.set(xticks=[], yticks=[])


def _table(figure: Any, page: dict[str, Any]) -> None:
    axes = figure.subplots(2, 2)
    model, X, y = page["model"], page["X_test"], page["y_test"]
    IntervalDisplay.from_estimator(model, X, y, ax=axes[0, 0]).plot(axes[0, 1], kind="coverage")
    ImportanceDisplay.from_estimator(model, ax=axes[1, 0])
    axes[1, 0].set_title("Which measurements matter", loc="left", fontsize=11)
    parts, std = page["contributions"][0], page["contribution_std"][0]
    order = np.argsort(np.abs(parts))
    values = [value if isinstance(value, str) else f"{value:.4g}" for value in X.iloc[0]]
    labels = [f"{name} = {value}" for name, value in zip(page["names"], values, strict=True)]
    colours = [BLUE if part > 0 else ORANGE for part in parts[order]]
    axes[1, 1].barh([labels[at] for at in order], parts[order], xerr=std[order], color=colours, ecolor=SOFT)
    axes[1, 1].set_xlabel("contribution to the prediction")
    tidy(axes[1, 1], f"One patient: {page['mean'][0]:.0f}; the mean patient: {float(page['baseline']):.0f}")


def _compare(page: Path) -> tuple[list[dict[str, str]], str]:
    """The rows of the recipe's CSV file, and its table in LaTeX."""
    recipe = re.search(r'^```toml title="paper.toml"\n(.*?)^```$', page.read_text(encoding="utf-8"), re.M | re.S)
    assert recipe is not None, f"{page} has no recipe"
    with _empty_folder():
        Path("paper.toml").write_text(recipe[1], encoding="utf-8")
        given = ["compare", "paper.toml", "--data", "digits,two_moons", "--ood", "uniform", "--out", "runs/paper"]
        assert gossamer([*given, "--quiet"]) == 0, "the comparison failed"
        with Path("runs/paper/comparison.csv").open(encoding="utf-8") as file:
            return list(csv.DictReader(file)), Path("runs/paper/comparison.tex").read_text(encoding="utf-8")


def _paper(figure: Any, rows: list[dict[str, str]]) -> None:
    """A row of panels per data set, a dot with its standard error per method."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    grid = figure.subplots(len(names), len(PANELS), squeeze=False)
    for axes, data in zip(grid, names, strict=True):
        chosen = [row for row in rows if row["data"] == data][::-1]
        for place, (metric, title) in zip(axes, PANELS.items(), strict=True):
            means, errors = ([float(row[name]) for row in chosen] for name in (metric, f"{metric}_se"))
            place.errorbar(means, range(len(chosen)), xerr=errors, fmt="o", color=BLUE, ecolor=SOFT, capsize=3)
            place.set_yticks(range(len(chosen)), [row["method"] if place is axes[0] else "" for row in chosen])
            place.locator_params(axis="x", nbins=4)
            place.set_ylim(-0.5, len(chosen) - 0.5)
            tidy(place, f"{data}: {title}" if place is axes[0] else title)
            place.grid(axis="x", color=SOFT, alpha=0.25, lw=0.7)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
