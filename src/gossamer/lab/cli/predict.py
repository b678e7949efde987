"""``gossamer predict``: predictions of a run for new inputs, to standard output or a file."""

from __future__ import annotations

import sys

from gossamer.lab.cli import UsageError
from gossamer.lab.cli.parser import Parser, add_reading_flags, folder, writable
from gossamer.lab.record import Run


def predict(given: list[str]) -> int:
    """Print or write the predictions of a run for new inputs."""
    title = "Predictions of a run for new inputs: classes with probabilities, or means with intervals."
    options = add_predict_flags(Parser("gossamer predict", title)).parse(given)
    from gossamer.data.own.files import FILES, WRITTEN, json_lines, kind_of  # not for a help, for which nobody waits
    from gossamer.data.own.frames import csv_of

    out = writable("out", options.out)
    if out is not None and out.suffix.lower() not in WRITTEN:
        raise UsageError(f"--out {out}: predictions are written to {', '.join(WRITTEN)} files")
    run = Run.open(folder(options.run))  # reports a wrong path before the training loop is imported
    from gossamer.lab.runs.reading import predict_run

    source = options.input if options.input == "-" else folder(options.input)
    settings = {name: getattr(options, name) for name in ("level", "conformal", "temperature", "data", "quiet")}
    rows = predict_run(run.folder, source, options.n_draws, **settings)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    write = (FILES[".jsonl"] if options.json or out is None else kind_of(out)).write
    if out is not None and write is not None:
        write(out, columns)
        print(f"predictions: {out} ({len(rows):,} rows)")
    elif options.json:
        sys.stdout.write(json_lines(columns))
    else:
        sys.stdout.write(csv_of(columns))
    return 0


def add_predict_flags(parser: Parser) -> Parser:
    """Flags of ``predict``."""
    parser.add_argument("run", help="The run folder.")
    parser.add_argument(
        "input", help="A table, an array, an image, a folder of images, or - for CSV of standard input."
    )
    parser.add_flag("out", str | None, "File to write, such as .csv; standard output if not given.")
    parser.add_flag("level", float, "Probability of the intervals of numbers.", 0.9)
    parser.add_flag("conformal", float | None, "Sets or intervals of this probability, as evaluate --conformal learnt.")
    parser.add_flag("temperature", None, "Divide the logits as evaluate --temperature learnt.")
    parser.add_flag("n_draws", int | None, "Networks to draw; as in the settings of the run if not given.")
    parser.add_flag("json", None, "Print JSON, one object per line.")
    return add_reading_flags(parser)
