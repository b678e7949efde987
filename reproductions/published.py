"""What a paper printed, as the tables ``[published.NAME]`` of a recipe quote it, beside what was measured.

python -m reproductions recipes/ssvi-cifar10-95.toml [flags of gossamer compare]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gossamer._text.names import unknown
from gossamer._text.tables import Table
from gossamer.lab.cli import main as gossamer
from gossamer.lab.record import RecordError
from gossamer.lab.runs.comparison import load_recipe
from gossamer.metrics.registry import METRICS


class PublishedFigures(NamedTuple):
    """The figures of one method: where they were printed, over how many seeds, and their text by metric."""

    source: str
    seeds: int | None
    figures: Mapping[str, str]


def train_recipe(given: Sequence[str]) -> int:
    """Train a recipe as ``gossamer compare`` does, then print the published figures below the measured ones."""
    parser = argparse.ArgumentParser("python -m reproductions", allow_abbrev=False)
    parser.add_argument("recipe", type=Path, help="a TOML file")
    parser.add_argument("--out", type=Path, help="folder of the comparison; runs/<recipe> if not given")
    options, flags = parser.parse_known_args(given)
    published = read_published(options.recipe)
    if not published:
        raise RecordError(f"{options.recipe} quotes no published figures: give it a table [published.NAME]")
    out = options.out or Path("runs", options.recipe.stem)
    code = gossamer(["compare", str(options.recipe), *flags, "--out", str(out)])
    if code == 0:
        written = out / "comparison.json"
        if not written.exists():
            raise RecordError(f"there is no {written}: published figures are of one data set, and of all its runs")
        print(f"\n{beside_published(json.loads(written.read_text()), published).to_text()}")
    return code


def read_published(path: Path) -> dict[str, PublishedFigures]:
    """The published figures of a recipe by method; empty where it quotes none."""
    recipe = load_recipe(path)
    return {label: _figures(path, label, table, recipe["methods"]) for label, table in recipe["published"].items()}


def beside_published(measured: Sequence[Mapping[str, Any]], published: Mapping[str, PublishedFigures]) -> Table:
    """A row for what was measured of each method, as ``comparison.json`` has it, and below it what was published.

    Measured figures are means ± standard errors over the seeds, in the unit and with the digits of the printed one.
    """
    names = [name for name in METRICS if any(name in quoted.figures for quoted in published.values())]
    rows = []
    for means in measured:
        quoted = published.get(means["method"])
        if quoted is not None:
            cells = [_measured(name, quoted.figures.get(name, "-"), means) for name in names]
            rows.append([means["method"], str(means["seeds"]), *cells])
            seeds = "" if quoted.seeds is None else str(quoted.seeds)
            rows.append([f"published, {quoted.source}", seeds, *(quoted.figures.get(name, "-") for name in names)])
    head = ["method", "seeds", *(METRICS[name].heading for name in names)]
    return Table("Beside the published figures", "Mean ± standard error over the seeds.", head, rows)


def _figures(path: Path, label: str, table: Any, methods: Mapping[str, Any]) -> PublishedFigures:
    where = f"{path}, [published.{label}]"
    if label not in methods:
        raise RecordError(f"{where}: {unknown('method', label, methods)}")
    if not isinstance(table.get("source"), str):
        raise RecordError(f"{where} must name the source of its figures: source = …")
    figures = {name: value for name, value in table.items() if name not in ("source", "seeds")}
    for name, value in figures.items():
        if name not in METRICS:
            raise RecordError(f"{where}: {unknown('metric', name, METRICS)}")
        if not isinstance(value, str):
            raise RecordError(f"{where}: {name} must be a text, the figure as printed; got {value!r}")
    return PublishedFigures(table["source"], table.get("seeds"), figures)


def _measured(name: str, printed: str, means: Mapping[str, Any]) -> str:
    """Mean and standard error, written like the printed figure."""
    mean, error = means.get(name), means.get(f"{name}_se")
    if mean is None:
        return "-"
    number = re.fullmatch(r"\d+(?:\.(\d+))?( ?%)?", printed)
    if number is None:  # an abbreviation such as 0.56M, or a figure that the paper does not have
        return METRICS[name].text(mean, error)
    digits, unit = len(number[1] or ""), number[2] or ""
    scale = 100 if unit else 1
    return f"{scale * mean:.{digits}f}" + (f" ± {scale * error:.{digits}f}" if error is not None else "") + unit
