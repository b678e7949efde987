"""``python -m tests.endurance.mutations``: files changed at random, and what reading them does.

    python -m tests.endurance.mutations --n 1000000 --seed 1 --json results/mutations.json

Valid small files of every kind that Gossamer reads (``file_kinds``) are changed and read by the public functions. A
file may load, to finite numbers, or be refused by an error of one line that names it. Anything else is counted as
*other*: another error, a crash, more than ``MEMORY`` bytes, more than ``SECONDS``. Files are read in forked processes,
so that a crash of native code is one count and not the end.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.environment import surroundings
from benchmarks.timing import THREAD
from gossamer.files.atomic import json_by_rows
from gossamer.lab.cli import UsageError
from gossamer.lab.record import RecordError, write_atomically
from tests.endurance.file_kinds import KINDS, FileKind

__all__ = ["KIND", "Outcome", "attack", "changed_bytes", "changed_tree"]

KIND = "mutations"
SECONDS = 5
ROUND = 20_000  # files between two writes of the counts
MOST_LOST = 20  # processes of a kind: a reader that crashes or hangs so often is to be mended first
MEMORY = 200 * 2**20
REFUSALS = (ValueError, OSError, RecordError, UsageError)
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, -(2**63), 2**64, 10**40, 0.5, -1e308, 1e-320, math.nan, math.inf, -math.inf,
    "", "a", "O", "<U300000000", "|V2000000000", "<f8", "float64", "../../../x", "\0", "é" * 50, "9" * 400, [], {},
    [[]], [1, "a", None], {"": {}}, [0] * 1000,
)  # fmt: skip
BYTES = (
    b"[",
    b"{",
    b'"',
    b"9",
    b"-",
    b"\x00",
    b"\xff",
    b"[" * 20_000,
    b"9" * 5_000,
    b"NaN",
    b"1e999",
    b"\n",
    b"=",
    b",",
)


def changed_bytes(generator: random.Random, blob: bytes) -> bytes:
    """One to four places are flipped, overwritten, cut out, repeated or filled in, or the end is lost."""
    found = bytearray(blob)
    for _ in range(generator.randint(1, 4)):
        reach = generator.choice((64, 512, len(found)))  # headers are short and say most
        at = generator.randrange(max(1, min(len(found), reach)))
        length = generator.choice((1, 2, 4, 8, 64))
        how = generator.randrange(7)
        if how == 0 and found:
            found[at] ^= 1 << generator.randrange(8)
        elif how == 1 and found:
            found[at] = generator.randrange(256)
        elif how == 2:
            del found[at : at + length]
        elif how == 3:
            found[at:at] = found[at : at + length]
        elif how == 4:
            found[at:at] = generator.choice(BYTES)
        elif how == 5:
            found[at : at + 4] = generator.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4)))
        else:
            del found[len(found) - generator.randrange(1 + len(found) // 2) :]
    return bytes(found)


def changed_tree(generator: random.Random, tree: Any) -> Any:
    """The tree with one to three places changed: a key renamed or lost, an entry replaced, repeated or lost."""
    for _ in range(generator.randint(1, 3)):
        tree = _changed_once(generator, tree)
    return tree


def _changed_once(generator: random.Random, node: Any) -> Any:
    """Descends at random, so that the few entries at the top are changed as often as the many below."""
    if isinstance(node, dict) and node:
        key = generator.choice(list(node))
        if generator.random() < 0.75:
            return node | {key: _changed_once(generator, node[key])}
        rest = {name: value for name, value in node.items() if name != key}
        return generator.choice((rest, rest | {f"{key}x": node[key]}, node | {"extra": generator.choice(ODD)}))
    if isinstance(node, list | tuple) and node:
        at = generator.randrange(len(node))
        items = list(node)
        if generator.random() < 0.75:
            items[at] = _changed_once(generator, items[at])
        else:
            items[at : at + 1] = generator.choice(([], [items[at]] * 2, [items[at], generator.choice(ODD)]))
        return type(node)(items)
    if isinstance(node, Tensor):
        return _changed_tensor(generator, node)
    if isinstance(node, int | float) and not isinstance(node, bool) and generator.random() < 0.3:
        return generator.choice((-node, node + 1, node * 1000, node * 10**12, str(node), float(node), [node]))
    return generator.choice(ODD)


def _changed_tensor(generator: random.Random, tensor: Tensor) -> Any:
    flat = tensor.reshape(-1)
    values = flat.clone()
    if len(values):
        at, odd = generator.randrange(len(values)), (-1, 2**31 - 1, 0)
        values[at] = generator.choice((math.nan, math.inf, 1e30) if values.is_floating_point() else odd)
    return generator.choice(
        (values.reshape(tensor.shape), tensor[..., None], flat, flat[:-1], torch.cat([flat, flat]), tensor.double(),
         tensor.long(), tensor.bool(), tensor.reshape(-1, 1), torch.zeros(0), generator.choice(ODD))
    )  # fmt: skip


@dataclass
class Outcome:
    """What became of the files of a kind; ``reasons`` counts the kinds of what should not have happened."""

    kind: str
    tried: int = 0
    loaded: int = 0
    refused: int = 0
    other: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, more: Outcome) -> None:
        """Count the files of another round, too."""
        for name in ("tried", "loaded", "refused", "other"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.reasons = dict((Counter(self.reasons) + Counter(more.reasons)).most_common())


def attack(kind: FileKind, folder: Path, numbers: range, seed: int) -> Outcome:
    """Read changed files of a kind, number i of which depends on ``seed`` and i alone."""
    shared = mmap.mmap(-1, 4 * 8)  # the number that is being read, loaded, refused, other
    notes = folder / "notes"
    notes.write_text("")
    lost: Counter[str] = Counter()
    start = numbers.start
    while start < numbers.stop:
        process = os.fork()
        if process == 0:
            try:
                _work(kind, folder, range(start, numbers.stop), seed, shared, notes)
            except BaseException as error:  # of the unchanged file, or of the instrument itself
                (folder / "failure").write_text(f"{type(error).__name__}: {_place(error)}")
            os._exit(70)
        ended = _watched(process, shared)
        reached = struct.unpack("4q", shared[:])[0]
        if ended != "done":
            lost[ended] += 1
            start = reached + 1
            if lost.total() > MOST_LOST:
                said = (folder / "failure").read_text() if (folder / "failure").exists() else ""
                raise RuntimeError(f"{kind.name}: {lost}, the last at number {reached} {said}")
        else:
            start = numbers.stop
    _, loaded, refused, other = struct.unpack("4q", shared[:])
    reasons = Counter(notes.read_text().splitlines()) + lost
    return Outcome(kind.name, len(numbers), loaded, refused, other + lost.total(), dict(reasons.most_common()))


def _watched(process: int, shared: mmap.mmap) -> str:
    """How the process ended; one that stays at a file is killed."""
    last, since = -1, time.monotonic()
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return "done" if code == 0 else f"exit code {code}"
        now = struct.unpack("4q", shared[:])[0]
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > 4 * SECONDS:  # its own alarm did not help
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return "hung"
        time.sleep(0.01)


class _TooLong(BaseException):
    """Raised by the alarm."""


def _work(kind: FileKind, folder: Path, numbers: range, seed: int, shared: mmap.mmap, notes: Path) -> None:
    """Read the files of some numbers, then end the process."""
    counts = list(struct.unpack("4q", shared[:]))
    os.chdir(folder)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    if not os.environ.get("MUTATIONS_DEBUG"):
        os.dup2(quiet, 2)
    signal.signal(signal.SIGALRM, _alarm)
    warnings.simplefilter("ignore")
    read = kind.prepare(folder / "file")
    read(kind.blob)  # native libraries start their threads now, not under the limit
    _limit_memory()
    for number in numbers:
        shared[:] = struct.pack("4q", number, *counts[1:])
        generator = random.Random(f"{kind.name} {seed} {number}")
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        place, note = _outcome(kind, read, generator)
        signal.setitimer(signal.ITIMER_REAL, 0)
        counts[place] += 1
        if note:
            with notes.open("a") as file:
                file.write(f"{note}\n")
    shared[:] = struct.pack("4q", *counts)
    os._exit(0)


def _outcome(kind: FileKind, read: Callable[[bytes], Any], generator: random.Random) -> tuple[int, str]:
    """Where it counts, and a note if it should not have happened."""
    try:
        blob = _mutant(kind, generator)
        found = read(blob)
    except REFUSALS as error:
        text = str(error)
        named = isinstance(error, UsageError) or any(name in text for name in kind.names)
        if named and "\n" not in text:
            return 2, ""
        return 3, f"{type(error).__name__} {'of several lines' if named else 'without the file'}: {_place(error)}"
    except BaseException as error:
        return 3, f"{type(error).__name__}: {_place(error)}"
    return (1, "") if _is_finite(found) else (3, "not finite")


def _mutant(kind: FileKind, generator: random.Random) -> bytes:
    if kind.decode is None or kind.encode is None or generator.random() < 0.4:
        return changed_bytes(generator, kind.blob)
    while True:
        try:
            return kind.encode(changed_tree(generator, kind.decode(kind.blob)))
        except (
            TypeError,
            ValueError,
            RecordError,
            AttributeError,
            LookupError,
            RuntimeError,
            OverflowError,
            struct.error,
        ):
            continue  # the format cannot say this


def _place(error: BaseException) -> str:
    """Where in our code an error came from, and what it says."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/gossamer/" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} " if frames else ""
    return where + " ".join(str(error).split())[:60]


def _is_finite(found: Any) -> bool:
    if isinstance(found, list | tuple):
        return all(map(_is_finite, found))
    array = np.asarray(found) if isinstance(found, Tensor | np.ndarray) else None
    return array is None or array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _alarm(*_: Any) -> None:
    raise _TooLong(f"more than {SECONDS} s")


def _limit_memory() -> None:
    """Of data, not of addresses: a native library that reports an error may map its own file."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def run(n: int, seed: int, names: Sequence[str] = ()) -> Iterator[list[Outcome]]:
    """``n`` changed files in all, shared among the kinds by what a file of them takes; the sums after each round."""
    torch.set_num_threads(1)  # a pool of threads would not survive the forks
    with tempfile.TemporaryDirectory(prefix="mutations-") as root:
        kinds = [make(Path(root)) for make in KINDS]
        kinds = [kind for kind in kinds if not names or kind.name in names]
        sums = [Outcome(kind.name) for kind in kinds]
        shares = [kind.share / sum(kind.share for kind in kinds) for kind in kinds]
        for done in [*range(ROUND, n, ROUND), n]:
            for kind, share, known in zip(kinds, shares, sums, strict=True):
                with tempfile.TemporaryDirectory(dir=root) as folder:
                    known.add(attack(kind, Path(folder), range(known.tried, max(1, round(done * share))), seed))
            yield sums


def main(given: Sequence[str] | None = None) -> int:
    """The command; exit code 1 if anything but loading and refusing happened."""
    parser = argparse.ArgumentParser("python -m tests.endurance.mutations", description="Read files changed at random.")
    parser.add_argument("--n", type=int, default=20_000, help="how many, of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="another seed changes files in other ways")
    parser.add_argument("--only", nargs="+", default=(), help="kinds of files, by name")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args(given)
    outcomes: list[Outcome] = []
    for outcomes in run(options.n, options.seed, options.only):
        if options.json:
            head = {"format": 1, "kind": KIND, "environment": surroundings(THREAD), "seed": options.seed}
            write_atomically(options.json, json_by_rows(head | {"rows": [asdict(one) for one in outcomes]}))
        print(f"{sum(one.tried for one in outcomes):,} files, {sum(one.other for one in outcomes):,} other", flush=True)
    for one in outcomes:
        print(f"{one.kind}: {one.tried:,} tried, {one.loaded:,} loaded, {one.refused:,} refused, {one.other:,} other")
        print("".join(f"    {count} × {reason}\n" for reason, count in one.reasons.items()), end="")
    return int(any(one.other for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
