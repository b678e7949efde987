"""From a plan to stored results and pages: parts are measured one by one, and each is written as soon as it is done."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from gossamer import __version__
from gossamer._text.progress import Progress
from gossamer._text.tables import Table
from gossamer.files.atomic import read_file, rows_of
from gossamer.lab.record import RecordError, write_atomically
from gossamer.lab.record.environment import environment

__all__ = ["Part", "PartSettings", "Reproduction", "Row", "StoredParts", "Tick", "document", "fill", "reproduce"]

FORMAT = 1
FROM_RECORD = ("time", "git_commit", "python", "cpu", "cpu_count", "memory_bytes", "gpu")
PLACE = re.compile(r"(<!-- reproduce:([\w-]+):([\w-]+) -->\n).*?(<!-- /reproduce -->)", re.DOTALL)

PartSettings = dict[str, Any]
Row = dict[str, Any]
Tick = Callable[[int, int, str], None]
"""(steps done, steps in all, words)."""


@dataclass(frozen=True)
class Part:
    """What one set of settings gave, where, and how long it took."""

    settings: PartSettings
    environment: Mapping[str, Any]
    seconds: float
    rows: list[Row]


@dataclass
class StoredParts:
    """The parts of one table or figure.

    Example:
        >>> stored = StoredParts("em-mcmc-table4")
        >>> stored.add(Part({"example": 1}, {}, 2.5, [{"mse": 1.1}]))
        >>> stored.find({"example": 1}).rows, stored.find({"example": 2})
        ([{'mse': 1.1}], None)
    """

    name: str
    parts: list[Part] = field(default_factory=list)

    def find(self, settings: PartSettings) -> Part | None:
        """The part with exactly these settings, if it was measured."""
        return next((part for part in self.parts if part.settings == settings), None)

    def add(self, part: Part) -> None:
        """Add a part; one with the same settings is replaced."""
        self.parts = [old for old in self.parts if old.settings != part.settings] + [part]

    def to_json(self) -> str:
        """JSON with one line per row, so that a difference between two files can be read."""
        parts = ",\n ".join(_part_lines(part) for part in self.parts)
        return f'{{"format": {FORMAT}, "name": {json.dumps(self.name)}, "parts": [\n {parts}\n]}}\n'

    def write(self, path: Path) -> None:
        """Write the JSON file atomically."""
        write_atomically(path, self.to_json())

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> Self:
        """Read a file of :meth:`write`; with ``name`` it must hold that reproduction, and may not exist yet."""
        content = read_file(path, "delete it, or give another --out")
        if content is None:
            if name is None:
                raise RecordError(f"{path} does not exist: python -m reproductions NAME makes it")
            return cls(name)
        try:
            found = cls.from_dict(content)
        except (TypeError, ValueError, KeyError) as error:
            raise RecordError(f"{path} is no result of python -m reproductions: {error}") from error
        if name is not None and found.name != name:
            raise RecordError(f"{path} holds {found.name}, not {name}: give another --out")
        return found

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """From the object in the file."""
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')!r}, this version of gossamer reads {FORMAT}")
        return cls(content["name"], rows_of(Part, content["parts"]))


class Reproduction(Protocol):
    """What the script of a table or figure holds."""

    plan: Callable[..., list[PartSettings]]
    """Options -> the settings of each part, plain values that JSON can hold."""

    def measure(self, settings: PartSettings, tick: Tick) -> list[Row]:
        """Measure one part; ``tick(done, total, words)`` reports progress."""
        ...

    def tables(self, results: StoredParts) -> dict[str, Table]:
        """Tables by name, from stored parts alone."""
        ...

    def plot(self, results: StoredParts, path: Path) -> None:
        """Draw the picture from stored parts alone; the suffix of the path chooses the format."""
        ...


def reproduce(
    name: str, chosen: Reproduction, plan: Sequence[PartSettings], out: Path, *, quiet: bool = False
) -> tuple[StoredParts, list[Path]]:
    """Measure the parts of a plan that are not in the folder yet, and write results, tables and picture.

    Args:
        name: What is reproduced.
        chosen: Its script, see :func:`reproductions.find`.
        plan: Settings of the parts.
        out: The folder: ``results.json`` after each part, ``table.md`` and ``plot.svg`` at the end.
        quiet: Show no progress.

    Returns:
        The results of the plan alone (the file keeps those of other settings), and the files written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{out} cannot be the folder of results: {error.strerror}; give another --out") from error
    stored = StoredParts.read(out / "results.json", name)
    with Progress("", total=1, lines=5, quiet=quiet) as progress:
        for number, settings in enumerate(plan, 1):
            progress.begin(f"[{number}/{len(plan)}] {describe(settings)}", total=1)
            if stored.find(settings) is None:
                stored.add(_measured(chosen.measure, settings, progress))
                stored.write(out / "results.json")
            else:
                progress.update(1, lambda: "measured before")
    results = StoredParts(name, [part for settings in plan if (part := stored.find(settings)) is not None])
    write_atomically(out / "table.md", document(results, chosen))
    chosen.plot(results, out / "plot.svg")
    return results, [out / file for file in ("results.json", "table.md", "plot.svg")]


def describe(settings: PartSettings) -> str:
    """What tells a part from the others.

    Example:
        >>> describe({"example": 1, "variant": "ke", "method": "DFP", "hidden": [5, 3], "epochs": 80})
        'example 1, ke, DFP, 5-3'
    """
    is_example = "example" in settings
    parts = [f"example {settings['example']}"] if is_example else []
    keys = ("variant", "method", "training") if is_example else ("data", "method")
    parts += [str(settings[key]) for key in keys if settings.get(key)]
    parts += ["-".join(map(str, settings["hidden"]))] if "hidden" in settings else []
    return ", ".join(parts + ([f"seed {settings['seed']}"] if "seed" in settings and not is_example else []))


def document(results: StoredParts, chosen: Reproduction) -> str:
    """All tables as a Markdown document, each with its title and its note."""
    parts = [f"# reproductions {results.name}", headline(results)]
    for table in chosen.tables(results).values():
        parts += [f"## {table.title}", table.note, table.to_markdown().rstrip("\n")]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(results: StoredParts) -> str:
    """Machines, versions and dates.

    Example:
        >>> known = {"cpu": "a CPU", "cpu_count": 2, "threads": 1, "gossamer": "1", "torch": "2", "python": "3"}
        >>> headline(StoredParts("x", [Part({}, known | {"time": "2026-01-31T12:00:00"}, 1.0, [])]))
        'a CPU, 2 cores, 1 thread; gossamer 1, torch 2, Python 3; 2026-01-31'
    """
    lines = []
    for part in results.parts:
        known = part.environment
        machine = f"{known['cpu']}, {known['cpu_count']} cores"
        if threads := known.get("threads"):
            machine += f", {threads} thread{'s' if threads > 1 else ''}"
        machine += f", {known['gpu']}" if known.get("gpu") else ""
        versions = f"gossamer {known['gossamer']}, torch {known['torch']}, Python {known['python']}"
        lines.append(f"{machine}; {versions}; {known['time'][:10]}")
    return "; and ".join(dict.fromkeys(lines))


def fill(page: str, results: StoredParts, chosen: Reproduction) -> str:
    """The page with the tables of ``results`` between ``<!-- reproduce:NAME:TABLE -->`` and ``<!-- /reproduce -->``.

    A place called ``environment`` takes the :func:`headline`. Places of other reproductions are left alone.
    """
    tables = chosen.tables(results)

    def content(place: re.Match[str]) -> str:
        start, name, table, end = place.groups()
        if name != results.name:
            return place[0]
        if table != "environment" and table not in tables:
            known = ", ".join(["environment", *tables])
            raise ValueError(f"a page has a place for {table!r}, but the results have only {known}")
        text = headline(results) + "\n" if table == "environment" else tables[table].to_markdown()
        return f"{start}\n{text}\n{end}"

    if all(name != results.name for _, name, _, _ in PLACE.findall(page)):
        place = f"<!-- reproduce:{results.name}:{next(iter(tables))} -->"
        raise ValueError(f"the page has no place for a table: write {place} and <!-- /reproduce --> in it")
    return PLACE.sub(content, page)


def _measured(measure: Callable[[PartSettings, Tick], list[Row]], settings: PartSettings, progress: Progress) -> Part:
    title = progress.title

    def tick(done: int, total: int, words: str) -> None:
        if progress.total != total:
            progress.begin(title, total)
        progress.update(done, lambda: f"step {done}/{total}, {words}")

    start = time.perf_counter()
    rows = measure(settings, tick)
    known = environment()
    own = {"gossamer": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    where = {key: known[key] for key in FROM_RECORD} | own
    return Part(settings, where, round(time.perf_counter() - start, 2), rows)


def _part_lines(part: Part) -> str:
    head = {key: value for key, value in asdict(part).items() if key != "rows"}
    rows = ",\n  ".join(json.dumps(row) for row in part.rows)
    return f'{json.dumps(head)[:-1]}, "rows": [\n  {rows}]}}'
