"""Several methods, several seeds, one table."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.experiments.settings import Settings
from gossamer.experiments.training import Interrupted, resume, train
from gossamer.record import RecordError, Run, write_atomically

__all__ = ["Comparison", "compare", "read_recipe"]

COLUMNS = ("accuracy", "rmse", "nll", "ece", "crps", "brier", "mutual_information", "coverage90")
COST_COLUMNS = ("active_parameters", "seconds")


@dataclass(frozen=True)
class Comparison:
    """Rows of a comparison: a label, the results of its seeds, and what went wrong, if anything did."""

    rows: tuple[tuple[str, tuple[dict[str, Any], ...], str], ...]
    folders: tuple[Path, ...]

    def table(self) -> list[dict[str, Any]]:
        """A row a label: mean and standard error of every metric over the seeds."""
        return [self._row(*row) for row in self.rows]

    def _row(self, label: str, results: tuple[dict[str, Any], ...], failure: str) -> dict[str, Any]:
        row: dict[str, Any] = {"method": label, "seeds": len(results)}
        for group, names in (("metrics", COLUMNS), ("cost", COST_COLUMNS)):
            for name in names:
                values = [result[group][name] for result in results if name in result[group]]
                if values:
                    row[name] = statistics.fmean(values)
                    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
                    row[f"{name}_se"] = spread
        return row | ({"failed": failure} if failure else {})

    def to_text(self) -> str:
        """For the terminal."""
        return _aligned(self._cells(), rule=" ")

    def to_markdown(self) -> str:
        """As a Markdown table."""
        head, *body = self._cells()
        lines = [head, ["---"] * len(head), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def to_csv(self) -> str:
        """As CSV, with the standard errors as columns of their own."""
        rows = self.table()
        names = list(dict.fromkeys(name for row in rows for name in row))
        file = io.StringIO()
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()

    def to_json(self) -> str:
        """As JSON; a standard error that one seed cannot give is null."""
        rows = [
            {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in self.table()
        ]
        return json.dumps(rows, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """``comparison.md``, ``.csv`` and ``.json`` in the folder."""
        for suffix, text in (("md", self.to_markdown()), ("csv", self.to_csv()), ("json", self.to_json())):
            write_atomically(folder / f"comparison.{suffix}", text)

    def _cells(self) -> list[list[str]]:
        rows = self.table()
        names = [name for name in (*COLUMNS, *COST_COLUMNS) if any(name in row for row in rows)]
        head = ["method", "seeds", *(name.replace("_", " ") for name in names)]
        failed = any("failed" in row for row in rows)
        lines = [head + (["failed"] if failed else [])]
        for row in rows:
            cells = [row["method"], str(row["seeds"]), *(_cell(name, row) for name in names)]
            lines.append(cells + ([row.get("failed", "")] if failed else []))
        return lines


def compare(
    entries: Mapping[str, Settings],
    seeds: int = 3,
    out: Path | str = "runs/compare",
    *,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Train every entry with several seeds and put the results side by side.

    Runs are folders of ``out``, ``<label>-<seed>``; finished ones are not trained again and unfinished ones are
    continued, so a comparison can be stopped and started at will. A method that fails is a row that says so.

    Args:
        entries: Settings by label; their seeds are replaced by 0, 1, ….
        seeds: How many runs of each.
        out: Folder of the comparison.
        quiet: No progress.
        say: Is told what is being trained.
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1; got {seeds}")
    out = Path(out)
    rows, folders = [], []
    for label, settings in entries.items():
        results, failure = [], ""
        for seed in range(seeds):
            folder = out / f"{label}-{seed}".replace("/", "-").replace(" ", "-")
            say(f"{label}, seed {seed}")
            try:
                run = _train_or_continue(settings.__class__(**{**settings.to_config(), "seed": seed}), folder, quiet)
                results.append(run.result() or {})
                folders.append(folder)
            except (KeyboardInterrupt, Interrupted):
                raise
            except Exception as error:  # the others go on; the row says what happened
                failure = f"seed {seed}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                say(f"{label} failed: {failure}")
        rows.append((label, tuple(results), failure))
    comparison = Comparison(tuple(rows), tuple(folders))
    out.mkdir(parents=True, exist_ok=True)
    comparison.write(out)
    return comparison


def read_recipe(path: Path) -> tuple[dict[str, Settings], int]:
    """Entries and number of seeds of a recipe: a TOML file with common settings and a table ``[methods.LABEL]`` each.

    A table's keys are settings, or options of its method, whose name is the label unless it says ``method = …``.
    """
    try:
        recipe = tomllib.loads(path.read_text())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is broken: {str(error).splitlines()[0]}") from error
    tables, seeds = recipe.pop("methods", {}), recipe.pop("seeds", 3)
    if not tables:
        raise RecordError(f"{path} compares nothing: give it a table [methods.NAME] for each method")
    fields = set(Settings.__dataclass_fields__) - {"options", "seed"}
    entries = {}
    for label, table in tables.items():
        own = {key: value for key, value in table.items() if key in fields}
        options = {key: value for key, value in table.items() if key not in fields}
        entries[label] = Settings.from_config({"method": label, **recipe, **own, "options": options})
    return entries, seeds


def _train_or_continue(settings: Settings, folder: Path, quiet: bool) -> Run:
    if not (folder / "config.toml").exists():
        return train(settings, folder, quiet=quiet)
    run = Run.open(folder)
    if Settings.from_config(run.config) != settings:
        raise RecordError(f"{folder} holds a run with other settings: give another --out")
    return resume(folder, quiet=quiet)


def _cell(name: str, row: dict[str, Any]) -> str:
    if name not in row:
        return "-"
    mean, spread = row[name], row[f"{name}_se"]
    if name == "active_parameters":
        return f"{mean:,.0f}"
    digits = 1 if name == "seconds" else 4
    return f"{mean:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")


def _aligned(lines: list[list[str]], rule: str) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
