"""Runs of a comparison in processes of their own: equal to the bit, and nothing of them outlives the one that asked."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gossamer.lab import compare
from gossamer.lab.record import Run
from gossamer.lab.runs.interrupt import Interrupted
from gossamer.lab.runs.workers import _Worker

COMMAND = [
    "compare",
    "sgd,vi",
    "--data=digits",
    "--seeds=1",
    "--device=cpu",
    "--n_draws=3",
    "--model=mlp",
    "--workers=2",
]


@pytest.mark.slow
def test_runs_side_by_side_equal_those_one_after_the_other(settings, whole, assert_same_runs, tmp_path):
    """Here each has one thread: more of them sum in another order."""
    said = []
    methods = ("sgd", "ssvi")
    found = compare({name: settings(name) for name in methods}, 1, tmp_path, workers=2, quiet=True, say=said.append)
    assert (found.has_failures, said) == (False, [])
    assert [folder.name for folder in found.folders] == ["sgd-0", "ssvi-0"]
    for name in methods:
        assert_same_runs(tmp_path / f"{name}-0", whole(name))


@pytest.fixture
def start(tmp_path):
    """Starts the command; what still runs after the test is killed."""
    started = []

    def begin(*flags):
        command = [sys.executable, "-m", "gossamer", *COMMAND, *flags, f"--out={tmp_path / 'runs'}"]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def wait_for(paths):
    deadline = time.monotonic() + 120
    while not all(path.exists() and path.stat().st_size for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children_of(process):
    """Its workers, in the order in which they were started."""
    found = map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    return sorted(one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes())


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_who_asked_is_stopped_or_killed(number, start, tmp_path):
    """All stop with a checkpoint, and the same command goes on."""
    process = start("--epochs=400")
    wait_for([tmp_path / "runs" / name / "metrics.jsonl" for name in ("sgd-0", "vi-0")])
    children = children_of(process.pid)
    assert len(children) == 2
    process.send_signal(number)
    said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    if number == signal.SIGINT:
        assert said[-1] == "gossamer: interrupted; give the same command again: what is finished is kept"
        assert not any("Traceback" in line for line in said)
    deadline = time.monotonic() + 30
    while any(map(is_alive, children)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for name in ("sgd-0", "vi-0"):
        assert (tmp_path / "runs" / name / "checkpoint" / "latest.json").exists()
        assert Run.open(tmp_path / "runs" / name).result() is None


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers in /proc")
def test_a_killed_worker_is_a_line_and_the_same_command_continues_it(start, tmp_path):
    process = start("--epochs=60")
    wait_for([tmp_path / "runs" / "vi-0" / "metrics.jsonl"])
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    lost = [line for line in err.splitlines() if "failed" in line]
    assert lost == ["vi, seed 0 failed: its process was killed (SIGKILL); the same command continues it"]
    assert "vi failed: seed 0: its process was killed" in " ".join(out.split())
    process = start("--epochs=60")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert Run.open(tmp_path / "runs" / "vi-0").result() is not None


def test_a_run_that_cannot_be_trained_does_not_end_the_others(settings, monkeypatch, tmp_path):
    """Without processes: what they would say."""
    said = {"sgd-0": [(1, "epoch 1/3"), ""], "vi-0": ["out of memory"]}

    class Pipe:
        def __init__(self, name):
            self.left = list(said[name])

        def recv(self):
            if not self.left:
                raise EOFError
            return self.left.pop(0)

    class Process:
        exitcode = 0

        def join(self):
            (tmp_path / "asked").touch()

    def begin(folder, settings, threads, trusted):
        return _Worker(folder, settings, Process(), Pipe(folder.name))

    monkeypatch.setattr(_Worker, "start", begin)
    monkeypatch.setattr("gossamer.lab.runs.workers.wait", list)
    from gossamer.lab.runs.workers import train_side_by_side

    runs = {tmp_path / name: settings("sgd") for name in said}
    assert train_side_by_side(runs, 2, quiet=True) == {tmp_path / "sgd-0": "", tmp_path / "vi-0": "out of memory"}


def test_an_interruption_stops_all_before_it_is_told(settings, monkeypatch, tmp_path):
    stopped = []

    class Process:
        def terminate(self):
            stopped.append("asked")

        def join(self):
            stopped.append("waited")

    def interrupt(pipes):
        raise KeyboardInterrupt

    monkeypatch.setattr(_Worker, "start", lambda folder, one, threads, trusted: _Worker(folder, one, Process(), None))
    monkeypatch.setattr("gossamer.lab.runs.workers.wait", interrupt)
    with pytest.raises(Interrupted, match="give the same command again"):
        compare({"sgd": settings("sgd")}, 2, tmp_path, workers=2, quiet=True)
    assert stopped == ["asked", "asked", "waited", "waited"]
