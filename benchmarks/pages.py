"""Tables in Markdown pages: whole documents, and marked places in pages that people write.

A place is what stands between ``<!-- bench:DEVICE:NAME -->`` and ``<!-- /bench -->``; it is replaced by the table of
that name of a benchmark on that device, or for ``environment`` by a line about the machine. So no figure in a page is
ever copied by hand. In ``<!-- bench:results:NAME -->`` stands a table of the folder ``results/`` (``recorded.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from benchmarks.environment import describe, describe_gpu
from benchmarks.results import Results
from benchmarks.tables import all_tables

__all__ = ["document", "fill", "fill_places"]

PLACE = re.compile(r"(<!-- bench:(\w+):([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def document(results: Results) -> str:
    """All tables, each with its title and its note."""
    parts = [f"# benchmarks {results.device}", headline(results)]
    for table in all_tables(results).values():
        parts += [f"## {table.title}", table.note, table.to_markdown().rstrip("\n")]
    return "\n\n".join(part for part in parts if part) + "\n"


def headline(results: Results) -> str:
    """Machine, versions, rounds, date, and what else there is to know."""
    where = (describe_gpu if results.device == "gpu" else describe)(results.environment)
    return "; ".join([where, f"{results.rounds} rounds", *results.notes])


def fill(page: str, results: Results) -> str:
    '''The page with the tables of ``results`` in its places; those of other devices are left alone.

    Example:
        >>> from benchmarks.results import UpdateCost
        >>> results = Results("cpu", 1, {}, updates=[UpdateCost("MLP", 128, 0.05, 100, [5.0], [10.0])])
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
    """The page with texts in its places of a device, by name; a page without one is an error that gives an example."""

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
