"""Attacks on the files of a run: disks, bits, data. Each returns "" for a try that held, "lost: …" or "wrong: …"."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from gossamer.lab.record import Run
from tests.endurance.attacked import (
    COMMON,
    EACH_STEP,
    N_STEPS,
    Ended,
    Ground,
    compared,
    continued,
    finish,
    is_over,
    run_to_end,
    start,
    train_command,
    wait_for_step,
)
from tests.endurance.intercepted import fail_from

__all__ = ["disk", "exchanged_data", "flipped_checkpoint", "flipped_record", "flipped_result", "folder_taken_away"]

RECORDS = ("config.toml", "environment.json", "data.json", "metrics.jsonl", "subspace.jsonl")


def disk(error: int) -> Callable[[Ground], str]:
    """From a random call on, the disk takes no more; later it does again."""

    def attack(ground: Ground) -> str:
        folder = ground.folder()
        number = ground.generator.randrange(1, len(ground.calls) + 1)
        ended = run_to_end(train_command("ssvi", folder, *EACH_STEP), fail_from(number, error))
        if ended.code and not ended.in_one_line:
            return f"lost: exit code {ended.code}: {ended.said}"
        return continued(ground, "ssvi", folder)

    return attack


def folder_taken_away(ground: Ground) -> str:
    """The run folder is removed or moved, or a copy or another run takes its place; the training says so and ends."""
    method, folder, elsewhere = ground.method(), ground.folder(), ground.folder()
    way = ground.generator.choice(("removed", "moved", "a copy", "another run"))
    often = ground.generator.random() < 0.5
    process, said = start(train_command(method, folder, *(EACH_STEP if often else [])))
    step = ground.generator.randrange(1, N_STEPS)
    if not (wait_for_step(process, folder, step) if often else _begins(process, folder)):
        return folder_taken_away(ground)  # it was faster than the attack
    time.sleep(ground.generator.random() / (100 if often else 10))
    is_moved = way in ("moved", "a copy")
    was_finished = _move(folder, elsewhere) if is_moved else _remove(folder, ground.generator)
    if way == "a copy":
        shutil.copytree(elsewhere, folder, ignore=shutil.ignore_patterns(".*.tmp"))
    other = start(train_command(method, folder)) if way == "another run" else None
    ended, begun = finish(process, said), finish(*other) if other else Ended(0, "")
    if was_finished:
        return folder_taken_away(ground)
    if not ended.in_one_line or str(folder) not in ended.said:
        return f"wrong: {way}, exit code {ended.code}: {ended.said}"
    if begun.code:
        return f"lost: {way}: {begun.said}"
    # Where it was moved, or the --out of the next one; the copy is as good.
    return continued(ground, method, folder if way in ("a copy", "another run") else elsewhere)


def _begins(process: int, folder: Path) -> bool:
    """Whether a training has made its folder before it has ended."""
    while not (folder / "data.json").exists():
        if is_over(process):
            return False
        time.sleep(0.002)
    return True


def _move(folder: Path, elsewhere: Path) -> bool:
    """Move a run folder; returns whether the run was finished."""
    folder.rename(elsewhere)
    return (elsewhere / "result.json").exists()


def _remove(folder: Path, generator: random.Random) -> bool:
    """Remove a run folder, file by file; returns whether the run was finished before its lock was gone."""
    was_finished, files = (folder / "result.json").exists(), [path for path in folder.rglob("*") if path.is_file()]
    generator.shuffle(files)
    for file in files:
        was_finished |= file.name == ".lock" and (folder / "result.json").exists()
        file.unlink(missing_ok=True)
    while folder.exists():  # what is written meanwhile is in the way
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    return was_finished


def flipped_checkpoint(ground: Ground) -> str:
    """A bit of the newest checkpoint; it is refused, deleted, and the run continues from the one before."""
    method = ground.method()
    folder = ground.stopped(method)
    index = json.loads((folder / "checkpoint" / "latest.json").read_bytes())
    file = folder / "checkpoint" / str(index["checkpoints"][0]["file"])
    flip(file, ground.generator)
    ended = run_to_end(["train", "--resume", str(folder), "--quiet"])
    if ended.code == 0:
        return compared(folder, ground.whole(method))
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
        found = compared(folder, ground.whole(method))
        return f"{found} ({file.name})" if found else ""
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
    return "" if file.name in ended.said and ended.in_one_line else f"lost: {ended.said}"


def exchanged_data(ground: Ground) -> str:
    """A number of a table is changed between start and resume, which is refused."""
    place = ground.folder()
    place.mkdir()
    generator = random.Random(0)
    rows = [[generator.gauss(0, 1) for _ in range(3)] for _ in range(60)]
    table = place / "table.csv"
    lines = ["a,b,y", *(",".join(f"{value:.3f}" for value in row) for row in rows)]
    table.write_text("\n".join(lines) + "\n")
    begun = run_to_end(["train", "sgd", str(table), "--target=y", *COMMON, f"--out={place / 'run'}"])
    if begun.code:
        raise RuntimeError(f"a run without attack has failed: {begun.said}")
    (place / "run" / "result.json").unlink()
    at = ground.generator.randrange(len(lines[0]) + 1, len("\n".join(lines)))
    text = table.read_text()
    digits = "0123456789".replace(text[at], "")
    if not text[at].isdigit():
        return exchanged_data(ground)
    table.write_text(text[:at] + ground.generator.choice(digits) + text[at + 1 :])
    ended = run_to_end(["train", "--resume", str(place / "run"), "--quiet"])
    return "" if ended.code == 1 and "is not what" in ended.said else f"wrong: exit code {ended.code}: {ended.said}"


def flip(file: Path, generator: random.Random) -> None:
    """Flip a bit of a file."""
    content = bytearray(file.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    file.write_bytes(content)
