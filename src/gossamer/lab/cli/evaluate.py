"""``gossamer evaluate``: the metrics of a run, and how far they can be trusted."""

from __future__ import annotations

import json
from typing import Any, Literal

from gossamer._text.formats import plain
from gossamer._text.tables import Table, columns
from gossamer.lab.cli import UsageError
from gossamer.lab.cli.parser import Parser, add_reading_flags, folder, names_of
from gossamer.lab.record import Run


def evaluate(given: list[str]) -> int:
    """Print the metrics of a run, computed again, and what else was asked for."""
    title = "The metrics of a run, computed again; out-of-distribution detection, corruptions, calibration."
    options = add_evaluate_flags(Parser("gossamer evaluate", title)).parse(given)
    _check(options)
    Run.open(folder(options.run))  # reports a wrong path before the training loop is imported
    from gossamer.lab.runs.evaluation import evaluate_run
    from gossamer.metrics.registry import texts

    settings = {"data": options.data, "quiet": options.quiet}
    found: dict[str, Any] = evaluate_run(folder(options.run), options.n_draws, options.split, **settings)
    tables = [columns(texts(found))]
    for name, (value, views) in _more(options).items():
        found[name] = value
        tables += [plain(view._replace(title="", note="").to_text()) for view in views]
    print(json.dumps(found, indent=1) if options.json else "\n\n".join(tables))
    return 0


def add_evaluate_flags(parser: Parser) -> Parser:
    """Flags of ``evaluate``."""
    parser.add_argument("run", help="The run folder.")
    parser.add_flag("n_draws", int | None, "Networks to draw; as in the settings of the run if not given.")
    parser.add_flag("split", Literal["train", "val", "test"], "Which part of the data.", "test")
    parser.add_flag("json", None, "Print JSON.")
    more = parser.add_argument_group("beyond the metrics of a split; kept in evaluation.json of the run")
    parser.add_flag(
        "ood",
        str | None,
        "How well doubt finds inputs from outside: data sets, files, uniform or permuted, with commas between them.",
        group=more,
    )
    more.add_argument(
        "--corruptions",
        nargs="?",
        const="generated",
        metavar="FOLDER",
        help="15 corruptions of the test images at 5 severities, or those of published files (CIFAR-10-C) in a folder.",
    )
    parser.add_flag("temperature", None, "Temperature scaling of the logits on the held-out split.", group=more)
    parser.add_flag("selective", None, "Accuracy when the network may abstain, by score.", group=more)
    parser.add_flag("risk", float | None, "Abstain so that at most this share of the answers is wrong.", group=more)
    parser.add_flag(
        "conformal",
        float | None,
        "Sets of classes, or intervals, with this probability of containing the truth, by the held-out split.",
        group=more,
    )
    return add_reading_flags(parser)


def _check(options: Any) -> None:
    """Reject what cannot work before anything is loaded."""
    for name in ("risk", "conformal"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 1:
            raise UsageError(f"--{name} must be between 0 and 1, as 0.9 for 90 %; got {value}")


def _more(options: Any) -> dict[str, tuple[Any, list[Table]]]:
    """What was asked for beside the metrics, and the tables that show it."""
    asked = (options.ood, options.corruptions, options.temperature, options.selective, options.risk, options.conformal)
    if not any(asked):
        return {}
    from gossamer.lab.report import evaluation as tables
    from gossamer.lab.runs import evaluation, shift

    job = evaluation.opened(folder(options.run), options.n_draws, options.data)
    found: dict[str, tuple[Any, list[Table]]] = {}
    if options.ood:
        value = shift.evaluate_ood(job, names_of(options.ood))
        found["ood"] = value, [tables.ood_table(value)]
    if options.corruptions:
        value = shift.evaluate_corruptions(job, options.corruptions, quiet=options.json)
        found["corruptions"] = value, tables.corruption_tables(value)
    if options.temperature:
        value = evaluation.evaluate_temperature(job)
        found["temperature"] = value, [tables.temperature_table(value)]
    if options.selective or options.risk:
        value = evaluation.evaluate_selective(job, options.risk)
        found["selective"] = value, [tables.selective_table(value)]
    if options.conformal:
        value = evaluation.evaluate_conformal(job, options.conformal)
        found["conformal"] = value, [tables.conformal_table(value)]
    return found
