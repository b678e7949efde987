"""The package does not grow unnoticed: each room has a number of lines in CONTRIBUTING.md that it must keep.

``make sizes`` lowers the numbers after something was deleted. To raise one, edit the table and give the reason in its
last column.
"""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gossamer"
SWEEP = ROOT / "src" / "gossamer_sweep"  # a package of its own
PAGE = ROOT / "CONTRIBUTING.md"
ROW = re.compile(r"^\| `(?P<room>\w+)` \| (?P<lines>[\d,]+) \| (?P<why>.*) \|$", re.MULTILINE)
TABLE = re.compile(r"(?<=<!-- sizes -->\n\n).*?(?=\n\n<!-- /sizes -->)", re.DOTALL)
STEP = 50


def measured() -> Counter[str]:
    """Lines of Python in each room, in the modules beside them (``modules``), in all, and in ``gossamer_sweep``."""
    lines: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        count = len(path.read_text(encoding="utf-8").splitlines())
        lines["gossamer"] += count
        lines[parts[0] if len(parts) > 1 else "modules"] += count
    lines[SWEEP.name] = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SWEEP.rglob("*.py"))
    return lines


def allowed(table: str) -> dict[str, int]:
    return {row["room"]: int(row["lines"].replace(",", "")) for row in ROW.finditer(table)}


def rounded_up(lines: int) -> int:
    return -(-lines // STEP) * STEP


def lowered(table: str, lines: Counter[str]) -> str:
    """The table with each number as low as the room allows; a room that is gone has no row, a new one gets one."""
    limits = allowed(table)
    new = [f"| `{room}` | {rounded_up(lines[room]):,} | new |" for room in sorted(lines.keys() - limits.keys())]

    def row(found: re.Match[str]) -> str:
        room = found["room"]
        return f"| `{room}` | {min(limits[room], rounded_up(lines[room])):,} | {found['why']} |"

    kept = [line for line in table.splitlines() if not (row_of := ROW.match(line)) or row_of["room"] in lines]
    return "\n".join([ROW.sub(row, line) for line in kept] + new)


def growth(limits: dict[str, int], lines: Counter[str]) -> list[str]:
    """A sentence for each room that has more lines than its row, or no row."""
    return [
        f"{room} has {count:,} lines, {count - limits.get(room, 0):,} more than the {limits.get(room, 0):,} of its row"
        for room, count in sorted(lines.items())
        if count > limits.get(room, 0)
    ]


def table() -> str:
    found = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, "CONTRIBUTING.md has no table of sizes"
    return found[0]


def test_no_room_outgrows_its_row():
    grown = growth(allowed(table()), measured())
    advice = "Delete something, or raise the row in CONTRIBUTING.md (section Size) and say there why."
    assert not grown, "\n".join([*grown, advice])


def test_every_row_is_a_room():
    gone = allowed(table()).keys() - measured().keys()
    assert not gone, f"the table of sizes names {sorted(gone)}, which is gone: make sizes"


def test_a_row_is_lowered_and_never_raised():
    rows = "| room | lines | why |\n|---|---:|---|\n| `a` | 1,000 | why |\n| `b` | 100 | why |\n| `gone` | 50 | why |"
    lines = Counter(a=901, b=175, c=7)
    expected = "| room | lines | why |\n|---|---:|---|\n| `a` | 950 | why |\n| `b` | 100 | why |\n| `c` | 50 | new |"
    assert lowered(rows, lines) == expected
    assert growth(allowed(expected), lines) == ["b has 175 lines, 75 more than the 100 of its row"]


if __name__ == "__main__":
    new = lowered(table(), measured())
    PAGE.write_text(TABLE.sub(lambda _: new, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(new, *growth(allowed(new), measured()), sep="\n")
