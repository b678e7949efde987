"""Everything that a folder of results holds, as text for the pages: runs of recipes, comparisons, bytes.

In ``results/`` that is ``<recipe>/<seed>/`` (run folders without their checkpoints) and the JSON files of ``gossamer
compare --json``, ``python -m benchmarks.state`` and ``python -m benchmarks.fused``. Whatever is there is
shown. Places of pages are ``<!-- bench:results:NAME -->``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import citizen, state
from benchmarks import fused_table as fused
from benchmarks.citizen import citizen_tables
from benchmarks.fused_table import fused_table
from benchmarks.pages import fill_places
from benchmarks.recipes import RecipeRuns, read_paper, read_recipes, recipe_tables
from benchmarks.state import StateBytes, state_table
from benchmarks.trials import trials_table
from gossamer.record import RecordError
from gossamer.record.files import read_json
from gossamer.runs import trials
from gossamer.runs.trials import Trials
from gossamer.tables import Table

__all__ = ["PLACES", "fill_recorded", "recorded_environments", "recorded_tables"]

PLACES = "results"  # what places of pages say where others have a device


def fill_recorded(page: str, folder: Path) -> str:
    """The page with the tables of a folder of results in its places, and lines about their environments."""
    texts: dict[str, Callable[[], str]]
    texts = {name: table.to_markdown for name, table in recorded_tables(folder).items()}
    texts |= {
        f"{name}-environment": partial("{}\n".format, line) for name, line in recorded_environments(folder).items()
    }
    return fill_places(page, PLACES, texts, next(iter(texts), "recipes"))


def recorded_tables(folder: Path) -> dict[str, Table]:
    """The tables by name: those of recipes, and one for each JSON file of a kind that has a table.

    Example:
        >>> import tempfile
        >>> from gossamer.runs.trials import Trial
        >>> folder = Path(tempfile.mkdtemp())
        >>> reached = Trial("ssvi", 0, {}, {"accuracy": 0.9}, {"active_parameters": 10})
        >>> Trials([reached], {}).write(folder / "digits.json")
        >>> list(recorded_tables(folder))
        ['digits']
    """
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder of results: give one, or a file that python -m benchmarks wrote")
    made = recipe_tables(read_recipes(folder), read_paper())
    for name, content in _contents(folder).items():
        if content["kind"] == trials.KIND:
            made[name] = trials_table(Trials.read(folder / f"{name}.json"))
        elif content["kind"] == fused.KIND:
            made[name] = fused_table(content)
        elif content["kind"] == citizen.KIND:
            made |= citizen_tables(content)
        else:
            made[name] = state_table([StateBytes(**row) for row in content["rows"]])
    return made


def recorded_environments(folder: Path) -> dict[str, str]:
    """Machine, versions and day of each source."""
    recipes = read_recipes(folder)
    found = {"recipes": _of_recipes(recipes)} if recipes else {}
    return found | {name: _words(content["environment"]) for name, content in _contents(folder).items()}


def _contents(folder: Path) -> dict[str, dict[str, Any]]:
    """The JSON files of a kind that has a table; others lie in the folder too."""
    read = {path.stem: read_json(path, "make it again, or delete it") for path in sorted(folder.glob("*.json"))}
    kinds = (trials.KIND, state.KIND, fused.KIND, citizen.KIND)
    return {name: content for name, content in read.items() if content is not None and content.get("kind") in kinds}


def _of_recipes(recipes: Sequence[RecipeRuns]) -> str:
    runs = [run.environment for recipe in recipes for run in recipe.runs]
    days = sorted({run["time"][:10] for run in runs if "time" in run})
    return "; ".join([*dict.fromkeys(_words(run) for run in runs), " to ".join(dict.fromkeys([days[0], days[-1]]))])


def _words(environment: Mapping[str, Any]) -> str:
    """What it says of machine, versions and day, in this order."""
    versions = {"gossamer": environment.get("gossamer"), "torch": environment.get("torch")}
    versions |= environment.get("versions") or {}
    named = [f"{name} {version}" for name, version in versions.items() if version and name != "numpy"]
    named += [f"Python {environment['python']}"] if environment.get("python") else []
    machine = environment.get("gpu") or environment.get("cpu")
    parts = [machine, ", ".join(named), environment.get("date")]
    return "; ".join(str(part) for part in parts if part)
