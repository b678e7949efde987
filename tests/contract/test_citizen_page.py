"""``docs/citizen.md`` is what ``results/citizen.json`` says, and that is what the tests say."""

import ast
import json
from pathlib import Path

import pytest

from benchmarks.citizen import FILES, citizen_tables
from benchmarks.pages import fill_recorded

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "results" / "citizen.json").read_text(encoding="utf-8"))
ROWS = [*STORED["checks"], *STORED["more"]]


def gaps() -> dict[str, str]:
    tree = ast.parse(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GAPS")
    return ast.literal_eval(next(assigned).value)


def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


TESTS = {letter: functions(file) for letter, file in FILES.items()}


def test_the_page_holds_what_is_stored():
    text = (ROOT / "docs" / "citizen.md").read_text(encoding="utf-8")
    assert fill_recorded(text, ROOT / "results") == text, "docs/citizen.md is out of date: make figures"
    tables = citizen_tables(STORED)
    assert all(table.to_markdown() in text for table in tables.values())
    assert sum(len(table.rows) for table in tables.values()) == len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["check"])
def test_a_row_names_a_test_whose_outcome_is_stored(row):
    """Known failures are strict: one that comes to hold fails the suite, and its mark must go, here and there."""
    letter, name = row["test"].split()
    assert name in TESTS[letter]
    counts = STORED["tests"][name]
    assert not counts.get("failed")
    marks = "".join(map(ast.unparse, TESTS[letter][name].decorator_list))
    has_known_failures = "xfail" in marks or any(pattern.startswith(name) for pattern in gaps())
    stale = "run python -m benchmarks.citizen results/citizen.json, then make figures"
    assert bool(counts.get("xfailed")) == has_known_failures, stale


def test_options_are_judged_alike():
    """A library that needs an option for a check needs it in its own column too: both rows, for all of them."""
    checks = {row["check"]: row for row in STORED["checks"]}
    option = [name for name in checks if name.endswith(", with the library's option")]
    assert option
    for name in option:
        default = checks[name.replace(", with the library's option", ", default arguments")]
        assert default["outcomes"].keys() == checks[name]["outcomes"].keys()
