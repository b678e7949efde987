"""The page of a sweep: its best trial, what it found in time, all trials."""

from pathlib import Path

from gossamer._text.formats import duration, is_number, number
from gossamer.lab.record import write_atomically
from gossamer.lab.report import write_report
from gossamer.lab.report.page import card, document, headline, section
from gossamer.lab.report.parts import Html, element, join
from gossamer.metrics import METRICS
from gossamer_sweep import figures
from gossamer_sweep.record import SweepRecord


def write_sweep(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a sweep from its ``sweep.json``, and the report of its best trial, as far as they are here.

    Args:
        folder: The folder of the sweep.
        out: The file; ``report.html`` in the folder if not given.
    """
    record = SweepRecord.read(folder)
    best, out = record.best, out or folder / "report.html"
    out = out / "report.html" if out.is_dir() else out
    if best is not None and (folder / best.folder / "config.toml").exists():
        write_report([folder / best.folder], folder / best.folder)
    write_atomically(out, document(*_sweep(record, folder, out)))
    return out


def _sweep(record: SweepRecord, folder: Path, out: Path) -> tuple[str, Html]:
    title = f"Sweep of {record.method} on {record.data}"
    states = [f"{n} {state}" for state in ("finished", "pruned", "failed", "running") if (n := record.count(state))]
    seconds = sum(one.seconds or 0.0 for one in record.trials)
    took = [f"{duration(seconds)} of training"] if seconds else []
    subtitle = " · ".join([record.study, f"{len(record.trials)} of {record.asked} trials", *states, *took])
    again = element("pre", element("code", record.command), class_="command wide")
    parts = [
        element("header", element("h1", title), element("p", subtitle, class_="subtitle")),
        headline(_best(record)),
        section("Search", figures.figures(record), "All by the held-out examples; the test data have chosen nothing."),
        section("All trials", [figures.table(record, folder, out)], "A heading sorts."),
        section("Failures", figures.failures(record)),
        section("Train the best on all training data", [again]) if record.command else None,
    ]
    return title, join(parts)


def _best(record: SweepRecord) -> list[Html]:
    """The best trial: what it reached, and its values."""
    best, metric = record.best, METRICS[record.metric]
    if best is None:
        return []
    label = f"Best {metric.label}, held out"
    cards = [card(record.metric, metric.format(best.objective or 0.0), f"Trial {best.number}.", label=label)]
    for name, value in best.values.items():
        text = number(value) if is_number(value) else str(value)
        where = element("p", f"Searched: {figures.searched(record.space[name])}.", class_="meaning")
        cards.append(element("div", element("h3", name), element("p", text, class_="value"), where, class_="card"))
    return cards
