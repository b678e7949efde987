"""``python -m benchmarks.attacks``: what kills, full disks, flipped bits and second processes do to a run.

    python -m benchmarks.attacks --tries 30 --json results/attacks.json

Each try starts ``gossamer train`` or ``compare`` on digits in a process of its own, attacks it, follows the advice of
its error message, and compares the outcome with that of a run that nobody touched: tensors of the checkpoint, records
and result must be equal to the bit, times apart. A try is *lost* if the run cannot be continued, or if damage is
refused without naming the file; it is *wrong* if anything differs. Both should be 0.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.environment import surroundings
from benchmarks.timing import THREAD
from gossamer import checkpoint
from gossamer.cli import main as command
from gossamer.record import Run, write_atomically
from gossamer.record.files import json_by_rows

__all__ = ["ATTACKS", "KIND", "differ"]

KIND = "attacks"
METHODS = {  # six, of six families
    "ssvi": ["--density=0.1", "--update_period=4"],
    "rigl": ["--density=0.1", "--update_period=4"],
    "vi": [],
    "em_mcmc": ["--density=0.3"],
    "csghmc": [],
    "sgd": [],
}
COMMON = ["--epochs=2", "--batch_size=128", "--n_draws=2", "--device=cpu", "--model=mlp", "--quiet"]
EACH_STEP = ["--checkpoint_seconds=0"]
NOT_REPEATABLE = {"seconds", "examples_per_second"}
RECORDS = ("config.toml", "environment.json", "data.json", "metrics.jsonl", "subspace.jsonl")
IMPORTS = (  # what takes long is done once, before the forks
    "sklearn.datasets",
    "tomli_w",
    "torch._dynamo",
    "torch.onnx",
    "gossamer.data.digits",
    "gossamer.runs.job",
    "gossamer.cli.train",
    "gossamer.cli.compare",
    "gossamer.cli.queries",
    "gossamer.report",
    *(f"gossamer.methods.{method}" for method in METHODS),
)
CALLS = ("open", "write", "fsync", "replace")


@dataclass
class Tally:
    """Tries of one kind of attack, how many were lost or wrong, and why."""

    attack: str
    tries: int = 0
    lost: int = 0
    wrong: int = 0
    reasons: list[str] = field(default_factory=list)


class Ended(NamedTuple):
    """How a process ended, and what it said."""

    code: int
    said: str


class Ground:
    """A folder for attacks, with runs that nobody touched, made when they are first needed."""

    def __init__(self, root: Path, generator: random.Random) -> None:
        self.root, self.generator = root, generator
        self._whole: dict[str, Path] = {}
        self._count = 0

    def folder(self) -> Path:
        """A place where nothing is yet."""
        self._count += 1
        return self.root / f"run{self._count}"

    def method(self) -> str:
        """One of the six."""
        return self.generator.choice(list(METHODS))

    def whole(self, method: str) -> Path:
        """A run that nobody touched."""
        if method not in self._whole:
            folder = self.root / f"whole-{method}"
            check(run_to_end(train_command(method, folder)))
            self._whole[method] = folder
        return self._whole[method]

    def stopped(self, method: str) -> Path:
        """A copy of a run that was killed some time after its eighth step."""
        source = self.root / f"stopped-{method}"
        if not source.exists():
            process, _ = start(train_command(method, source, *EACH_STEP))
            if not wait_for_step(process, source, 8):
                raise RuntimeError(f"{source} ended before it could be killed")
            kill(process)
        return Path(shutil.copytree(source, self.folder()))

    @cached_property
    def n_calls(self) -> int:
        """How often a run opens, writes, waits for or renames a file."""
        counter = self.root / "calls"
        check(run_to_end(train_command("ssvi", self.folder(), *EACH_STEP), lambda: count_calls(counter)))
        return int(counter.read_text())


def train_command(method: str, folder: Path, *more: str) -> list[str]:
    """The command that trains a run."""
    return ["train", method, "digits", *COMMON, f"--out={folder}", *METHODS[method], *more]


def start(given: Sequence[str], before: Callable[[], None] = lambda: None) -> tuple[int, Path]:
    """The command in a forked process, and the file of its standard error."""
    said = Path(tempfile.mkstemp(dir=Path(tempfile.gettempdir()))[1])
    process = os.fork()
    if process:
        return process, said
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(said, os.O_WRONLY), 2)
        before()
        code = command(list(given))
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(70)


def finish(process: int, said: Path) -> Ended:
    """Wait for the end of a process."""
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    text = said.read_text()
    said.unlink()
    return Ended(code, text.strip())


def run_to_end(given: Sequence[str], before: Callable[[], None] = lambda: None) -> Ended:
    """The command, to its end."""
    return finish(*start(given, before))


def kill(process: int) -> None:
    """End a process at once, wherever it is."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def check(ended: Ended) -> None:
    """Raise if a run that nobody attacked has failed: then there is nothing to compare with."""
    if ended.code:
        raise RuntimeError(f"a run without attack has failed: {ended.said}")


def wait_for_step(process: int, folder: Path, step: int) -> bool:
    """Whether a checkpoint of the step, or of a later one, was there before the process ended."""
    index = folder / "checkpoint" / "latest.json"
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            if json.loads(index.read_bytes())["checkpoints"][0]["step"] >= step:
                return True
        time.sleep(0.002)
    os.waitpid(process, 0)
    return False


def count_calls(counter: Path) -> None:
    """Let this process write to a file, at its end, how many calls it made."""
    made = [0]

    def note(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        made[0] += 1
        return real(*args)

    intercept(note)
    leave = os._exit

    def leave_with_note(code: int) -> None:
        counter.write_text(str(made[0]))
        leave(code)

    os._exit = leave_with_note  # type: ignore[assignment]


def intercept(do: Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]) -> None:
    """Let this process call ``do`` in place of the functions by which runs write."""
    for name in CALLS:
        real = getattr(os, name)
        setattr(os, name, lambda *args, name=name, real=real: do(name, real, args))


def die_at(number: int) -> Callable[[], None]:
    """Die at a call, in the middle of it if it writes."""
    left = [number]

    def do(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    return lambda: intercept(do)


def fail_from(number: int, error: int) -> Callable[[], None]:
    """From a call on the disk is full (a write ends in its middle), or read-only."""
    left, kinds = [number], ("write",) if error == errno.ENOSPC else ("open", "replace")

    def do(name: str, real: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        left[0] -= 1
        writes = name != "open" or args[1] & (os.O_WRONLY | os.O_RDWR)
        if left[0] <= 0 and name in kinds and writes:
            if name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            raise OSError(error, os.strerror(error))
        return real(*args)

    return lambda: intercept(do)


# Each attack returns "" for a try that held, "lost: …" or "wrong: …".


def while_training(ground: Ground) -> str:
    """A kill at a random moment."""
    method, folder = ground.method(), ground.folder()
    process, _ = start(train_command(method, folder, *EACH_STEP))
    if not wait_for_step(process, folder, ground.generator.randrange(1, 20)):
        return while_training(ground)  # it was faster than the attack
    time.sleep(ground.generator.random() / 100)
    kill(process)
    return continued(ground, method, folder)


def while_resuming(ground: Ground) -> str:
    """Two kills of resumes, at random moments."""
    method = ground.method()
    folder = ground.stopped(method)
    for step in sorted(ground.generator.sample(range(9, 21), 2)):
        process, _ = start(["train", "--resume", str(folder), "--quiet", *EACH_STEP])
        if not wait_for_step(process, folder, step):
            return while_resuming(ground)  # it was faster than the attack
        kill(process)
    return continued(ground, method, folder)


def while_comparing(ground: Ground) -> str:
    """A kill of a comparison of two methods; the same command is given again."""
    folder = ground.folder()
    shared = [flag for flag in COMMON if not flag.startswith("--device")]
    given = ["compare", "sgd,vi", "--data=digits", *shared, "--device=cpu", "--seeds=1", f"--out={folder}"]
    process, _ = start(given)
    method = ground.generator.choice(("sgd", "vi"))
    until = time.monotonic() + 120
    while not (folder / f"{method}-0" / ".lock").exists() and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(ground.generator.random())
    kill(process)
    ended = run_to_end(given)
    if ended.code:
        return f"lost: {ended.said}"
    found = [differ(folder / f"{one}-0", ground.whole(one)) for one in ("sgd", "vi")]
    return f"wrong: {found}" if any(found) else ""


def at_a_point_of_a_write(ground: Ground) -> str:
    """A kill at one of all calls that open, write, wait for or rename a file."""
    folder = ground.folder()
    number = ground.generator.randrange(1, ground.n_calls + 1)
    run_to_end(train_command("ssvi", folder, *EACH_STEP), die_at(number))
    return continued(ground, "ssvi", folder)


def disk(error: int) -> Callable[[Ground], str]:
    """From a random call on, the disk takes no more; later it does again."""

    def attack(ground: Ground) -> str:
        folder = ground.folder()
        number = ground.generator.randrange(1, ground.n_calls + 1)
        ended = run_to_end(train_command("ssvi", folder, *EACH_STEP), fail_from(number, error))
        if ended.code not in (0, 1) or len(ended.said.splitlines()) > 1:
            return f"lost: exit code {ended.code}: {ended.said}"
        return continued(ground, "ssvi", folder)

    return attack


def flipped_checkpoint(ground: Ground) -> str:
    """A bit of the newest checkpoint; it is refused, deleted, and the run continues from the one before."""
    method = ground.method()
    folder = ground.stopped(method)
    file = newest(folder)
    flip(file, ground.generator)
    ended = run_to_end(["train", "--resume", str(folder), "--quiet"])
    if ended.code == 0:
        found = differ(folder, ground.whole(method))
        return f"wrong: {found}" if found else ""
    if f"{file} is damaged" not in ended.said:
        return f"lost: {ended.said}"
    file.unlink()
    return continued(ground, method, folder)


def flipped_record(ground: Ground) -> str:
    """A bit of a file beside the checkpoint; it is refused, or made no difference."""
    method = ground.method()
    folder = ground.stopped(method)
    files = [folder / name for name in RECORDS if (folder / name).exists() and (folder / name).stat().st_size]
    file = ground.generator.choice(files)
    before = file.read_bytes()
    flip(file, ground.generator)
    ended = run_to_end(["train", "--resume", str(folder), "--quiet"])
    if ended.code == 0:
        found = differ(folder, ground.whole(method))
        return f"wrong: {file.name}: {found}" if found else ""
    if file.name not in ended.said or len(ended.said.splitlines()) > 1:
        return f"lost: {file.name}: {ended.said}"
    file.write_bytes(before)
    return continued(ground, method, folder) if ground.generator.random() < 0.2 else ""


def flipped_result(ground: Ground) -> str:
    """A bit of the result or of a record of a finished run: showing it is refused, or shows the same."""
    folder = Path(shutil.copytree(ground.whole("ssvi"), ground.folder()))
    file = folder / ground.generator.choice(("result.json", "metrics.jsonl", "subspace.jsonl"))
    whole = Run.open(folder).result()
    flip(file, ground.generator)
    ended = run_to_end(["show", str(folder)])
    if ended.code == 0:
        return "" if (Run.open(folder).result() or {}).items() >= (whole or {}).items() else f"wrong: {file.name}"
    return "" if file.name in ended.said and len(ended.said.splitlines()) == 1 else f"lost: {ended.said}"


def two_processes(ground: Ground) -> str:
    """Two trainings are started in one folder at once; one trains, the other says so and ends."""
    folder = ground.folder()
    both = [start(train_command("ssvi", folder)) for _ in range(2)]
    ended = [finish(*one) for one in both]
    if sorted(one.code for one in ended) != [0, 1]:
        return f"wrong: exit codes {[one.code for one in ended]}"
    found = differ(folder, ground.whole("ssvi"))
    return f"wrong: {found}" if found else ""


def exchanged_data(ground: Ground) -> str:
    """A number of a table is changed between start and resume, which is refused."""
    place = ground.folder()
    place.mkdir()
    generator = random.Random(0)
    rows = [[generator.gauss(0, 1) for _ in range(3)] for _ in range(60)]
    table = place / "table.csv"
    lines = ["a,b,y", *(",".join(f"{value:.3f}" for value in row) for row in rows)]
    table.write_text("\n".join(lines) + "\n")
    check(run_to_end(["train", "sgd", str(table), "--target=y", *COMMON, f"--out={place / 'run'}"]))
    (place / "run" / "result.json").unlink()
    at = ground.generator.randrange(len(lines[0]) + 1, len("\n".join(lines)))
    text = table.read_text()
    digits = "0123456789".replace(text[at], "")
    if not text[at].isdigit():
        return exchanged_data(ground)
    table.write_text(text[:at] + ground.generator.choice(digits) + text[at + 1 :])
    ended = run_to_end(["train", "--resume", str(place / "run"), "--quiet"])
    return "" if ended.code == 1 and "is not what" in ended.said else f"wrong: exit code {ended.code}: {ended.said}"


ATTACKS: Mapping[str, Callable[[Ground], str]] = {
    "killed while training": while_training,
    "killed twice while resuming": while_resuming,
    "killed while comparing": while_comparing,
    "killed at a point of a write": at_a_point_of_a_write,
    "disk full": disk(errno.ENOSPC),
    "disk read-only": disk(errno.EROFS),
    "a bit of a checkpoint": flipped_checkpoint,
    "a bit of a record": flipped_record,
    "a bit of a finished run": flipped_result,
    "two processes, one folder": two_processes,
    "data exchanged before a resume": exchanged_data,
}


def continued(ground: Ground, method: str, folder: Path) -> str:
    """Resume the run, or begin it where nothing was trained yet, and compare it with one that nobody touched."""
    if not (folder / "result.json").exists():
        begun = (folder / "config.toml").exists()
        ended = run_to_end(["train", "--resume", str(folder), "--quiet"] if begun else train_command(method, folder))
        if ended.code or ended.said:
            return f"lost: exit code {ended.code}: {ended.said}"
    found = differ(folder, ground.whole(method))
    return f"wrong: {found}" if found else ""


def flip(file: Path, generator: random.Random) -> None:
    """Flip a bit of a file."""
    content = bytearray(file.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    file.write_bytes(content)


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    index = json.loads((folder / "checkpoint" / "latest.json").read_bytes())
    return folder / "checkpoint" / str(index["checkpoints"][0]["file"])


def differ(one: Path, other: Path) -> str:
    """Where two runs differ, times apart; empty if they do not."""
    states = [checkpoint.load(folder / "checkpoint") for folder in (one, other)]
    results = [Run.open(folder).result() for folder in (one, other)]
    if None in results:
        return "no result"
    for result in results:
        cost = (result or {}).pop("cost")
        (result or {})["active_parameters"] = cost["active_parameters"]
    pairs = {
        "training": [state["training"] for state in states],
        "result": results,
        **{name: [_rows(folder / name) for folder in (one, other)] for name in ("metrics.jsonl", "subspace.jsonl")},
    }
    return next((found for name, (a, b) in pairs.items() if (found := _difference(a, b, name))), "")


def _difference(a: Any, b: Any, where: str) -> str:
    if type(a) is not type(b):
        return where
    if isinstance(a, Tensor):
        return "" if torch.equal(a, b) else where
    if isinstance(a, dict):
        if list(a) != list(b):
            return where
        pairs: Iterator[tuple[Any, Any, Any]] = ((key, a[key], b[key]) for key in a)
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            return where
        pairs = ((i, *pair) for i, pair in enumerate(zip(a, b, strict=True)))
    else:
        return "" if a == b else where
    return next((found for key, x, y in pairs if (found := _difference(x, y, f"{where}/{key}"))), "")


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: value for key, value in row.items() if key not in NOT_REPEATABLE} for row in rows]


def main(given: Sequence[str] | None = None) -> int:
    """The command; exit code 1 if a try was lost or wrong."""
    parser = argparse.ArgumentParser("python -m benchmarks.attacks", description="Attack runs, and count what is lost.")
    parser.add_argument("--tries", type=int, default=10, help="of each kind of attack")
    parser.add_argument("--seed", type=int, default=0, help="another seed attacks at other moments")
    parser.add_argument("--only", nargs="+", default=list(ATTACKS), help="kinds of attacks, by name")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args(given)
    torch.set_num_threads(1)  # a pool of threads would not survive the forks
    for module in IMPORTS:
        importlib.import_module(module)
    tallies = {name: Tally(name) for name in options.only}
    with tempfile.TemporaryDirectory(prefix="attacks-") as root:
        ground = Ground(Path(root), random.Random(options.seed))
        for number in range(options.tries):
            for name, tally in tallies.items():
                _count(tally, ATTACKS[name](ground))
            if options.json:
                head = {"format": 1, "kind": KIND, "environment": surroundings(THREAD), "seed": options.seed}
                write_atomically(options.json, json_by_rows(head | {"rows": [asdict(one) for one in tallies.values()]}))
            print(
                f"{number + 1} of {options.tries}: " + ", ".join(f"{one.lost + one.wrong}" for one in tallies.values()),
                flush=True,
            )
            for folder in Path(root).glob("run*"):
                shutil.rmtree(folder)
    for tally in tallies.values():
        print(
            f"{tally.attack}: {tally.tries} tries, {tally.lost} lost, {tally.wrong} wrong", *tally.reasons, sep="\n    "
        )
    return int(any(one.lost or one.wrong for one in tallies.values()))


def _count(tally: Tally, found: str) -> None:
    tally.tries += 1
    tally.lost += found.startswith("lost")
    tally.wrong += found.startswith("wrong")
    tally.reasons += [found[:300]] if found else []


if __name__ == "__main__":
    sys.exit(main())
