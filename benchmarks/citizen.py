"""What works on a converted network, in gossamer and in other libraries: the tables of ``docs/citizen.md``.

    python -m benchmarks.citizen results/citizen.json   # run our tests (about a minute) and store their outcomes

Our column is made of the outcomes of the tests named in each row, the columns of the others are stored beside it with
their versions. ``make figures`` writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import __version__
from gossamer._text.terminal import Table
from gossamer.lab.record import write_atomically

__all__ = ["FILES", "KIND", "citizen_tables", "outcome", "run_tests"]

KIND = "citizen"
OURS = "Gossamer"
FILES = {"C": "test_conversion.py", "Z": "test_citizen.py", "G": "test_citizen_graphs.py"}
FOLDER = Path(__file__).parents[1] / "tests" / "contract"


def citizen_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """The checks on all libraries, and those on ours alone, by the names of their places in the page.

    Example:
        >>> row = {"check": "deepcopy", "test": "Z test_deepcopy", "outcomes": {"blitz": "FAIL"}}
        >>> tests = {"test_deepcopy": {"passed": 9}}
        >>> citizen_tables({"peers": {"blitz": "0.2.8"}, "checks": [row], "more": [], "tests": tests})["citizen"].rows
        [['deepcopy', 'FAIL', 'ok', 'Z `test_deepcopy`']]
    """
    peers, tests = content["peers"], content["tests"]

    def line(row: Mapping[str, Any], others: list[str]) -> list[str]:
        file, test = row["test"].split()
        return [row["check"], *others, _cell(row, tests.get(test, {})), f"{file} `{test}`"]

    checks = [line(row, [row["outcomes"].get(peer, "–") for peer in peers]) for row in content["checks"]]
    more = [line(row, []) for row in content["more"]]
    head = ["check", *peers, OURS, "test"]
    return {
        "citizen": Table("Checks", "", head, checks, len(head)),
        "citizen-more": Table("Also checked", "", ["check", OURS, "test"], more, 3),
    }


def outcome(counts: Mapping[str, int]) -> str:
    """``ok`` where every case of a test passed, ``in part`` where some are known not to hold.

    Example:
        >>> outcome({"passed": 12}), outcome({"passed": 10, "xfailed": 2}), outcome({"xfailed": 2}), outcome({})
        ('ok', 'in part', 'FAIL', 'not run')
    """
    if not counts:
        return "not run"
    broken = counts.get("xfailed", 0) + counts.get("failed", 0)
    return "ok" if not broken else "in part" if counts.get("passed") else "FAIL"


def run_tests(only: str = "", folder: Path = FOLDER) -> dict[str, dict[str, int]]:
    """Run the contract's tests, or those that match ``only``; how many cases passed, failed, and failed as expected."""
    found: dict[str, Counter[str]] = {}

    class Outcomes:
        @staticmethod
        def pytest_runtest_logreport(report: pytest.TestReport) -> None:
            if report.when == "call" or report.failed:
                name = report.nodeid.split("::")[1].split("[")[0]
                word = "xfailed" if hasattr(report, "wasxfail") else report.outcome
                found.setdefault(name, Counter())[word] += 1

    files = [str(folder / file) for file in FILES.values()]
    pytest.main(["-q", "-p", "no:cacheprovider", "-k", only, *files], plugins=[Outcomes()])
    return {name: dict(counts) for name, counts in found.items()}


def _cell(row: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    """The outcome of the row's test; the test of a row with ``"refuses"`` passes where the check does not hold."""
    found = outcome(counts)
    if row.get("refuses") and found == "ok":
        found = "FAIL"
    return f"{found} {row['note']}" if "note" in row else found


def _main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.citizen")
    parser.add_argument("file", type=Path, help="results/citizen.json: our outcomes in it are replaced")
    parser.add_argument("--only", default="", help="run the tests that match this alone, as pytest -k does")
    options = parser.parse_args()
    content = json.loads(options.file.read_text(encoding="utf-8"))
    content["tests"] = (content["tests"] if options.only else {}) | run_tests(options.only)
    content["environment"] = {"gossamer": __version__, "torch": torch.__version__}
    write_atomically(options.file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    sys.exit(any(counts.get("failed") for counts in content["tests"].values()))


if __name__ == "__main__":
    _main()
