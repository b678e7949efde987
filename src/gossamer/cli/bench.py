"""``gossamer bench``."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from gossamer.cli.errors import UsageError
from gossamer.cli.parser import Parser, folder
from gossamer.names import suggestion
from gossamer.record import RecordError, write_atomically
from gossamer.record.files import unreadable

if TYPE_CHECKING:
    from gossamer.bench import Results, gpu
    from gossamer.bench.cpu import Plan

__all__ = ["KINDS", "cpu_parser", "gpu_parser", "run", "show_parser"]

SUFFIXES = (".png", ".svg", ".pdf")


def run(given: list[str]) -> int:
    """Measure what sparsity costs and saves, or show what was measured before."""
    if not given or given[0] in ("-h", "--help"):
        print(
            "usage: gossamer bench cpu [options]\n       gossamer bench gpu [options]\n"
            "       gossamer bench show FILE|FOLDER [options]\n\n"
            "What sparsity costs and saves on this machine. gossamer bench cpu --help says more."
        )
        return 0 if given else 2
    if given[0] not in KINDS:
        raise UsageError(f"bench takes one of {', '.join(KINDS)}{suggestion(given[0], KINDS) or '.'}")
    return KINDS[given[0]](given[1:])


def cpu_parser() -> Parser:
    """Flags of ``bench cpu``."""
    flags = Parser(
        "gossamer bench cpu",
        "Sparse layers and networks against dense LRT, masked tensors and deterministic networks: time, memory, and "
        "updates of the subspace. All take turns in one process; figures are medians with quartiles.",
    )
    flags.add_argument("--quick", action="store_true", help="The rows that have bars, few rounds: about a minute.")
    flags.add_flag("rounds", int | None, "How often each work has its turn; 7, or 3 with --quick (2 of a ResNet).")
    flags.add_flag("only", str | None, "Sections, with commas between them: layers, networks, memory, updates.")
    flags.add_flag("threads", int, "Threads; with more than one, wall time is used instead of CPU time.", 1)
    flags.add_flag("json", str | None, "Write everything to this file: raw samples, environment.")
    flags.add_argument("--quiet", action="store_true", help="No progress.")
    return _with_outputs(flags)


def gpu_parser() -> Parser:
    """Flags of ``bench gpu``."""
    flags = Parser(
        "gossamer bench gpu",
        "Training steps of a ResNet-18 on this GPU: deterministic, dense VI, SSVI at 5 % and the style of its released "
        "code; time, memory, set-up, and updates of the subspace. All take turns in one process; figures are medians "
        "with quartiles.",
    )
    flags.add_argument("--quick", action="store_true", help="The ways that have bars, few rounds: under two minutes.")
    flags.add_flag("rounds", int | None, "How often each way has its turn; 11, or 7 with --quick.")
    flags.add_flag("batch", int, "Images a step; bars are judged at 128.", 128)
    flags.add_flag("json", str | None, "Write everything to this file: raw samples, environment.")
    flags.add_argument("--quiet", action="store_true", help="No progress.")
    flags.add_flag("markdown", str | None, "Write the tables to this file as Markdown.")
    flags.add_argument("--check", action="store_true", help="Exit with 1 if a bar is missed.")
    return flags


def show_parser() -> Parser:
    """Flags of ``bench show``."""
    flags = Parser(
        "gossamer bench show",
        "The tables of a benchmark that was written with --json, or of a folder of results: runs of recipes "
        "(<recipe>/<seed>/) and files of gossamer compare --json.",
    )
    flags.add_argument("file", type=str, help="The JSON file, or the folder.")
    flags.add_argument(
        "--into",
        nargs="+",
        default=[],
        help="Pages whose places <!-- bench:DEVICE:NAME --> … <!-- /bench --> are filled.",
    )
    return _with_outputs(flags)


def _with_outputs(flags: Parser) -> Parser:
    flags.add_flag("markdown", str | None, "Write the tables to this file as Markdown.")
    flags.add_flag("plot", str | None, f"Draw speed-up against density in this file ({', '.join(SUFFIXES)}).")
    flags.add_argument("--check", action="store_true", help="Exit with 1 if a bar is missed.")
    return flags


def _cpu(given: list[str]) -> int:
    options = cpu_parser().parse(given)
    outputs = {name: folder(path) for name in ("json", "markdown", "plot") if (path := getattr(options, name))}
    _check_outputs(outputs)  # in a quarter of an hour it would be too late
    plan = _plan(options)
    from gossamer.bench import cpu
    from gossamer.kernels import library

    if not library.LIBRARY:
        raise UsageError(
            "the native kernels are not built, so there is nothing to measure: pip install gossamer where there is a "
            "C++ compiler, or python setup.py build_ext --inplace"
        )
    results = cpu.measure(plan, options.threads, quiet=options.quiet)
    if "json" in outputs:
        results.write(outputs["json"])
    return _present(results, outputs, check=options.check)


def _plan(options: Namespace) -> Plan:
    from gossamer.bench import cpu

    if options.threads < 1 or (options.rounds is not None and options.rounds < 1):
        raise UsageError(f"--threads and --rounds count from 1; got {options.threads} and {options.rounds}")
    plan = cpu.QUICK if options.quick else cpu.FULL
    if options.only is not None:
        sections = [name.strip() for name in options.only.split(",") if name.strip()]
        for name in sections:
            if name not in cpu.SECTIONS:
                hint = suggestion(name, cpu.SECTIONS) or "."
                raise UsageError(f"--only takes {', '.join(cpu.SECTIONS)}; got {name!r}{hint}")
        plan = plan.restricted(sections)
    return plan if options.rounds is None else plan.with_rounds(options.rounds)


def _gpu(given: list[str]) -> int:
    options = gpu_parser().parse(given)
    outputs = {name: folder(path) for name in ("json", "markdown") if (path := getattr(options, name))}
    _check_outputs(outputs)
    plan = _gpu_plan(options)
    import torch

    from gossamer.bench import gpu

    if not torch.cuda.is_available():
        raise UsageError("bench gpu needs a CUDA device, and torch sees none; gossamer bench cpu measures this CPU")
    results = gpu.measure(plan, quiet=options.quiet)
    if "json" in outputs:
        results.write(outputs["json"])
    return _present(results, outputs, check=options.check)


def _gpu_plan(options: Namespace) -> gpu.Plan:
    from gossamer.bench import gpu

    if options.batch < 1 or (options.rounds is not None and options.rounds < 1):
        raise UsageError(f"--batch and --rounds count from 1; got {options.batch} and {options.rounds}")
    plan = gpu.QUICK if options.quick else gpu.FULL
    return replace(plan, batch=options.batch, rounds=options.rounds or plan.rounds)


def _show(given: list[str]) -> int:
    options = show_parser().parse(given)
    outputs = {name: folder(path) for name in ("markdown", "plot") if (path := getattr(options, name))}
    _check_outputs(outputs)
    path, pages = folder(options.file), list(map(folder, options.into))
    if path.is_dir():
        if outputs or options.check:
            raise UsageError("--markdown, --plot and --check are for a file of gossamer bench, not for a folder")
        return _show_folder(path, pages)
    from gossamer.bench import Results, fill

    results = Results.read(path)
    _fill(pages, lambda text: fill(text, results))
    return _present(results, outputs, check=options.check)


def _show_folder(path: Path, pages: list[Path]) -> int:
    from gossamer.bench.recorded import fill_recorded, recorded_tables

    tables = recorded_tables(path)
    if not tables:
        raise RecordError(f"{path} holds no run of a recipe and no file of gossamer compare --json")
    _fill(pages, lambda text: fill_recorded(text, path))
    print("\n\n".join(f"{name}: {table.to_text()}" for name, table in tables.items()))
    return 0


def _fill(pages: list[Path], filled: Callable[[str], str]) -> None:
    for page in pages:
        try:
            text = page.read_text(encoding="utf-8")
        except OSError as error:
            raise unreadable(page, error) from error
        try:
            write_atomically(page, filled(text))
        except ValueError as error:
            raise RecordError(f"{page}: {error}") from error


def _present(results: Results, outputs: dict[str, Path], *, check: bool) -> int:
    """Write the files, print the tables; returns the exit code."""
    from gossamer.bench import all_tables, document, judge, plot
    from gossamer.bench.pages import headline

    if "markdown" in outputs:
        write_atomically(outputs["markdown"], document(results))
    if "plot" in outputs:
        plot(results, outputs["plot"])
    print(headline(results))
    for table in all_tables(results).values():
        print(f"\n{table.to_text()}")
    missed = [verdict for verdict in judge(results) if verdict.met is False]
    return 1 if check and missed else 0


def _check_outputs(outputs: dict[str, Path]) -> None:
    for name, path in outputs.items():
        if not path.parent.is_dir():
            raise UsageError(f"--{name} {path}: the folder {path.parent} does not exist")
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"--{name} {path}: permission denied, nothing can be written in {path.parent}")
        if path.is_dir():
            raise UsageError(f"--{name} {path} is a folder, give a file in it")
        if name == "plot" and path.suffix not in SUFFIXES:
            raise UsageError(f"--plot {path} must end in {', '.join(SUFFIXES)}")
        if name == "plot" and importlib.util.find_spec("matplotlib") is None:
            raise UsageError("--plot needs matplotlib: pip install 'gossamer[bench]'")


KINDS: dict[str, Callable[[list[str]], int]] = {"cpu": _cpu, "gpu": _gpu, "show": _show}
