"""``python -m reproductions``: the tables and figures of both papers by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gossamer._text.formats import duration, macs, plain
from gossamer._text.names import unknown
from gossamer._text.terminal import Table, columns
from gossamer.lab import Interrupted
from gossamer.lab.record import RecordError
from reproductions.cost import cost_of, macs_per_second
from reproductions.frame import Result, Told, file_of, find, folder_of, names, reproduce
from reproductions.pages import table_of, write_page

__all__ = ["main"]

OUT = Path("runs", "reproductions")


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 fine, 1 failure, 2 usage, 130 interrupted."""
    options = _parser().parse_args(given)
    known = ["list", "page", "all", *names()]
    if options.name not in known:
        print(f"reproductions: {unknown('reproduction', options.name, known)}", file=sys.stderr)
        return 2
    try:
        if options.name == "list":
            print(columns({name: find(name).title for name in names()}))
            return 0
        if options.name == "page":
            write_page()
            return 0
        asked = {name: find(name) for name in (names() if options.name == "all" else [options.name])}
        chosen = {name: result for name, result in asked.items() if any(result.plan(small=options.small, seeds=1))}
        if not chosen:
            raise RecordError(f"{options.name} has no small runs: leave out --small")
        if options.dry_run:
            print(_costs(chosen, options.small, options.seeds, options.out).to_text())
            return 0
        for name, result in chosen.items():
            _make(name, result, options)
    except (KeyboardInterrupt, Interrupted):
        print("reproductions: stopped; the same command goes on from what is finished", file=sys.stderr)
        return 130
    except (RecordError, ValueError, OSError) as error:
        print(f"reproductions: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m reproductions", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", help="list, all, page (docs/reproductions.md), or what list names")
    parser.add_argument("--small", action="store_true", help="fewer and smaller images, a small network: minutes")
    parser.add_argument("--dry-run", action="store_true", help="the runs, their operations and time, and no training")
    parser.add_argument("--seeds", type=int, help="runs of each row")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to train")
    parser.add_argument("--data-dir", help="folder of the data files; $GOSSAMER_DATA or data/ if not given")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of runs and results; %(default)s")
    return parser


def _make(name: str, result: Result, options: argparse.Namespace) -> None:
    where = {"device": options.device} | ({"data_dir": options.data_dir} if options.data_dir else {})
    kept = reproduce(name, result, options.out, small=options.small, seeds=options.seeds, where=where)
    print(f"\n{table_of(result, [kept]).to_text()}\n\n{': '.join(part for part in result.judge(kept) if part)}")
    if result.plot is not None and kept.runs:
        picture = options.out / f"{name}{'-small' if options.small else ''}.svg"
        result.plot(result, kept, picture)
        print(f"picture: {picture}")


def _costs(chosen: dict[str, Result], small: bool, seeds: int | None, out: Path) -> Table:
    """A line for each result, or for each row of a single one."""
    lines: dict[str, list[tuple[Told, bool]]] = {}
    for name, result in chosen.items():
        for row, told in result.plan(small=small, seeds=seeds):
            is_left = not file_of(result, out, told).exists()
            lines.setdefault(name if len(chosen) > 1 else row.label, []).append((told, is_left))
    rows, seen, total = [], set[Path](), 0.0
    for line, plan in lines.items():
        left = {folder: told for told, is_left in plan if is_left and (folder := folder_of(out, told)) not in seen}
        seen |= left.keys()
        costs = [cost_of(told) for told in left.values()]
        seconds = sum(cost.dense for cost in costs) / macs_per_second()
        counted = plain(macs(sum(cost.macs for cost in costs)))
        rows.append([line, str(len(plan)), str(len(left)), counted, plain(duration(seconds))])
        total += seconds
    note = "About. Runs of an earlier line and finished ones are not counted; time is that of dense arithmetic here."
    rows.append(["all", "", str(len(seen)), "", plain(duration(total))])
    return Table("What there is to train", note, ["", "runs", "to train", "multiply-adds", "time"], rows)


if __name__ == "__main__":
    sys.exit(main())
