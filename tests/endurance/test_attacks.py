"""Attacks on runs: what they count, what they compare, and that they notice a run that does not hold."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gossamer.lab import Settings, train
from gossamer.lab.record import Run
from gossamer.train import checkpoint
from tests.endurance import attacks
from tests.endurance.attacked import Ended, differ
from tests.endurance.clock_jumps import DECADE, HOUR, JumpingClock, implausible

FORKS = [name for name in attacks.ATTACKS if name != "one of two ranks killed"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = Settings("sgd", "two_moons", epochs=2, n_draws=1, device="cpu")
    return train(settings, tmp_path_factory.mktemp("attacks") / "run", quiet=True).folder


def test_a_copy_does_not_differ_and_a_bit_does(trained, tmp_path):
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    assert differ(copy, trained) == ""
    state = checkpoint.load(copy / "checkpoint")
    name, weight = next(iter(state["training"]["model"].items()))
    weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(9.0))
    checkpoint.save(copy / "checkpoint", state, state["training"]["step"])
    assert differ(copy, trained) == f"training/model/{name}"


def test_times_are_no_difference_and_a_loss_is(trained, tmp_path):
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    (copy / "result.json").unlink()
    assert differ(copy, trained) == "no result"
    result = Run.open(trained).result()
    for key, found in {"seconds": "", "loss": "metrics.jsonl/1/loss"}.items():
        *rows, last = Run.open(trained).metrics()
        (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, last | {key: 7.0}]))
        Run.open(copy).write_result(result)
        assert differ(copy, trained) == found


def test_a_failure_is_one_line():
    assert Ended(1, "gossamer: no").in_one_line
    assert not any(one.in_one_line for one in (Ended(0, ""), Ended(1, ""), Ended(1, "a\nb"), Ended(-9, "a")))


def test_a_clock_jumps_ahead_and_back_by_hours_to_years(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 0.0)
    clock = JumpingClock(0)
    seen = [clock.now() for _ in range(200)]
    off = [abs(time) for time in seen if time]
    assert min(off) >= HOUR
    assert max(off) <= DECADE
    assert max(seen) > 3e7 > -3e7 > min(seen)  # a year


@pytest.mark.parametrize(
    ("seconds", "total", "predicted", "rate", "found"),
    [
        ([1.0, 2.0], 2.5, 0.1, 9.0, ""),
        ([1.0, 0.5], 2.5, 0.1, 9.0, "wrong: seconds"),
        ([-1.0, 2.0], 2.5, 0.1, 9.0, "wrong: seconds"),
        ([1.0, float("nan")], 2.5, 0.1, 9.0, "wrong: seconds"),
        ([1.0, 2.0], 3600.0, 0.1, 9.0, "wrong: seconds"),
        ([1.0, 2.0], 2.5, -0.1, 9.0, "wrong: prediction_seconds"),
        ([1.0, 2.0], 2.5, 0.1, float("inf"), "wrong: examples_per_second"),
    ],
)
def test_durations_that_cannot_be(seconds, total, predicted, rate, found, tmp_path):
    run = Run.create(tmp_path / "run", {"method": "sgd"})
    for step, one in enumerate(seconds, start=1):
        run.append({"step": step, "seconds": one, "examples_per_second": rate})
    run.write_result({"cost": {"seconds": total, "prediction_seconds": predicted}})
    assert implausible(run.folder, elapsed=5.0).startswith(found)
    assert bool(implausible(run.folder, elapsed=5.0)) == bool(found)


def test_counts_reasons_and_the_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(attacks, "prepare", lambda: None)
    monkeypatch.setattr(attacks, "MOST_TRIES", {"wrong": 1})
    found = {"good": "", "lost": "lost: it is gone", "wrong": "wrong: metrics.jsonl"}
    monkeypatch.setattr(attacks, "ATTACKS", {name: lambda ground, what=what: what for name, what in found.items()})
    path = tmp_path / "attacks.json"
    assert attacks.main(["--tries=2", "--only", "good"]) == 0
    assert attacks.main(["--tries=2", f"--json={path}"]) == 1
    assert "lost: 2 tries, 2 lost, 0 wrong\n    lost: it is gone\n    lost: it is gone\n" in capsys.readouterr().out
    assert [list(row.values()) for row in json.loads(path.read_text())["rows"]] == [
        ["good", 2, 0, 0, []],
        ["lost", 2, 2, 0, [found["lost"]] * 2],
        ["wrong", 1, 0, 1, [found["wrong"]]],
    ]


def test_an_attack_that_does_not_exist():
    with pytest.raises(SystemExit):
        attacks.main(["--only", "flood"])


def attack(*arguments, before=""):
    """In a process that can be forked, after a line that breaks something."""
    program = f"{before}\nimport sys; from tests.endurance.attacks import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_every_attack_on_one_process_is_survived():
    done = attack("--tries=1", "--only", *FORKS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_killed_rank_is_survived():
    done = attack("--tries=1", "--only", "one of two ranks killed")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        (
            "folder removed, moved or replaced",
            "from gossamer.lab.record import Lock; Lock.check = lambda self: None",
            "wrong: ",
        ),
        (
            "the clock jumps",
            "import time; from types import SimpleNamespace; from gossamer.lab.runs import job\n"
            "job.time = SimpleNamespace(perf_counter=lambda: time.time())",
            "wrong: seconds",
        ),
        (
            "killed while the folder is made",
            "from gossamer.lab.record import run; run._why_missing = lambda folder: 'it is'",
            "lost: exit code 1",
        ),
    ],
)
def test_what_does_not_hold_is_noticed(name, broken, reason):
    done = attack("--tries=25", "--only", name, before=broken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert reason in done.stdout
