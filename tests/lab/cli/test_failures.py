"""What can go wrong outside of the command: one clear line, a non-zero exit, no traceback unless asked for."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gossamer.lab.cli import main
from gossamer.lab.record import Run
from gossamer.lab.runs import job as job_module
from gossamer.train import Training

QUICK = ["--epochs", "2", "--n-draws", "2", "--device", "cpu", "--quiet"]
NEW = ["train", "ssvi", "digits", "--n-val", "239", *QUICK]


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "copy of a run")


@pytest.fixture
def unfinished(run):
    (run / "result.json").unlink()
    return run


@pytest.fixture
def disk(tmp_path):
    """Mounts a small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
        return folder

    if shutil.which("mount") is None:
        pytest.skip("there is no mount here")
    yield mount
    subprocess.run(["umount", folder], capture_output=True, check=False)


def test_density_zero(refused, tmp_path):
    assert refused(1, *NEW, "--density", "0", "--out", tmp_path / "run").startswith(
        "density must be a number in (0, 1]"
    )
    assert not (tmp_path / "run").exists()


def test_an_existing_folder(refused, finished, tmp_path):
    message = refused(1, *NEW, "--out", finished)
    assert message == (
        f"{finished} holds a finished run: gossamer show '{finished}' shows it; a new one needs another --out"
    )
    (tmp_path / "file").write_text("in the way")
    assert (
        refused(1, *NEW, "--out", tmp_path / "file")
        == f"{tmp_path / 'file'} is a file, not a folder: give another --out"
    )


def test_several_runs_on_the_same_day(gossamer, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--lr=0.01"], ["--seed=1"], []):
        assert gossamer("train", "sgd", "digits", *QUICK, *options)[0] == 0
    names = ["-sgd-digits-0", "-sgd-digits-0-2", "-sgd-digits-0-3", "-sgd-digits-1"]
    assert sorted(path.name[10:] for path in (tmp_path / "runs").iterdir()) == names
    assert refused(1, "train", "ssvi", "digits", "--density", "1.5").startswith("density must be a number in (0, 1]")
    assert len(list((tmp_path / "runs").iterdir())) == len(names)


def test_a_read_only_folder(refused, disk):
    folder = disk("size=1m,ro")
    assert refused(1, *NEW, "--out", folder / "run") == (
        f"{folder / 'run'} could not be written: the file system is read-only; give another --out"
    )


def test_a_disk_that_is_really_full_and_then_is_not(refused, gossamer, finished, disk):
    """The checkpoint does not fit; once there is room the run goes on to the same end."""
    folder = disk("size=64k")
    message = refused(1, *NEW, "--density", "0.1", "--out", folder / "run", "--checkpoint-seconds", "0")
    assert message.endswith("could not be written: the disk is full; free some space and resume")
    disk("remount,size=10m")
    code, _, err = gossamer("train", "--resume", folder / "run", "--quiet")
    assert (code, err) == (0, "")
    assert Run.open(folder / "run").metrics()[-1]["val_nll"] == Run.open(finished).metrics()[-1]["val_nll"]


@pytest.mark.parametrize("n_writes", [0, 1, 2, 3, 10])
def test_a_full_disk_at_any_write(refused, gossamer, monkeypatch, tmp_path, n_writes):
    write, count, out = os.write, 0, tmp_path / "run"

    def full(handle, data):
        nonlocal count
        count += 1
        if count > n_writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    arguments = ["train", "sgd", "digits", *QUICK, "--checkpoint-seconds", "0", "--out", out]
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert "the disk is full; free some space and resume" in refused(1, *arguments)
    has_begun = (out / "config.toml").exists()  # before it has a configuration a folder is no run
    assert gossamer(*(["train", "--resume", out, "--quiet"] if has_begun else arguments))[0] == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint(refused, unfinished, damage):
    (path,) = (unfinished / "checkpoint").glob("step-*.safetensors")
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        del data[len(data) // 2 :]
    else:
        data[random.Random(0).randrange(len(data))] ^= 1
    path.write_bytes(data)
    for command in (["train", "--resume", unfinished], ["evaluate", unfinished]):
        assert refused(1, *command).startswith(f"{path} is damaged (its checksum does not match): delete ")
    assert path.read_bytes() == data


@pytest.mark.parametrize("command", [["show"], ["evaluate"], ["train", "--resume"], ["report"]])
def test_a_run_of_a_newer_format(refused, run, command):
    path = run / "config.toml"
    path.write_text(path.read_text().replace("format = 1", "format = 99"))
    assert refused(1, *command, run) == (
        f"{path} has format 99, this version of gossamer reads up to 1: upgrade gossamer"
    )


def test_a_checkpoint_of_a_newer_format(refused, unfinished):
    path = unfinished / "checkpoint" / "latest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    assert "has format 99" in refused(1, "train", "--resume", unfinished)


def test_a_half_written_line_is_forgiven(gossamer, finished, unfinished):
    path = unfinished / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text + '{"step": 31, "lo')
    assert gossamer("show", unfinished)[0] == 0
    assert gossamer("train", "--resume", unfinished, "--quiet")[0] == 0
    assert path.read_text() == text
    assert Run.open(unfinished).result()["metrics"] == Run.open(finished).result()["metrics"]


def test_a_broken_line_in_the_middle_is_not(refused, unfinished):
    path = unfinished / "metrics.jsonl"
    path.write_text("{broken\n" + path.read_text())
    assert refused(1, "train", "--resume", unfinished).startswith(f"{path} is damaged: it was changed since")


@pytest.mark.parametrize("command", [["show"], ["evaluate"], ["train", "--resume"], ["report"]])
def test_a_folder_that_is_no_run(refused, tmp_path, command):
    assert "does not exist" in refused(1, *command, tmp_path / "no")
    assert re.search("the folder is empty|is neither a run nor", refused(1, *command, tmp_path))
    (tmp_path / "letter.txt").touch()
    assert re.search("is not a run folder|is neither a run nor", refused(1, *command, tmp_path))


def test_data_that_are_not_there_and_data_of_the_wrong_shape(refused, tmp_path):
    arguments = ["train", "ssvi", "mnist", *QUICK, "--data-dir", tmp_path, "--out", tmp_path / "run"]
    message = refused(1, *arguments)
    assert message.startswith("mnist not found: looked for mnist/train-images-idx3-ubyte and 3 more; or mnist.npz in ")
    assert len(message) < 500
    assert "--data_dir" in message
    assert str(tmp_path) in message
    arrays = {
        f"{kind}_{part}": np.zeros((10, 28, 27) if kind == "x" else 10, np.uint8)
        for kind in "xy"
        for part in ("train", "test")
    }
    np.savez(tmp_path / "mnist.npz", **arrays)
    message = refused(1, *arguments)
    assert message.startswith(f"{tmp_path / 'mnist.npz'}: train part: found ")
    assert "expected" in message
    assert not (tmp_path / "run").exists()


def test_a_network_that_does_not_fit_the_data(refused, tmp_path):
    message = refused(1, "train", "sgd", "two_moons", "--model", "conv_net", *QUICK, "--out", tmp_path / "run")
    assert message.startswith("this network reads images")


def test_a_loss_that_is_not_finite(refused, tmp_path):
    message = refused(1, "train", "sgd", "digits", "--lr", "1e30", *QUICK, "--out", tmp_path / "run")
    assert message.startswith("training diverged at step ")
    assert "Give a smaller learning rate (lr is " in message


def test_what_nobody_expected_says_its_kind_and_debug_shows_where(gossamer, refused, monkeypatch, tmp_path):
    def fail(self):
        raise KeyError("a bug")

    monkeypatch.setattr(Training, "advance", fail)
    assert refused(1, *NEW, "--out", tmp_path / "one") == "KeyError: 'a bug' (--debug shows where)"
    code, out, err = gossamer(*NEW, "--out", tmp_path / "two", "--debug")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):")
    assert 'raise KeyError("a bug")' in err
    assert err.endswith("gossamer: KeyError: 'a bug' (--debug shows where)\n")


def test_debug_keeps_the_exit_codes(gossamer, tmp_path):
    assert gossamer("--debug", "trian")[0] == 2
    code, _, err = gossamer("show", tmp_path / "no", "--debug")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("No module named 'docstring_parser'", "the command needs docstring_parser: pip install 'gossamer[cli]'"),
        ("this needs sklearn: pip install 'gossamer[sklearn]'", "this needs sklearn: pip install 'gossamer[sklearn]'"),
    ],
)
def test_a_missing_package_names_the_extra(refused, monkeypatch, finished, error, words):
    def missing(*arguments, **more):
        raise ModuleNotFoundError(error, name="docstring_parser")

    monkeypatch.setattr(job_module, "resume", missing)
    assert refused(1, "train", "--resume", finished) == words


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_130_and_says_how_to_go_on(refused, gossamer, finished, monkeypatch, tmp_path, number):
    advance, folder = Training.advance, tmp_path / "my run"

    def interrupt(self):
        if self.step == 7:
            os.kill(os.getpid(), number)
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "advance", interrupt)
        message = refused(130, *NEW, "--density", "0.1", "--out", folder)
    assert message == f"interrupted; continue with: gossamer train --resume '{folder}'"
    assert "no epoch is finished" in gossamer("show", folder)[1]
    assert gossamer("train", "--resume", folder, "--quiet")[0] == 0
    assert Run.open(folder).metrics()[-1]["val_nll"] == Run.open(finished).metrics()[-1]["val_nll"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_anything_is_trained(refused, monkeypatch, tmp_path, number):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(job_module, "start", lambda *args: os.kill(os.getpid(), number))
    assert refused(130, *NEW, "--out", tmp_path / "run") == "stopped"
    assert not (tmp_path / "run").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_during_a_comparison(refused, monkeypatch, tmp_path):
    advance = Training.advance

    def interrupt(self):
        if self.step == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(Training, "advance", interrupt)
    message = refused(130, "compare", "sgd,vi", *QUICK, "--seeds", "1", "--out", tmp_path / "runs")
    assert message == "interrupted; give the same command again: what is finished is kept"


@pytest.mark.slow
def test_two_ranks_from_the_command_line(tmp_path):
    """Numbers are printed once, SIGTERM to the first process stops both, and the run ends as if it had not come."""

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "gossamer", "train", *arguments],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    new = ["ssvi", "digits", "--density=0.1", "--epochs=30", "--n-draws=2", "--device=cpu", "--ranks=2", "--quiet"]
    process = start(*new, f"--out={tmp_path / 'whole'}")
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert out.count("accuracy") == 1
    folder = tmp_path / "run"
    process = start(*new, f"--out={folder}", "--checkpoint-seconds=0.2")
    while not (folder / "checkpoint" / "latest.json").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (130, "")
    assert err == f"gossamer: interrupted; continue with: gossamer train --resume {folder}\n"
    process = start("--resume", str(folder), "--quiet")
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    runs = [Run.open(tmp_path / name) for name in ("whole", "run")]
    assert runs[0].result()["metrics"] == runs[1].result()["metrics"]
    assert [row["loss"] for row in runs[0].metrics()] == [row["loss"] for row in runs[1].metrics()]
    assert main(["evaluate", str(folder)]) == 0  # in one process


def test_names_of_a_run_are_no_commands_to_the_terminal(gossamer, run, tmp_path):
    hostile = tmp_path / "all" / "\x1b[2J"
    shutil.copytree(run, hostile)
    for told in (
        *gossamer("runs", hostile.parent)[1:],
        *gossamer("show", hostile)[1:],
        *gossamer("show", "\x1b[2J")[1:],
    ):
        assert "\x1b" not in told
