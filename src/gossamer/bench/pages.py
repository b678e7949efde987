"""Tables in Markdown pages: whole documents, and marked places in pages that people write.

A place is what stands between ``<!-- bench:DEVICE:NAME -->`` and ``<!-- /bench -->``; it is replaced by the table of
that name of a benchmark on that device, or for ``environment`` by a line about the machine. So no figure in a page is
ever copied by hand.
"""

from __future__ import annotations

import re

from gossamer.bench.environment import describe, describe_gpu
from gossamer.bench.results import Results
from gossamer.bench.tables import all_tables

__all__ = ["document", "fill"]

PLACE = re.compile(r"(<!-- bench:(\w+):([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def document(results: Results) -> str:
    """All tables, each with its title and its note."""
    parts = [f"# gossamer bench {results.device}", headline(results)]
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
        >>> from gossamer.bench.results import UpdateCost
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
    tables = all_tables(results)

    def content(place: re.Match[str]) -> str:
        start, device, name, end = place.groups()
        if device != results.device:
            return place[0]
        if name != "environment" and name not in tables:
            known = ", ".join(["environment", *tables])
            raise ValueError(f"a page has a place for {name!r}, but the results have only {known}")
        text = headline(results) + "\n" if name == "environment" else tables[name].to_markdown()
        return f"{start}\n{text}\n{end}"

    if all(device != results.device for _, device, _, _ in PLACE.findall(page)):
        place = f"<!-- bench:{results.device}:networks -->"
        raise ValueError(f"the page has no place for a table: write {place} and <!-- /bench --> in it, each in a line")
    return PLACE.sub(content, page)
