"""``gossamer evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from gossamer.cli.parser import Parser
from gossamer.record import Run
from gossamer.tables import columns

__all__ = ["parser", "run"]


def run(given: list[str]) -> int:
    """Print the metrics of a run, computed again."""
    options = parser().parse(given)
    Run.open(Path(options.run))  # a wrong path is found out before the training loop is imported
    from gossamer.runs.reader import evaluate_run

    metrics = evaluate_run(options.run, options.n_draws, options.split)
    print(json.dumps(metrics, indent=1) if options.json else columns({k: f"{v:.4f}" for k, v in metrics.items()}))
    return 0


def parser() -> Parser:
    """Its flags."""
    flags = Parser("gossamer evaluate", "The metrics of a run, computed again from its newest checkpoint.")
    flags.add_argument("run", type=str, help="The run folder.")
    flags.add_flag("n_draws", int | None, "Networks to draw; as the run was told if not given.")
    flags.add_flag("split", Literal["train", "val", "test"], "Which part of the data.", "test")
    flags.add_argument("--json", action="store_true", help="As JSON.")
    return flags
