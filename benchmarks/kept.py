"""Tables of what is kept in ``results/``: runs of recipes, comparisons.

A recipe has a row if a seed of it was trained; how many were is a column. Runs that shared their GPU with others are
marked ``"gpu_shared": true`` in their environment, and their times are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cells
from benchmarks.tables import MISSING
from benchmarks.trials import Trial, Trials
from gossamer._text.terminal import Table
from gossamer.lab.record import RecordError, Run
from gossamer.metrics.registry import METRICS
from reproductions.pages import determined

__all__ = [
    "RecipeRuns",
    "read_recipes",
    "recipe_tables",
    "setup_seconds",
    "trials_table",
]

# How a metric is headed and written: in the units of papers, with their digits.
SHORT = ("accuracy", "nll", "marginal_l2_debiased")
AS_PRINTED: dict[str, tuple[str, float, int]] = {
    "accuracy": ("accuracy, %", 100, 2),
    "nll": ("NLL", 1, 3),
    "ece": ("top-label ECE", 1, 4),
    "marginal_l2_debiased": ("marginal L2", 1, 4),
    "brier": ("Brier", 1, 4),
}
COMPARED = ("accuracy", "nll", "ece", "mutual_information")
WAYS = {"draws": "{n} weight draws", "mean": "mean weights", "local": "{n} local passes"}
SETUP_FACTOR = 2  # an epoch that took longer than this many typical ones contains a set-up


@dataclass(frozen=True)
class RecipeRuns:
    """The finished runs of a recipe, by seed."""

    name: str
    runs: Sequence[Run]
    results: Sequence[Mapping[str, Any]]

    @property
    def place(self) -> tuple[Any, ...]:
        """Sorting key of its row: by data set, then the densest first."""
        first = self.results[0]
        return (first["data"], -first["cost"]["density"], self.name)


def read_recipes(folder: Path) -> list[RecipeRuns]:
    """All recipes with a kept run in the folder, in the order of the tables."""
    names = sorted({path.parent.name for path in _seeds(folder, "*/*")})
    return sorted((_read(folder / name) for name in names), key=lambda recipe: recipe.place)


def setup_seconds(seconds: Sequence[float]) -> float:
    """Time of compiling and capturing, in every process of the training.

    Args:
        seconds: Seconds since the start, at the end of each epoch. Set-up happens in the first step of a process:
            it is the excess over the median of the epochs that took more than twice the median.

    Example:
        >>> setup_seconds([22.0, 24.0, 26.0, 28.0, 40.0, 42.0])
        30.0
    """
    epochs = [end - start for start, end in zip([0.0, *seconds], seconds, strict=False)]
    typical = statistics.median(epochs)
    return sum(epoch - typical for epoch in epochs if epoch > SETUP_FACTOR * typical)


def recipe_tables(recipes: Sequence[RecipeRuns]) -> dict[str, Table]:
    """The tables by name: quality, a short version of it, three ways to predict, cost."""
    made = {
        "recipes": _quality(recipes, tuple(AS_PRINTED)),
        "recipes-short": _quality([r for r in recipes if r.results[0]["data"] == "cifar10"], SHORT),
        "recipes-predictions": _predictions(recipes),
        "recipes-cost": _costs(recipes),
    }
    return {name: table for name, table in made.items() if table.rows}


def _seeds(folder: Path, below: str) -> list[Path]:
    """Folders of finished runs that are named by a seed, in numerical order; other runs may lie beside them."""
    found = [path.parent for path in folder.glob(f"{below}/result.json") if path.parent.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def _read(folder: Path) -> RecipeRuns:
    runs = [Run.open(seed) for seed in _seeds(folder, "*")]
    told = [determined(run.config) for run in runs]
    for run, config in zip(runs, told, strict=True):
        if run.folder.name != str(run.config["seed"]):
            raise RecordError(f"{run.folder} holds seed {run.config['seed']}: name the folder after its seed")
        if config != told[0]:
            raise RecordError(f"{run.folder} has other settings than {runs[0].folder}: keep runs of one recipe")
    return RecipeRuns(folder.name, runs, [run.result() or {} for run in runs])


def _quality(recipes: Sequence[RecipeRuns], names: Sequence[str]) -> Table:
    rows = []
    for recipe in recipes:
        found = [result["metrics"] for result in recipe.results]
        rows.append([f"`{recipe.name}`", str(len(found)), *(_metric(name, found) for name in names)])
    head = ["recipe", "seeds", *(AS_PRINTED[name][0] for name in names)]
    return Table("Recipes", "Mean ± standard deviation over the seeds.", head, rows)


def _predictions(recipes: Sequence[RecipeRuns]) -> Table:
    rows = []
    for recipe in recipes:
        for way, words in WAYS.items():
            found = [result["predictions"][way] for result in recipe.results if way in result.get("predictions", {})]
            if found:
                label = words.format(n=recipe.results[0]["n_draws"])
                rows.append(
                    [f"`{recipe.name}`", label, str(len(found)), *(_metric(name, found) for name in AS_PRINTED)]
                )
    head = ["recipe", "prediction", "seeds", *(title for title, _, _ in AS_PRINTED.values())]
    return Table("Three ways to predict", "Mean ± standard deviation over the seeds.", head, rows, 2)


def _costs(recipes: Sequence[RecipeRuns]) -> Table:
    head = ["recipe", "seeds", "active weights", "share", "checkpoint, MB", "training, s", "set-up, s",
            "s an epoch", "peak memory, GB"]  # fmt: skip
    return Table(
        "Cost",
        "Means over the seeds; times over those that had the GPU to themselves.",
        head,
        [_cost(recipe) for recipe in recipes],
    )


def _cost(recipe: RecipeRuns) -> list[str]:
    costs = [result["cost"] for result in recipe.results]
    # The time of a training that shared its GPU says nothing about the recipe.
    alone = [i for i, run in enumerate(recipe.runs) if not run.environment.get("gpu_shared", False)]
    setups = [setup_seconds([row["seconds"] for row in recipe.runs[i].metrics()]) for i in alone]
    training = [costs[i]["seconds"] - setup for i, setup in zip(alone, setups, strict=True)]
    n_epochs = recipe.runs[0].config["epochs"]
    active, share = (statistics.fmean(cost[key] for cost in costs) for key in ("active_parameters", "density"))
    return [
        f"`{recipe.name}`",
        str(len(costs)),
        f"{active:,.0f}",
        f"{100 * share:.1f} %",
        cells.megabytes(statistics.fmean(cost["checkpoint_bytes"] for cost in costs), None),
        _spread(training, 0),
        _spread(setups, 0),
        f"{statistics.fmean(training) / n_epochs:.2f}" if training else MISSING,
        f"{statistics.fmean(cost['peak_memory_bytes'] for cost in costs) / 1e9:.2f}",
    ]


def _metric(name: str, found: Sequence[Mapping[str, float]]) -> str:
    _, scale, digits = AS_PRINTED[name]
    return _spread([scale * metrics[name] for metrics in found], digits)


def _spread(values: Sequence[float], digits: int) -> str:
    """The mean, and the standard deviation where there are several."""
    if not values:
        return MISSING
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if values[1:] else mean


def trials_table(trials: Trials) -> Table:
    """A row for each method: mean ± standard error over its seeds.

    Example:
        >>> reached = [{"accuracy": 0.90}, {"accuracy": 0.94}]
        >>> seeds = [Trial("SSVI", i, {}, metrics, {"active_parameters": 4224}) for i, metrics in enumerate(reached)]
        >>> trials_table(Trials(seeds, {})).rows[0][:4]
        ['SSVI', '2', '4,224', '92.0 ± 2.0 %']
    """
    has_files = any("file_bytes" in trial.cost for trial in trials.trials)
    counted = {"active_parameters": "active weights"} | ({"file_bytes": "bytes of the file"} if has_files else {})
    rows = [[label, str(len(found)), *_figures(found, counted)] for label, found in trials.by_label().items()]
    head = ["method", "seeds", *counted.values(), *(METRICS[name].heading for name in COMPARED)]
    return Table("Comparison", "Mean ± standard error over the seeds.", head, rows)


def _figures(found: Sequence[Trial], counted: Iterable[str]) -> list[str]:
    if not found:  # it failed with every seed
        return [MISSING for _ in (*counted, *COMPARED)]
    means = [statistics.fmean(trial.cost[name] for trial in found) for name in counted]
    return [*(f"{mean:,.0f}" for mean in means), *(_cell(name, found) for name in COMPARED)]


def _cell(name: str, found: Sequence[Trial]) -> str:
    values = [trial.metrics[name] for trial in found if name in trial.metrics]
    if not values:
        return MISSING
    if not any(values):  # one network cannot disagree with itself
        return "0"
    error = statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else None
    return METRICS[name].text(statistics.fmean(values), error)
