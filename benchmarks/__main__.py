"""``python -m benchmarks``: measure what sparsity costs and saves on this machine, or show what was measured before."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import cpu, gpu
from benchmarks.bars import judge
from benchmarks.measurements import Measurements
from benchmarks.pages import document, fill, fill_recorded, headline, recorded_tables
from benchmarks.plot import plot
from benchmarks.tables import all_tables
from gossamer.files.atomic import unreadable
from gossamer.kernels import library
from gossamer.lab.record import RecordError, write_atomically

__all__ = ["main"]

SUFFIXES = (".png", ".svg", ".pdf")

Run = Callable[[argparse.Namespace], int]


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 fine, 1 failure or a missed bar, 2 usage."""
    parser = _parser()
    options = parser.parse_args(given)
    try:
        code: int = options.run(options)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    except (RecordError, ValueError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description="What sparsity costs and saves on this machine.", allow_abbrev=False
    )
    kinds = parser.add_subparsers(required=True, metavar="cpu|gpu|show")
    flags = kinds.add_parser("cpu", help="layers, networks, memory and updates of the subspace on this CPU")
    flags.add_argument("--quick", action="store_true", help="only the rows that have bars, few rounds: about a minute")
    flags.add_argument("--rounds", type=_count, help="turns of each work; 7, or 3 with --quick (2 for a ResNet)")
    flags.add_argument("--only", type=_sections, help=f"sections, with commas between: {', '.join(cpu.SECTIONS)}")
    flags.add_argument("--threads", type=_count, default=1, help="with more than one, wall time instead of CPU time")
    flags.add_argument("--plot", type=Path, help=f"draw speed-up against density in this file ({', '.join(SUFFIXES)})")
    _add_common(flags, _cpu)
    flags = kinds.add_parser("gpu", help="training steps of a ResNet-18 on this GPU")
    flags.add_argument("--quick", action="store_true", help="only the ways that have bars, few rounds: two minutes")
    flags.add_argument("--rounds", type=_count, help="turns of each way; 11, or 7 with --quick")
    flags.add_argument("--batch", type=_count, default=128, help="images per step; bars are judged at 128")
    _add_common(flags, _gpu)
    flags = kinds.add_parser("show", help="the tables of a stored measurement, or of a folder of results")
    flags.add_argument("file", type=Path, help="a file written with --json, or a folder of results")
    flags.add_argument("--into", nargs="+", type=Path, default=[], help="pages whose marked places are filled")
    flags.add_argument("--plot", type=Path, help=f"draw speed-up against density in this file ({', '.join(SUFFIXES)})")
    _add_common(flags, _show, measures=False)
    return parser


def _add_common(flags: argparse.ArgumentParser, run: Run, *, measures: bool = True) -> None:
    flags.set_defaults(run=run)
    flags.add_argument("--markdown", type=Path, help="write the tables to this file as Markdown")
    flags.add_argument("--check", action="store_true", help="print the acceptance bars; exit with 1 if one is missed")
    if measures:
        flags.add_argument("--json", type=Path, help="write everything to this file: raw samples, environment")
        flags.add_argument("--quiet", action="store_true", help="no progress")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1; got {text!r}")
    return int(text)


def _sections(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in cpu.SECTIONS]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"takes {', '.join(cpu.SECTIONS)}; got {', '.join(wrong) or 'nothing'}")
    return names


def _cpu(options: argparse.Namespace) -> int:
    _check_outputs(options)  # in a quarter of an hour it would be too late
    if not library.LIBRARY:
        raise argparse.ArgumentTypeError(
            "the native kernels are not built, so there is nothing to measure: python setup.py build_ext --inplace"
        )
    plan = cpu.QUICK if options.quick else cpu.FULL
    plan = plan if options.only is None else plan.restricted(options.only)
    plan = plan if options.rounds is None else plan.with_rounds(options.rounds)
    return _present(cpu.measure(plan, options.threads, quiet=options.quiet), options)


def _gpu(options: argparse.Namespace) -> int:
    _check_outputs(options)
    if not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("gpu needs a CUDA device, and torch sees none")
    plan = gpu.QUICK if options.quick else gpu.FULL
    plan = replace(plan, batch=options.batch, rounds=options.rounds or plan.rounds)
    return _present(gpu.measure(plan, quiet=options.quiet), options)


def _show(options: argparse.Namespace) -> int:
    _check_outputs(options)
    if options.file.is_dir():
        if options.markdown or options.plot or options.check:
            raise argparse.ArgumentTypeError("--markdown, --plot and --check are for a file, not for a folder")
        return _show_folder(options.file, options.into)
    results = Measurements.read(options.file)
    _fill(options.into, lambda text: fill(text, results))
    return _present(results, options)


def _show_folder(path: Path, pages: Sequence[Path]) -> int:
    tables = recorded_tables(path)
    if not tables:
        raise RecordError(f"{path} holds no run of a recipe and no comparison.json of gossamer compare")
    _fill(pages, lambda text: fill_recorded(text, path))
    print("\n\n".join(f"{name}: {table.to_text()}" for name, table in tables.items()))
    return 0


def _fill(pages: Sequence[Path], filled: Callable[[str], str]) -> None:
    for page in pages:
        try:
            text = page.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(page, error) from error
        try:
            write_atomically(page, filled(text))
        except ValueError as error:
            raise RecordError(f"{page}: {error}") from error


def _present(results: Measurements, options: argparse.Namespace) -> int:
    """Write the files, print the tables; returns the exit code."""
    if getattr(options, "json", None):
        results.write(options.json)
    if options.markdown:
        write_atomically(options.markdown, document(results))
    if getattr(options, "plot", None):
        plot(results, options.plot)
    print(headline(results))
    for name, table in all_tables(results).items():
        if name != "bars" or options.check:
            print(f"\n{table.to_text()}")
    missed = any(verdict.met is False for verdict in judge(results))
    return 1 if options.check and missed else 0


def _check_outputs(options: argparse.Namespace) -> None:
    for name in ("json", "markdown", "plot"):
        path = getattr(options, name, None)
        if path is None:
            continue
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"--{name} {path}: the folder {path.parent} does not exist")
        if not os.access(path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"--{name} {path}: permission denied in {path.parent}")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"--{name} {path} is a folder, give a file in it")
        if name == "plot" and path.suffix not in SUFFIXES:
            raise argparse.ArgumentTypeError(f"--plot {path} must end in {', '.join(SUFFIXES)}")
        if name == "plot" and importlib.util.find_spec("matplotlib") is None:
            raise argparse.ArgumentTypeError("--plot needs matplotlib: pip install matplotlib")


if __name__ == "__main__":
    sys.exit(main())
