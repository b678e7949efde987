"""Processes that are killed at random moments, and what a resume makes of what they left."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.lab import Settings, resume
from gossamer.lab.record import Run
from gossamer_sweep.space import read_space
from gossamer_sweep.study import sweep

METHODS = ("ssvi", "vi", "rigl")


def steps_in(folder):
    return [entry["step"] for entry in json.loads((folder / "checkpoint" / "latest.json").read_text())["checkpoints"]]


def arguments(command, folder, method=None):
    """``gossamer train``, new or resumed, with a checkpoint a step."""
    options = ["--density=0.1", "--update_period=4"] if method in ("ssvi", "rigl") else []
    new = [
        method,
        "digits",
        "--epochs=3",
        "--n_val=239",
        "--n_draws=3",
        "--device=cpu",
        "--model=mlp",
        f"--out={folder}",
        *options,
    ]
    told = new if command == "train" else ["--resume", str(folder)]
    return ["train", *told, "--quiet", "--checkpoint_seconds=0"]


def kill_when(process, folder, step, wait, number=signal.SIGKILL):
    """Send a signal some time after a step is in the checkpoint."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        os.kill(process, 0)  # it must still be there
        with contextlib.suppress(FileNotFoundError):
            if steps_in(folder)[0] >= step:
                break
        time.sleep(0.002)
    time.sleep(wait)
    os.kill(process, number)


@pytest.fixture(scope="module")
def forks():
    """Where commands are run in processes that can be killed."""
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forks.py")],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def run(command, *how):
            server.stdin.write(json.dumps(command) + "\n")
            server.stdin.flush()
            kill_when(int(server.stdout.readline()), *how)
            return int(server.stdout.readline())

        yield run
        server.stdin.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_process(method, number, forks, whole, assert_same_runs, tmp_path):
    generator, folder = random.Random(f"{method}{number}"), tmp_path / "run"
    step, wait = generator.randrange(1, 30), generator.random() / 300  # within a step
    code = forks(arguments("train", folder, method), folder, step, wait, number)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert Run.open(folder).result() is None
    resume(folder, quiet=True)
    assert_same_runs(folder, whole(method))


def test_a_sweep_whose_process_is_killed(forks, tmp_path):
    """Whoever comes next goes on from the checkpoint: the same trials, seeds and values as if nothing had happened."""
    settings = Settings("sgd", "two_moons", epochs=3, n_draws=1, device="cpu")
    space = read_space("sgd", ["lr=log:1e-3..1", "momentum=0.5,0.9"])
    told = {"trials": 2, "quiet": True}
    undisturbed = sweep(settings, space, "moons", tmp_path / "whole", **told)
    folder, flags = tmp_path / "killed", ["--epochs=3", "--n_draws=1", "--device=cpu", "--trials=2", "--quiet"]
    search = ["--search=lr=log:1e-3..1", "--search=momentum=0.5,0.9", "--checkpoint_seconds=0", f"--out={folder}"]
    command = ["sweep", "sgd", "--data=two_moons", "--study=moons", *flags, *search]
    assert forks(command, folder / "trial-0000", 10, 0) == -signal.SIGKILL
    begun = steps_in(folder / "trial-0000")[0]
    assert begun >= 10
    found = sweep(settings, space, "moons", folder, **told)
    assert sorted(path.name for path in folder.glob("trial-*")) == ["trial-0000", "trial-0001"]
    assert [replace(one, seconds=0) for one in found.trials] == [replace(one, seconds=0) for one in undisturbed.trials]
    assert found.count("finished") == 2


def start(command):
    return subprocess.Popen(
        [sys.executable, "-m", "gossamer", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_twenty_random_kills(whole, assert_same_runs, tmp_path):
    """Of processes started from the shell, each resumed by a new one; some of those are killed as well."""
    generator = random.Random(20)
    for kill in range(20):
        method, folder = METHODS[kill % 3], tmp_path / f"run{kill}"
        number = generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        step = generator.randrange(0, 34)
        process = start(arguments("train", folder, method))
        kill_when(process.pid, folder, step, generator.random() / 100, number)
        said = process.communicate(timeout=120)[1]
        print(f"{kill}: {method} {number.name} at step {steps_in(folder)[0]}, exit code {process.returncode}")
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130
            assert said == f"gossamer: interrupted; continue with: gossamer train --resume {folder}\n"
        if kill % 4 == 0:
            process = start(arguments("resume", folder))
            kill_when(process.pid, folder, step + 4, 0)
            process.communicate(timeout=120)
            assert process.returncode == -signal.SIGKILL
        process = start(arguments("resume", folder))
        assert process.communicate(timeout=120)[1] == ""
        assert process.returncode == 0
        assert_same_runs(folder, whole(method))
