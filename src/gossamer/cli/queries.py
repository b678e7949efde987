"""Commands that read runs: ``evaluate``, ``predict``, ``show`` and ``report``."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Literal

from gossamer.cli.parser import Parser, folder
from gossamer.record import Run
from gossamer.tables import columns

__all__ = [
    "add_evaluate_flags",
    "add_predict_flags",
    "add_report_flags",
    "add_show_flags",
    "evaluate",
    "predict",
    "report",
    "show",
]


def evaluate(given: list[str]) -> int:
    """Print the metrics of a run, computed again."""
    title = "The metrics of a run, computed again from its newest checkpoint."
    options = add_evaluate_flags(Parser("gossamer evaluate", title)).parse(given)
    Run.open(folder(options.run))  # reports a wrong path before the training loop is imported
    from gossamer.metrics.registry import texts
    from gossamer.runs.reader import evaluate_run

    metrics = evaluate_run(folder(options.run), options.n_draws, options.split)
    print(json.dumps(metrics, indent=1) if options.json else columns(texts(metrics)))
    return 0


def add_evaluate_flags(parser: Parser) -> Parser:
    """Flags of ``evaluate``."""
    parser.add_argument("run", help="The run folder.")
    parser.add_flag("n_draws", int | None, "Networks to draw; as in the settings of the run if not given.")
    parser.add_flag("split", Literal["train", "val", "test"], "Which part of the data.", "test")
    parser.add_flag("json", None, "Print JSON.")
    return parser


def predict(given: list[str]) -> int:
    """Print the predictions of a run for new inputs, as CSV or JSON."""
    parser = Parser("gossamer predict", "Predictions of a run for new inputs, as CSV.")
    options = add_predict_flags(parser).parse(given)
    Run.open(folder(options.run))
    from gossamer.runs.reader import predict_run

    rows = predict_run(folder(options.run), folder(options.input), options.n_draws)
    if options.json:
        print("\n".join(json.dumps(row) for row in rows))
        return 0
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row.values())
    return 0


def add_predict_flags(parser: Parser) -> Parser:
    """Flags of ``predict``."""
    parser.add_argument("run", help="The run folder.")
    parser.add_argument("input", help="A .npy array or a .csv table, one example per row.")
    parser.add_flag("n_draws", int | None, "Networks to draw; as in the settings of the run if not given.")
    parser.add_flag("json", None, "Print JSON, one object per line.")
    return parser


def show(given: list[str]) -> int:
    """Print a run in a few lines."""
    title = "A run in a few lines: its settings, how far it is, what it reached."
    options = add_show_flags(Parser("gossamer show", title)).parse(given)
    from gossamer.runs.reader import show as show_run

    print(show_run(folder(options.run)))
    return 0


def add_show_flags(parser: Parser) -> Parser:
    """Flags of ``show``."""
    parser.add_argument("run", help="The run folder.")
    return parser


def report(given: list[str]) -> int:
    """Write one HTML file about runs and print its path."""
    options = add_report_flags(Parser("gossamer report", "One HTML file about one run or several.")).parse(given)
    from gossamer.report import write_report

    folders: list[Path] = [folder(run) for run in options.runs]
    print(write_report(folders, folder(options.out) if options.out else folders[0] / "report.html"))
    return 0


def add_report_flags(parser: Parser) -> Parser:
    """Flags of ``report``."""
    parser.add_argument("runs", nargs="+", help="Run folders.")
    parser.add_flag("out", str | None, "The HTML file; report.html in the first run folder if not given.")
    return parser
