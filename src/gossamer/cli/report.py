"""``gossamer report``."""

from __future__ import annotations

from pathlib import Path

from gossamer.cli.parser import Parser, folder

__all__ = ["parser", "run"]


def run(given: list[str]) -> int:
    """Write one HTML file about runs and print its path."""
    options = parser().parse(given)
    from gossamer.report import write_report

    folders = [Path(folder) for folder in options.runs]
    print(write_report(folders, folder(options.out) if options.out else folders[0] / "report.html"))
    return 0


def parser() -> Parser:
    """Its flags."""
    flags = Parser("gossamer report", "One HTML file about one run or several.")
    flags.add_argument("runs", nargs="+", type=str, help="Run folders.")
    flags.add_flag("out", str | None, "The HTML file; report.html in the (first) run folder if not given.")
    return flags
