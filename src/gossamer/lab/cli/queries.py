"""Commands that read runs: ``runs``, ``show``, ``report``, ``export``, ``predict`` and ``evaluate``."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal

from gossamer._text.formats import plain
from gossamer._text.terminal import Table, columns, printable
from gossamer.lab.cli import UsageError
from gossamer.lab.cli.parser import Parser, add_reading_flags, folder, names_of, writable
from gossamer.lab.record import RecordError, Run

TITLES = {
    "export": "The trained network of a run in a file for other runtimes; it reads inputs as the data set stores them.",
    "runs": "The runs in a folder and in its comparisons, the oldest first.",
    "show": "A run in a few lines: its settings, how far it is, what it reached.",
    "report": "One HTML file about one run or several, or about a sweep.",
    "predict": "Predictions of a run for new inputs: classes with probabilities, or means with intervals.",
    "evaluate": "The metrics of a run, computed again; out-of-distribution detection, corruptions, calibration.",
}


def runs(given: list[str]) -> int:
    """Print a table of the runs in a folder."""
    options = _parse("runs", given)
    from gossamer.lab.record.run import find_runs, runs_table

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
    from gossamer.lab.runs.reading import load_run, stored_temperature

    file = folder(options.out) if options.out else run / f"{options.what}{SUFFIX[options.format]}"
    trained = load_run(run, device="cpu")
    if options.temperature:
        trained.posterior.temperature *= stored_temperature(Run.open(run))
    print(trained.export(file, format=options.format, what=options.what, n_draws=options.n_draws))
    return 0


def show(given: list[str]) -> int:
    """Print a run in a few lines."""
    options = _parse("show", given)
    from gossamer.lab.runs.folders import show as show_run

    print(printable(show_run(folder(options.run))))
    return 0


def report(given: list[str]) -> int:
    """Write one HTML file about runs and print its path."""
    options = _parse("report", given)
    from gossamer.lab.record.run import find_runs
    from gossamer.lab.report import write_report
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
    if command == "predict":
        _add_predict_flags(parser)
    if command == "evaluate":
        _add_evaluate_flags(parser)
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


def predict(given: list[str]) -> int:
    """Print or write the predictions of a run for new inputs."""
    options = _parse("predict", given)
    from gossamer.data.own import files  # not for a help, for which nobody waits

    out = writable("out", options.out)
    if out is not None and out.suffix.lower() not in files.WRITTEN:
        raise UsageError(f"--out {out}: predictions are written to {', '.join(files.WRITTEN)} files")
    run = Run.open(folder(options.run))  # reports a wrong path before the training loop is imported
    from gossamer.lab.runs.reading import predict_run

    source = options.input if options.input == "-" else folder(options.input)
    settings = {name: getattr(options, name) for name in ("level", "conformal", "temperature", "data", "quiet")}
    rows = predict_run(run.folder, source, options.n_draws, **settings)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    write = None if out is None else (files.FILES[".jsonl"] if options.json else files.kind_of(out)).write
    if out is not None and write is not None:
        write(out, columns)
        print(f"predictions: {out} ({len(rows):,} rows)")
    else:
        sys.stdout.write(files.json_lines(columns) if options.json else files.csv_of(columns))
    return 0


def _add_predict_flags(parser: Parser) -> None:
    parser.add_argument(
        "input", help="A table, an array, an image, a folder of images, or - for CSV of standard input."
    )
    parser.add_flag("out", str | None, "File to write, such as .csv; standard output if not given.")
    parser.add_flag("level", float, "Probability of the intervals of numbers.", 0.9)
    parser.add_flag("conformal", float | None, "Sets or intervals of this probability, as evaluate --conformal learnt.")
    parser.add_flag("temperature", None, "Divide the logits as evaluate --temperature learnt.")
    parser.add_flag("n_draws", int | None, "Networks to draw; as in the settings of the run if not given.")
    parser.add_flag("json", None, "Print JSON, one object per line.")
    add_reading_flags(parser)


def evaluate(given: list[str]) -> int:
    """Print the metrics of a run, computed again, and what else was asked for."""
    options = _parse("evaluate", given)
    if options.conformal is not None and not 0 < options.conformal < 1:
        raise UsageError(f"--conformal must be between 0 and 1, as 0.9 for 90 %; got {options.conformal}")
    Run.open(folder(options.run))  # reports a wrong path before the training loop is imported
    from gossamer.lab.runs.evaluation import evaluate_run, keeping_parts, opened
    from gossamer.metrics.registry import texts

    job = opened(folder(options.run), options.n_draws, options.data)
    with keeping_parts(job):
        found: dict[str, Any] = evaluate_run(job, split=options.split, quiet=options.quiet)
        tables = [columns(texts(found))]
        for name, value, views in _more(options, job):
            found[name] = value
            tables += [plain(view._replace(title="", note="").to_text()) for view in views]
    print(json.dumps(found, indent=1) if options.json else "\n\n".join(tables))
    return 0


def _add_evaluate_flags(parser: Parser) -> None:
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
    parser.add_flag(
        "conformal",
        float | None,
        "Sets of classes, or intervals, with this probability of containing the truth, by the held-out split.",
        group=more,
    )
    add_reading_flags(parser)


def _more(options: Any, job: Any) -> Iterator[tuple[str, Any, list[Table]]]:
    """Name, numbers and tables of each further thing that was asked for."""
    from gossamer.lab.report import evaluation as tables
    from gossamer.lab.runs import evaluation

    if options.ood:
        value = evaluation.evaluate_ood(job, names_of(options.ood))
        yield "ood", value, [tables.ood_table(value)]
    if options.corruptions:
        value = evaluation.evaluate_corruptions(job, options.corruptions, quiet=options.json)
        yield "corruptions", value, tables.corruption_tables(value)
    if options.temperature:
        value = evaluation.evaluate_temperature(job)
        yield "temperature", value, [tables.temperature_table(value)]
    if options.selective:
        value = evaluation.evaluate_selective(job)
        yield "selective", value, [tables.selective_table(value)]
    if options.conformal:
        value = evaluation.evaluate_conformal(job, options.conformal)
        yield "conformal", value, [tables.conformal_table(value)]
