"""``gossamer predict``."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from gossamer.cli.parser import Parser
from gossamer.record import Run

__all__ = ["parser", "run"]


def run(given: list[str]) -> int:
    """Print the predictions of a run for new inputs, as CSV or JSON."""
    options = parser().parse(given)
    Run.open(Path(options.run))  # a wrong path is found out before the training loop is imported
    from gossamer.runs.reader import predict_run

    rows = predict_run(options.run, options.input, options.n_draws)
    if options.json:
        print("\n".join(json.dumps(row) for row in rows))
        return 0
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row.values())
    return 0


def parser() -> Parser:
    """Its flags."""
    flags = Parser("gossamer predict", "Predictions of a run for new inputs, as CSV.")
    flags.add_argument("run", type=str, help="The run folder.")
    flags.add_argument("input", type=str, help="A .npy array or a .csv table, one example a row.")
    flags.add_flag("n_draws", int | None, "Networks to draw; as the run was told if not given.")
    flags.add_argument("--json", action="store_true", help="As JSON, one object a line.")
    return flags
