"""Tables in Markdown pages: whole documents, and marked places in pages that people write.

A place is what stands between ``<!-- bench:DEVICE:NAME -->`` and ``<!-- /bench -->``; it is replaced by the table of
that name of a benchmark on that device, or for ``environment`` by a line about the machine. So no figure in a page is
ever copied by hand. ``<!-- bench:results:NAME -->`` takes a table of the folder ``results/``: ``<recipe>/<seed>/`` (run
folders without their checkpoints) and the JSON files of ``gossamer compare``, ``python -m benchmarks.state``,
``.citizen``, ``.uci``, and of ``tests.endurance``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import citizen, reliability, state, trials, uci_tables
from benchmarks.choices import choice_tables
from benchmarks.citizen import citizen_tables
from benchmarks.environment import describe, describe_gpu
from benchmarks.kept import RecipeRuns, read_recipes, recipe_tables, trials_table
from benchmarks.measurements import Measurements
from benchmarks.state import StateBytes, state_table
from benchmarks.tables import all_tables
from benchmarks.trials import Trials
from gossamer._text.terminal import Table
from gossamer.files import schema
from gossamer.files.atomic import read_file
from gossamer.lab.record import RecordError

__all__ = ["PLACES", "document", "fill", "fill_places", "fill_recorded", "recorded_environments", "recorded_tables"]

STUDY = "study"  # stored with its tables, since the script that measured it is only in the commit that it names
PLACE = re.compile(r"(<!-- bench:(\w+):([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def document(results: Measurements) -> str:
    """All tables, each with its title and its note."""
    parts = [f"# benchmarks {results.device}", headline(results)]
    for table in all_tables(results).values():
        parts += [f"## {table.title}", table.note, table.to_markdown().rstrip("\n")]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(results: Measurements) -> str:
    """Machine, versions, date, rounds and notes in one line."""
    where = (describe_gpu if results.device == "gpu" else describe)(results.environment)
    return "; ".join([where, f"{results.rounds} rounds", *results.notes])


def fill(page: str, results: Measurements) -> str:
    '''The page with the tables of ``results`` in its places; those of other devices are left alone.

    Example:
        >>> from benchmarks.measurements import UpdateCost
        >>> results = Measurements("cpu", 1, {}, updates=[UpdateCost("MLP", 128, 0.05, 100, [5.0], [10.0])])
        >>> print(fill("""<!-- bench:cpu:updates -->
        ... <!-- /bench -->""", results))
        <!-- bench:cpu:updates -->
        <BLANKLINE>
        | network | batch | density | step | update | share of training |
        | --- | ---: | ---: | ---: | ---: | ---: |
        | MLP | 128 | 5 % | 5.00 ms | 10.0 ms | 2.0 % |
        <BLANKLINE>
        <!-- /bench -->
    '''
    texts = {"environment": lambda: headline(results) + "\n"}
    texts |= {name: table.to_markdown for name, table in all_tables(results).items()}
    return fill_places(page, results.device, texts, "networks")


def fill_places(page: str, device: str, texts: Mapping[str, Callable[[], str]], example: str) -> str:
    """The page with the texts in its places of a device; a page without such a place is an error."""

    def content(place: re.Match[str]) -> str:
        start, found, name, end = place.groups()
        if found != device:
            return place[0]
        if name not in texts:
            raise ValueError(f"a page has a place for {name!r}, but the results have only {', '.join(texts)}")
        return f"{start}\n{texts[name]()}\n{end}"

    if all(found != device for _, found, _, _ in PLACE.findall(page)):
        place = f"<!-- bench:{device}:{example} -->"
        raise ValueError(f"the page has no place for a table: write {place} and <!-- /bench --> in it, each in a line")
    return PLACE.sub(content, page)


PLACES = "results"  # stands in a place of a page instead of a device


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
        >>> from benchmarks.trials import Trial
        >>> folder = Path(tempfile.mkdtemp())
        >>> reached = Trial("ssvi", 0, {}, {"accuracy": 0.9}, {"active_parameters": 10})
        >>> Trials([reached], {}).write(folder / "digits.json")
        >>> list(recorded_tables(folder))
        ['digits']
    """
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder of results: give one, or a file that python -m benchmarks wrote")
    made = recipe_tables(read_recipes(folder))
    for name, content in _contents(folder).items():
        if content["kind"] == trials.KIND:
            kept = Trials.read(folder / f"{name}.json")
            made |= choice_tables(name, kept) or {name: trials_table(kept)}
        elif content["kind"] == citizen.KIND:
            made |= citizen_tables(content)
        elif content["kind"] == uci_tables.KIND:
            made |= uci_tables.uci_tables(content)
        elif content["kind"] == STUDY:
            made |= {place: Table("", "", **table) for place, table in content["tables"].items()}
        elif content["kind"] in reliability.KINDS:
            made |= reliability.reliability_tables(content)
        else:
            made[name] = state_table(schema.made(list[StateBytes], content["rows"], name, "make the file again"))
    return made


def recorded_environments(folder: Path) -> dict[str, str]:
    """Machine, versions and day of each source."""
    recipes = read_recipes(folder)
    found = {"recipes": _of_recipes(recipes)} if recipes else {}
    return found | {name: _words(content["environment"]) for name, content in _contents(folder).items()}


def _contents(folder: Path) -> dict[str, dict[str, Any]]:
    """The JSON files of the folder that have a table."""
    read = {path.stem: read_file(path, "make it again, or delete it") for path in sorted(folder.glob("*.json"))}
    others = (citizen.KIND, uci_tables.KIND, STUDY, *reliability.KINDS)
    kinds = (trials.KIND, state.KIND, *others)
    return {name: content for name, content in read.items() if content is not None and content.get("kind") in kinds}


def _of_recipes(recipes: Sequence[RecipeRuns]) -> str:
    runs = [run.environment for recipe in recipes for run in recipe.runs]
    days = sorted({run["time"][:10] for run in runs if "time" in run})
    return "; ".join([*dict.fromkeys(_words(run) for run in runs), " to ".join(dict.fromkeys([days[0], days[-1]]))])


def _words(environment: Mapping[str, Any]) -> str:
    """Machine, versions and day in one line."""
    versions = {"gossamer": environment.get("gossamer"), "torch": environment.get("torch")}
    versions |= environment.get("versions") or {}
    named = [f"{name} {version}" for name, version in versions.items() if version and name != "numpy"]
    named += [f"Python {environment['python']}"] if environment.get("python") else []
    machine = environment.get("gpu") or environment.get("cpu")
    commit = environment.get("commit") and f"measured by commit {environment['commit']}"
    parts = [machine, ", ".join(named), environment.get("date"), commit]
    return "; ".join(str(part) for part in parts if part)
