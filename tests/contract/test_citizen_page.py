"""``docs/citizen.md`` names a test in every row, and each of them exists."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "citizen.md"
FILES = {"C": "test_conversion.py", "Z": "test_citizen.py", "G": "test_citizen_graphs.py"}


def test_every_row_names_a_test_that_exists():
    tables = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [line for line in tables if not line.startswith("| check |")]
    assert len(rows) > 40
    for row in rows:
        named = re.search(r"\| ([CZG]) `(test_\w+)` \|$", row)
        assert named, row
        source = Path(__file__).with_name(FILES[named[1]]).read_text(encoding="utf-8")
        assert f"def {named[2]}(" in source, row
