"""Several processes train and record what one does, and go on when one of them is gone, or with another number."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gossamer.distributed import OneProcess
from gossamer.lab import Interrupted, Settings, resume
from gossamer.lab import train as train_run
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs import job
from gossamer.lab.runs.job import restore, settings_of, start
from gossamer.lab.runs.progress import RankLostError, as_started
from gossamer.train import checkpoint

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)

# Shares of 4 and 3, and a last batch of one example that cannot be shared. SGD draws no noise.
NEW = ["sgd", "two_moons", "--n_train=120", "--batch_size=7", "--epochs=2", "--n_draws=1", "--device=cpu", "--quiet"]


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def train(*arguments, programs=None):
    command = [sys.executable, "-m", "gossamer", "train", *map(str, arguments)]
    environment = ENVIRONMENT | ({} if programs is None else {"PATH": f"{programs}:{os.environ['PATH']}"})
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "srun").touch(mode=0o755)  # where Slurm is installed and not used, nothing is said about it
    for n in (1, 2):
        done = train(*NEW, f"--ranks={n}", f"--out={folder / str(n)}", programs=folder)
        assert (done.returncode, done.stderr) == (0, "")
    return [Run.open(folder / str(n)) for n in (1, 2)]


def test_uneven_shares_train_as_one_process(runs):
    one, two = (checkpoint.load(run.checkpoint_folder)["training"]["model"] for run in runs)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-5, msg=name)


def test_recorded_losses_are_those_of_all_ranks(runs):
    one, two = ([row["loss"] for row in run.metrics()] for run in runs)
    assert len(one) == 2
    assert two == pytest.approx(one, rel=1e-5)


def settings_of_new():
    return Settings("sgd", "two_moons", n_train=120, batch_size=7, epochs=2, n_draws=1, device="cpu")


def test_all_ranks_count_their_examples(runs):
    tallies = [checkpoint.load(run.checkpoint_folder)["tally"] for run in runs]
    # Every rank passes a last batch of one example that cannot be shared.
    assert [tally["examples"] for tally in tallies] == [2 * 120, 2 * 121]


def test_the_peak_of_memory_is_that_of_the_rank_that_took_most(tmp_path):
    program = (
        "import sys, torch.distributed as dist; from gossamer.lab.runs.accounting import Tally\n"
        f"rank, place = int(sys.argv[1]), 'file://{tmp_path / 'meeting'}'\n"
        "dist.init_process_group('gloo', place, rank=rank, world_size=2)\n"
        "tallies = [Tally(peak_memory=peaks[rank]) for peaks in ([5, 7], [7, 5], [None, None])]\n"
        "print([tally.state_dict()['peak_memory'] for tally in tallies])\n"
        "dist.destroy_process_group()\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    assert [rank.communicate(timeout=60)[0].strip() for rank in ranks] == ["[7, 7, None]"] * 2


def test_a_run_goes_on_with_another_number_of_ranks(runs, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        train_run(settings_of_new(), folder, quiet=True, stop_after=0)
    done = train(f"--resume={folder}", "--ranks=2", "--quiet")
    assert done.returncode == 0
    assert done.stderr.startswith("step 1 was reached with 1 rank(s), the rest trains with 2:")
    assert done.stderr.count("\n") == 1
    whole, changed = (checkpoint.load(run.checkpoint_folder) for run in (runs[0], Run.open(folder)))
    for name, value in whole["training"]["model"].items():
        torch.testing.assert_close(changed["training"]["model"][name], value, rtol=1e-5, atol=1e-5, msg=name)
    assert [row["loss"] for row in Run.open(folder).metrics()] == pytest.approx(
        [row["loss"] for row in runs[0].metrics()], rel=1e-5
    )
    assert changed["tally"]["examples"] == 2 * 121


def test_ranks_do_not_go_on_with_weights_that_one_process_has_removed(tmp_path, monkeypatch):
    run = train_run(replace(settings_of_new(), method="magnitude", options={}), tmp_path / "run", quiet=True)
    (run.folder / "result.json").unlink()
    told = replace(settings_of(run), method="sgd", options={}, ranks=2)
    monkeypatch.setattr(job, "start", lambda *args: start(settings_of(run), *args[1:]))  # a method that ranks accept
    monkeypatch.setattr(job, "launch", lambda settings: OneProcess("cpu"))
    with pytest.raises(RecordError, match=r"has removed weights for good, .* continue it with --ranks 1"):
        restore(run, told)


@pytest.fixture
def killed(tmp_path):
    """A run of two ranks, one of which was killed, and what the command said."""
    folder = tmp_path / "run"
    new = ["ssvi", "two_moons", "--epochs=100000", "--device=cpu", "--quiet", "--ranks=2", "--checkpoint_seconds=0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "train", *new, f"--out={folder}"],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "checkpoint" / "latest.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    (other,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(other), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    return folder, process.returncode, err


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_a_killed_rank_is_one_line_and_the_run_goes_on_without_it(killed, caplog):
    folder, code, err = killed
    way_on = f"continue with: gossamer train --resume {folder}"
    assert (code, err) == (1, f"gossamer: another rank was killed or has failed; {way_on}\n")
    step = checkpoint.load(folder / "checkpoint")["training"]["step"]
    with pytest.raises(Interrupted):
        resume(folder, ranks=1, quiet=True, stop_after=0)
    state = checkpoint.load(folder / "checkpoint")["training"]
    assert state["step"] == step + 1
    assert len(state["random"]["cpu"]) == 1
    assert "with 2 rank(s), the rest trains with 1" in caplog.text


def test_a_rank_that_hangs_because_another_is_gone_ends_with_the_same_line(tmp_path):
    program = (
        "import subprocess, sys, time; from pathlib import Path; from gossamer.lab.runs import progress\n"
        "progress.PATIENCE = 0.1\n"
        "progress._started.append(subprocess.Popen([sys.executable, '-c', 'raise SystemExit(3)']))\n"
        "with progress.together(Path('there'), 2):\n    time.sleep(100)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "gossamer: another rank was killed or has failed; start again\n")


def test_a_rank_whose_starter_was_killed_before_they_met_ends_with_the_same_line(tmp_path):
    program = (
        "import os, signal, time; from pathlib import Path; from gossamer.lab.runs import progress\n"
        "progress.PATIENCE = 0.1\n"
        "if 'LOCAL_RANK' not in os.environ:\n"
        "    progress._start_others(2)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with progress.together(Path('there'), 2):\n    time.sleep(20)\n"
    )
    (tmp_path / "program.py").write_text(program)
    both = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(both, cwd=tmp_path, capture_output=True, text=True, timeout=60)  # waits for the orphan, too
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == "gossamer: another rank was killed or has failed; start again\n"


def test_a_rank_that_is_lost_before_all_know_the_folder_is_one_line(tmp_path, monkeypatch):
    class Lost(OneProcess):
        def broadcast(self, value):
            raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:554] Connection closed by peer")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "launch", lambda settings: Lost("cpu"))
    with pytest.raises(RankLostError, match="another rank was killed or has failed; start again"):
        train_run(replace(settings_of_new(), ranks=2), quiet=True)


def test_the_number_of_ranks_is_that_of_torchrun(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert as_started(settings_of_new()).ranks == 4
    with pytest.raises(ValueError, match="torchrun has started 4 processes, not 2: leave --ranks out"):
        as_started(replace(settings_of_new(), ranks=2))
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="4 processes on 3 machines: start as many on each machine"):
        train_run(settings_of_new(), "somewhere")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ValueError, match="max-restarts would train a new run: leave it out"):
        train_run(settings_of_new(), "somewhere")


def test_in_a_batch_script_of_slurm_a_process_starts_the_others_itself(tmp_path, monkeypatch, runs):
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    done = train(*NEW, "--ranks=2", f"--out={tmp_path / 'run'}")
    assert (done.returncode, done.stderr) == (0, "")
    whole, again = (checkpoint.load(run.checkpoint_folder) for run in (runs[1], Run.open(tmp_path / "run")))
    for name, value in whole["training"]["model"].items():
        assert torch.equal(again["training"]["model"][name], value), name


@pytest.mark.slow
def test_processes_of_torchrun_train_as_those_that_one_starts(tmp_path, runs):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "gossamer"]
    command = [*start, "train", *NEW, f"--out={tmp_path / 'run'}"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    whole, again = (checkpoint.load(run.checkpoint_folder) for run in (runs[1], Run.open(tmp_path / "run")))
    for name, value in whole["training"]["model"].items():
        assert torch.equal(again["training"]["model"][name], value), name


@pytest.mark.slow
def test_agents_of_two_machines_train_one_run(tmp_path):
    folder = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"localhost:{free.getsockname()[1]}"
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    start += [f"--rdzv-endpoint={endpoint}", "--rdzv-id=1", "-m", "gossamer", "train", *NEW, f"--out={folder}"]
    agents = [subprocess.Popen(start, env=ENVIRONMENT, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [agent.wait(timeout=100) for agent in agents] == [0, 0]
    assert [row["epoch"] for row in Run.open(folder).metrics()] == [1, 2]
