"""``python -m tests.endurance.attacks``: what kills, disks, clocks, flipped bits and other processes do to a run.

    python -m tests.endurance.attacks --tries 30 --json results/attacks.json

Each try starts ``gossamer train`` or ``compare`` on digits in a process of its own, attacks it, follows the advice of
its error message, and compares the outcome with that of a run that nobody touched: tensors of the checkpoint, records
and result must be equal to the bit, times apart. A try is *lost* if the run cannot be continued, or if damage is
refused without naming the file; it is *wrong* if anything differs. Both should be 0. Linux only.
"""

from __future__ import annotations

import argparse
import errno
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.environment import surroundings
from benchmarks.timing import THREAD
from gossamer.files.atomic import json_by_rows
from gossamer.lab.record import write_atomically
from tests.endurance import damage, kills
from tests.endurance.attacked import Ground, prepare
from tests.endurance.clock_jumps import clock_jumps
from tests.endurance.rank_kills import a_rank

__all__ = ["ATTACKS", "KIND", "Tally"]

KIND = "attacks"
ATTACKS: Mapping[str, Callable[[Ground], str]] = {
    "killed while training": kills.while_training,
    "killed twice while resuming": kills.while_resuming,
    "killed while comparing": kills.while_comparing,
    "killed at a point of a write": kills.at_a_point_of_a_write,
    "killed while the folder is made": kills.while_made,
    "one of two ranks killed": a_rank,
    "disk full": damage.disk(errno.ENOSPC),
    "disk read-only": damage.disk(errno.EROFS),
    "folder removed, moved or replaced": damage.folder_taken_away,
    "the clock jumps": clock_jumps,
    "a bit of a checkpoint": damage.flipped_checkpoint,
    "a bit of a record": damage.flipped_record,
    "a bit of a finished run": damage.flipped_result,
    "two processes, one folder": kills.two_processes,
    "data exchanged before a resume": damage.exchanged_data,
}
MOST_TRIES = {"one of two ranks killed": 12}  # each takes most of a minute


@dataclass
class Tally:
    """Tries of one kind of attack, how many were lost or wrong, and why."""

    attack: str
    tries: int = 0
    lost: int = 0
    wrong: int = 0
    reasons: list[str] = field(default_factory=list)

    def count(self, found: str) -> None:
        """Add what an attack returned.

        Example:
            >>> tally = Tally("disk full")
            >>> for found in ("", "lost: exit code 70"):
            ...     tally.count(found)
            >>> tally.tries, tally.lost, tally.wrong
            (2, 1, 0)
        """
        self.tries += 1
        self.lost += found.startswith("lost")
        self.wrong += found.startswith("wrong")
        self.reasons += [found[:300]] if found else []


def main(given: Sequence[str] | None = None) -> int:
    """The command; exit code 1 if a try was lost or wrong."""
    parser = argparse.ArgumentParser(
        "python -m tests.endurance.attacks", description="Attack runs, and count what is lost."
    )
    limits = ", ".join(f"{most} of {name!r}" for name, most in MOST_TRIES.items())
    parser.add_argument("--tries", type=int, default=10, help=f"of each kind of attack, at most {limits}")
    parser.add_argument("--seed", type=int, default=0, help="another seed attacks at other moments")
    parser.add_argument("--only", nargs="+", default=list(ATTACKS), help="kinds of attacks, by name", choices=ATTACKS)
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args(given)
    prepare()
    tallies = [Tally(name) for name in options.only]
    with tempfile.TemporaryDirectory(prefix="attacks-") as root:
        ground = Ground(Path(root), random.Random(options.seed))
        for number in range(options.tries):
            for tally in tallies:
                if tally.tries < MOST_TRIES.get(tally.attack, options.tries):
                    tally.count(ATTACKS[tally.attack](ground))
            if options.json:
                head = {"format": 1, "kind": KIND, "environment": surroundings(THREAD), "seed": options.seed}
                write_atomically(options.json, json_by_rows(head | {"rows": [asdict(one) for one in tallies]}))
            bad = ", ".join(str(one.lost + one.wrong) for one in tallies)
            print(f"{number + 1} of {options.tries}: {bad}", flush=True)
            for folder in Path(root).glob("run*"):
                shutil.rmtree(folder)
    for one in tallies:
        print(f"{one.attack}: {one.tries} tries, {one.lost} lost, {one.wrong} wrong", *one.reasons, sep="\n    ")
    return int(any(one.lost or one.wrong for one in tallies))


if __name__ == "__main__":
    sys.exit(main())
