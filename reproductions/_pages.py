"""Results in Markdown pages: whole documents, and marked places in pages that people write.

A place is what stands between ``<!-- reproduce:NAME:TABLE -->`` and ``<!-- /reproduce -->``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reproductions._results import Results

if TYPE_CHECKING:
    from reproductions import Reproduction

__all__ = ["PLACE", "document", "fill", "headline"]

PLACE = re.compile(r"(<!-- reproduce:([\w-]+):([\w-]+) -->\n).*?(<!-- /reproduce -->)", re.DOTALL)


def document(results: Results, chosen: Reproduction) -> str:
    """All tables, each with its title and its note."""
    parts = [f"# reproductions {results.name}", headline(results)]
    for table in chosen.tables(results).values():
        parts += [f"## {table.title}", table.note, table.to_markdown().rstrip("\n")]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(results: Results) -> str:
    """Machines, versions and dates.

    Example:
        >>> from reproductions._results import Part
        >>> known = {"cpu": "a CPU", "cpu_count": 2, "threads": 1, "gossamer": "1", "torch": "2", "python": "3"}
        >>> headline(Results("x", [Part({}, known | {"time": "2026-01-31T12:00:00"}, 1.0, [])]))
        'a CPU, 2 cores, 1 thread; gossamer 1, torch 2, Python 3; 2026-01-31'
    """
    lines = []
    for part in results.parts:
        known = part.environment
        threads = f"{known['threads']} thread{'s' if known['threads'] > 1 else ''}"
        machine = f"{known['cpu']}, {known['cpu_count']} cores, {threads}"
        versions = f"gossamer {known['gossamer']}, torch {known['torch']}, Python {known['python']}"
        lines.append(f"{machine}; {versions}; {known['time'][:10]}")
    return "; and ".join(dict.fromkeys(lines))


def fill(page: str, results: Results, chosen: Reproduction) -> str:
    """The page with the tables of ``results`` in its places, and in those called ``environment`` its :func:`headline`.

    Places of other reproductions are left alone.
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
