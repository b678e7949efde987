"""``gossamer reproduce``."""

from __future__ import annotations

from pathlib import Path

from gossamer.cli.errors import UsageError
from gossamer.cli.parser import Parser, folder
from gossamer.record import RecordError, write_atomically
from gossamer.record.files import unreadable
from gossamer.tables import columns

__all__ = ["SHOW", "name_parser", "run", "show_parser"]

SHOW = "show"
SUFFIXES = (".png", ".svg", ".pdf")


def run(given: list[str]) -> int:
    """Measure a table or a figure of a paper again, or show what was measured before."""
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0 if given else 2
    return _show(given[1:]) if given[0] == SHOW else _reproduce(given[0], given[1:])


def name_parser(name: str) -> Parser:
    """Flags of one reproduction: those of its plan, and where to write."""
    from gossamer.reproduce import find

    module = find(name)
    flags = Parser(f"gossamer reproduce {name}", _first_line(module))
    flags.add_signature(module.plan, "what to measure")
    flags.add_flag("out", str | None, f"Folder of the results; runs/{name} if not given.")
    flags.add_argument("--quiet", action="store_true", help="No progress.")
    return flags


def show_parser() -> Parser:
    """Flags of ``reproduce show``."""
    flags = Parser("gossamer reproduce show", "Tables and picture of stored results.")
    flags.add_argument("file", type=str, help="A results.json.")
    flags.add_argument(
        "--into",
        nargs="+",
        default=[],
        help="Pages whose places <!-- reproduce:NAME:TABLE --> … <!-- /reproduce --> are filled.",
    )
    flags.add_flag("markdown", str | None, "Write the tables to this file as Markdown.")
    flags.add_flag("plot", str | None, f"Draw the picture in this file ({', '.join(SUFFIXES)}).")
    return flags


def _reproduce(name: str, given: list[str]) -> int:
    from gossamer.reproduce import find, reproduce
    from gossamer.runs.stopping import Interrupted

    try:
        chosen, options = find(name), name_parser(name).parse(given)
        own = {key: value for key, value in vars(options).items() if key not in ("out", "quiet")}
        plan = chosen.plan(**own)
    except ValueError as error:
        raise UsageError(str(error)) from error
    out = folder(options.out or f"runs/{name}")
    try:
        results, files = reproduce(name, chosen, plan, out, quiet=options.quiet)
    except KeyboardInterrupt:
        raise Interrupted(out, f"what is finished is in {out}, and the same command goes on from there") from None
    for table in chosen.tables(results).values():
        print(f"{table.to_text()}\n")
    print(f"files: {', '.join(map(str, files))}")
    return 0


def _show(given: list[str]) -> int:
    from gossamer.reproduce import Results, fill, find
    from gossamer.reproduce._pages import document

    options = show_parser().parse(given)
    if options.plot and folder(options.plot).suffix not in SUFFIXES:
        raise UsageError(f"--plot {options.plot} must end in {', '.join(SUFFIXES)}")
    results = Results.read(folder(options.file))
    chosen = find(results.name)
    for page in map(folder, options.into):
        text = _read(page)
        try:
            write_atomically(page, fill(text, results, chosen))
        except ValueError as error:
            raise RecordError(f"{page}: {error}") from error
    if options.markdown:
        write_atomically(folder(options.markdown), document(results, chosen))
    if options.plot:
        chosen.plot(results, folder(options.plot))
    for table in chosen.tables(results).values():
        print(f"{table.to_text()}\n")
    return 0


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(page, error) from error


def _usage() -> str:
    from gossamer.reproduce import find, names

    rows = {name: _first_line(find(name)) for name in names()}
    return (
        "usage: gossamer reproduce NAME [options]\n       gossamer reproduce show FILE [options]\n\n"
        f"{columns(rows)}\n\ngossamer reproduce NAME --help says more."
    )


def _first_line(module: object) -> str:
    return (module.__doc__ or "").strip().splitlines()[0]
