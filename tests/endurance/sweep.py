"""A sweep by three processes, two of which are killed again and again: is any trial lost, or counted twice?

    python -m tests.endurance.sweep --json results/sweep.json [--trials 30] [--kills 3] [--seed 0]

All three give the same command. Two of them are ended by SIGKILL at random times, up to half a second after a random
epoch of a trial, and started again. Then every trial that a kill has met is trained once more without one, and must
come to the same numbers, to the bit. A few minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.files.atomic import json_by_rows
from gossamer.lab.record import Run, write_atomically
from gossamer.lab.record.contents import environment
from gossamer.lab.runs.comparison import KEPT_ENVIRONMENT
from gossamer.lab.runs.evaluation import evaluate_run
from gossamer.lab.runs.folders import settings_of
from gossamer.lab.runs.job import train
from gossamer.lab.runs.progress import SeenEnough
from gossamer_sweep.record import SweepRecord, TrialRecord

__all__ = ["Kill", "Outcome", "attack"]

KIND = "sweep-kills"
N_PROCESSES, N_VICTIMS = 3, 2
SEARCH = ("lr=log:1e-3..1", "density=0.02,0.05,0.1", "weight_decay=log:1e-5..1e-3")
SETTINGS = ("ssvi", "--data=digits", "--epochs=10", "--n_draws=3", "--device=cpu", "--checkpoint_seconds=0.2")
LAST_EPOCH, WAIT = 6, 0.5  # of a trial, after which a kill comes, and the longest time from there, in seconds


@dataclass(frozen=True)
class Kill:
    """A kill: which process had which trial, when, and at which epoch the run was."""

    process: int
    trial: str
    epoch: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What became of the trials."""

    asked: int
    finished: int
    pruned: int
    failed: int
    lost: int  # asked for, but without an end
    duplicated: int  # numbers that occur twice, folders without a trial, epochs recorded twice
    killed: int  # trials whose process was killed while it had them
    compared: int  # of these, finished or pruned ones that were trained again without a kill
    differing: int  # of those, the ones with other numbers after any epoch or at the end
    seconds: float


class Process:
    """A process of the sweep, started again after each of its kills."""

    def __init__(self, place: int, command: Sequence[str], folder: Path, kills: Sequence[tuple[int, float]]) -> None:
        self.place, self.command, self.folder, self.kills = place, command, folder, list(kills)
        self.done: list[Kill] = []
        self.began = time.monotonic()
        self.start()

    def start(self) -> None:
        """Give the command, with its progress in a file."""
        self.log = self.folder.parent / f"process-{self.place}-{len(self.done)}.log"
        self.due: float | None = None
        with self.log.open("w") as log:
            self.running = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def trial(self) -> str:
        """The trial that it said last to have begun."""
        begun = re.findall(r"^(trial-\d+): \w+ [^;]*,", self.log.read_text(), re.MULTILINE)
        return begun[-1] if begun else ""

    def epoch(self, trial: str) -> int:
        """How many epochs a trial has."""
        path = self.folder / trial / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def look(self) -> bool:
        """Kill it if its time has come; returns whether it still runs."""
        if self.running.poll() is not None:
            return False
        trial = self.trial()
        if self.kills and trial and self.due is None and self.epoch(trial) >= self.kills[0][0]:
            self.due = time.monotonic() + self.kills[0][1]
        if self.due is not None and time.monotonic() >= self.due:
            self.running.send_signal(signal.SIGKILL)
            self.running.wait()
            if self.running.returncode == -signal.SIGKILL:  # it might have ended just before
                del self.kills[0]
                self.done.append(Kill(self.place, trial, self.epoch(trial), round(time.monotonic() - self.began, 1)))
                self.start()
        return True


def attack(folder: Path, trials: int, kills: int, seed: int) -> tuple[Outcome, list[Kill]]:
    """Run the sweep in a folder, with so many kills of each victim."""
    draw = random.Random(seed)
    searched = [f"--search={text}" for text in SEARCH]
    command = [sys.executable, "-m", "gossamer", "sweep", *SETTINGS, *searched, "--study=attack", f"--trials={trials}"]
    command.append(f"--out={folder}")
    began = time.monotonic()
    plans = [[(draw.randint(0, LAST_EPOCH), draw.uniform(0, WAIT)) for _ in range(kills)] for _ in range(N_VICTIMS)]
    plans += [[]] * (N_PROCESSES - N_VICTIMS)
    processes = [Process(place, command, folder, plan) for place, plan in enumerate(plans)]
    while any([one.look() for one in processes]):  # each of them, not up to the first that runs
        time.sleep(0.02)
    for one in processes:
        if one.running.returncode != 0:
            raise RuntimeError(f"process {one.place} has failed:\n{one.log.read_text()[-2000:]}")
    seconds = round(time.monotonic() - began, 1)
    done = [kill for one in processes for kill in one.done]
    return _judge(folder, trials, {kill.trial for kill in done}, seconds), done


def _judge(folder: Path, trials: int, killed: set[str], seconds: float) -> Outcome:
    torch.set_num_threads(1)  # as the processes had: another number adds in another order
    record = SweepRecord.read(folder)
    counts = {state: record.count(state) for state in ("finished", "pruned", "failed")}
    folders = {path.name for path in folder.glob("trial-*") if (path / "config.toml").exists()}
    numbers = [one.number for one in record.trials]
    epochs = [[row["epoch"] for row in Run.open(folder / name).metrics()] for name in folders]
    twice = len(numbers) - len(set(numbers)) + len(folders - {one.folder for one in record.trials})
    twice += sum(found != list(range(1, len(found) + 1)) for found in epochs)
    ended = [one for one in record.trials if one.folder in killed and one.state in ("finished", "pruned")]
    differing = sum(_differs(folder, one) for one in ended)
    found = {"lost": trials - sum(counts.values()), "duplicated": twice, "killed": len(killed)}
    return Outcome(trials, **counts, **found, compared=len(ended), differing=differing, seconds=seconds)


def _differs(folder: Path, trial: TrialRecord) -> bool:
    """Whether the trial has other numbers than one that nothing interrupts."""
    seen = list[list[float]]()

    def watch(row: Mapping[str, Any]) -> bool:
        seen.append([row["epoch"], row["val_nll"]])
        return len(seen) < len(trial.epochs)

    with tempfile.TemporaryDirectory() as other:
        with contextlib.suppress(SeenEnough):
            train(settings_of(Run.open(folder / trial.folder)), Path(other) / "run", quiet=True, watch=watch)
        objective = evaluate_run(Path(other) / "run", split="val")["nll"]
    return seen != trial.epochs or (trial.state == "finished" and objective != trial.objective)


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack a sweep, print and store what became of it; fails if anything was lost, duplicated or differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.endurance.sweep", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--kills", type=int, default=3, help="of each of the two victims")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome, kills = attack(Path(folder) / "sweep", told.trials, told.kills, told.seed)
    known = environment()
    content: dict[str, Any] = {"format": 1, "kind": KIND, "environment": {"date": known["time"][:10]}}
    content["environment"] |= {key: known[key] for key in KEPT_ENVIRONMENT}
    content |= {"processes": N_PROCESSES, "victims": N_VICTIMS, "seed": told.seed, "kills_per_victim": told.kills}
    content |= {"command": shlex.join(["gossamer", "sweep", *SETTINGS, *(f"--search={text}" for text in SEARCH)])}
    content |= asdict(outcome) | {"kills": [asdict(kill) for kill in kills]}
    print(json_by_rows(content), end="")
    if told.json:
        write_atomically(told.json, json_by_rows(content))
    return 1 if outcome.lost or outcome.duplicated or outcome.differing else 0


if __name__ == "__main__":
    sys.exit(main())
