"""Commands that read runs and print or write one thing: ``runs``, ``show``, ``report`` and ``export``."""

from __future__ import annotations

import sys
from typing import Any, Literal

from gossamer._text.tables import printable
from gossamer.lab.cli.parser import Parser, folder
from gossamer.lab.record import RecordError, Run

TITLES = {
    "export": "The trained network of a run in a file for other runtimes; it reads inputs as the data set stores them.",
    "runs": "The runs in a folder and in its comparisons, the oldest first.",
    "show": "A run in a few lines: its settings, how far it is, what it reached.",
    "report": "One HTML file about one run or several, or about a sweep.",
}


def runs(given: list[str]) -> int:
    """Print a table of the runs in a folder."""
    options = _parse("runs", given)
    from gossamer.lab.runs.inventory import find_runs, runs_table

    found = find_runs(folder(options.folder))
    if found:
        print(runs_table(found).to_text())
    else:
        print(f"there are no runs in {options.folder}: gossamer train makes one", file=sys.stderr)
    return 0


def export(given: list[str]) -> int:
    """Write the network of a run for other runtimes and print the path of the file."""
    options = _parse("export", given)
    run = folder(options.run)
    Run.open(run)
    from gossamer.deploy.programs import SUFFIX
    from gossamer.lab.runs.reading import stored_temperature
    from gossamer.lab.runs.result import load_run

    file = folder(options.out) if options.out else run / f"{options.what}{SUFFIX[options.format]}"
    trained = load_run(run, device="cpu")
    if options.temperature:
        trained.posterior.temperature *= stored_temperature(Run.open(run))
    print(trained.export(file, format=options.format, what=options.what, n_draws=options.n_draws))
    return 0


def show(given: list[str]) -> int:
    """Print a run in a few lines."""
    options = _parse("show", given)
    from gossamer.lab.runs.reading import show as show_run

    print(printable(show_run(folder(options.run))))
    return 0


def report(given: list[str]) -> int:
    """Write one HTML file about runs and print its path."""
    options = _parse("report", given)
    from gossamer.lab.report import write_report
    from gossamer.lab.runs.inventory import find_runs
    from gossamer_sweep import write_sweep
    from gossamer_sweep.record import SWEEP

    given_folders = [folder(run) for run in options.run]
    out = folder(options.out) if options.out else None
    if len(given_folders) == 1 and (given_folders[0] / SWEEP).exists():
        print(write_sweep(given_folders[0], out))
        return 0
    found = [run.folder for one in given_folders for run in find_runs(one)]
    if not found:
        raise RecordError(
            f"{given_folders[0]} is neither a run nor the folder of a comparison or a sweep: give one of these"
        )
    print(write_report(found, out or given_folders[0] / "report.html"))
    return 0


def add_flags(parser: Parser, command: str) -> Parser:
    """The flags of one of these commands."""
    if command == "report":
        parser.add_argument("run", nargs="+", help="Run folders, or the folder of a comparison or a sweep.")
        parser.add_flag("out", str | None, "The HTML file; report.html in the first folder if not given.")
        return parser
    if command == "runs":
        parser.add_argument("folder", nargs="?", default="runs", help="The folder of the runs; runs if not given.")
        return parser
    parser.add_argument("run", help="The run folder.")
    if command == "export":
        whats = "mean, the network at its means; noise, a draw at each call; draws, several networks in one."
        parser.add_flag("format", Literal["onnx", "torch-export"], "Format of the file.", "onnx")
        parser.add_flag("what", Literal["mean", "noise", "draws"], f"What to export: {whats}", "mean")
        parser.add_flag("n_draws", int | None, "Networks of draws; as in the settings of the run if not given.")
        parser.add_flag("temperature", None, "Divide the logits as evaluate --temperature learnt.")
        parser.add_flag("out", str | None, "The file; in the run folder if not given.")
        parser.add_flag("trust", str | None, "Code of yours, module:function with commas, that the run may import.")
    return parser


def _parse(command: str, given: list[str]) -> Any:
    return add_flags(Parser(f"gossamer {command}", TITLES[command]), command).parse(given)
