"""``python -m reproductions``: measure a table or figure of a paper again, or show what was measured before.

Those of EM-MCMC have a command of their own; the flags of a reproduction are the arguments of its function ``plan``.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from docstring_parser import parse

from gossamer.files.atomic import unreadable
from gossamer.lab.record import RecordError, write_atomically
from reproductions import NAMES, StoredParts, command, fill, find, reproduce
from reproductions.parts import document

__all__ = ["main"]

SUFFIXES = (".png", ".svg", ".pdf")


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 fine, 1 failure, 2 usage, 130 interrupted."""
    words = sys.argv[1:] if given is None else list(given)
    if not words or words[0] not in ("show", *NAMES):
        return command.main(words)
    try:
        options = _parser().parse_args(words)
        return _show(options) if options.name == "show" else _reproduce(options)
    except KeyboardInterrupt:
        print("reproductions: stopped; the same command goes on from what is finished", file=sys.stderr)
        return 130
    except (RecordError, ValueError, OSError) as error:
        print(f"reproductions: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m reproductions", allow_abbrev=False)
    kinds = parser.add_subparsers(dest="name", required=True)
    for name in NAMES:
        module = find(name)
        title = (module.__doc__ or "").strip().splitlines()[0]
        flags = kinds.add_parser(name, help=title.replace("%", "%%"), description=title)
        texts = {item.arg_name: item.description or "" for item in parse(module.plan.__doc__ or "").params}
        for option, parameter in inspect.signature(module.plan).parameters.items():
            if parameter.default is parameter.empty:
                flags.add_argument(option, nargs="+", metavar=option.upper().removesuffix("S"), help=texts.get(option))
                continue
            kind = int if parameter.default is None else type(parameter.default)
            flag = f"--{option.replace('_', '-')}"
            flags.add_argument(flag, dest=option, type=kind, default=parameter.default, help=texts.get(option))
        flags.add_argument("--out", type=Path, default=Path("runs", name), help="folder of the results")
        flags.add_argument("--quiet", action="store_true", help="no progress")
    flags = kinds.add_parser("show", help="tables and picture of stored results")
    flags.add_argument("file", type=Path, help="a results.json")
    flags.add_argument("--into", nargs="+", type=Path, default=[], help="pages whose marked places are filled")
    flags.add_argument("--markdown", type=Path, help="write the tables to this file as Markdown")
    flags.add_argument("--plot", type=_picture, help=f"draw the picture in this file ({', '.join(SUFFIXES)})")
    return parser


def _picture(text: str) -> Path:
    if Path(text).suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text} must end in {', '.join(SUFFIXES)}")
    return Path(text)


def _reproduce(options: argparse.Namespace) -> int:
    chosen = find(options.name)
    flags = {name: getattr(options, name) for name in inspect.signature(chosen.plan).parameters}
    try:
        plan = chosen.plan(**flags)
    except ValueError as error:
        print(f"reproductions: {error}", file=sys.stderr)
        return 2
    results, files = reproduce(options.name, chosen, plan, options.out, quiet=options.quiet)
    for table in chosen.tables(results).values():
        print(f"{table.to_text()}\n")
    print(f"files: {', '.join(map(str, files))}")
    return 0


def _show(options: argparse.Namespace) -> int:
    results = StoredParts.read(options.file)
    chosen = find(results.name)
    for page in options.into:
        try:
            text = page.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(page, error) from error
        try:
            write_atomically(page, fill(text, results, chosen))
        except ValueError as error:
            raise RecordError(f"{page}: {error}") from error
    if options.markdown:
        write_atomically(options.markdown, document(results, chosen))
    if options.plot:
        chosen.plot(results, options.plot)
    for table in chosen.tables(results).values():
        print(f"{table.to_text()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
