"""Files beside the checkpoint that were changed, two processes that want one folder, and folders that disappear."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gossamer
from gossamer.lab import Interrupted, resume, train
from gossamer.lab.record import Lock, RecordError, Run
from gossamer.lab.record import run as run_module
from gossamer.lab.report import write_report
from gossamer.lab.runs import job as job_module
from gossamer.train import Training

RECORDS = ("metrics.jsonl", "subspace.jsonl")


@pytest.fixture(scope="module")
def stopped(settings, tmp_path_factory):
    """A run that was stopped after 40 of its 45 steps."""
    folder = tmp_path_factory.mktemp("stopped") / "run"

    at = []
    patch = pytest.MonkeyPatch()
    advance = Training.advance
    patch.setattr(Training, "advance", lambda self: (at.append(self), advance(self))[1])
    patch.setattr(job_module, "stop_signals", lambda after: _given(lambda: at[-1].step >= 40))
    with pytest.raises(Interrupted):
        train(settings("ssvi"), folder, quiet=True)
    patch.undo()
    return folder


class _given:  # noqa: N801 (a context manager that gives what it was given)
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *error):
        pass


@pytest.fixture
def folder(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def test_the_copy_is_resumed_to_the_bit(folder, whole, assert_same_runs):
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("ssvi"))


@pytest.mark.parametrize(("key", "before", "after"), [("seed", 0, 1), ("epochs", 3, 4), ("batch_size", 64, 32)])
def test_settings_that_were_changed_by_hand_are_refused(folder, key, before, after):
    path = folder / "config.toml"
    path.write_text(path.read_text().replace(f"{key} = {before}", f"{key} = {after}"))
    with pytest.raises(RecordError, match=f"config.toml was changed since the checkpoint: {key} was {before}.*restore"):
        resume(folder, quiet=True)


def test_where_a_run_trains_may_be_changed(folder, tmp_path):
    path = folder / "config.toml"
    path.write_text(path.read_text().replace('device = "cpu"', 'device = "auto"\ndata_dir = "elsewhere"'))
    assert resume(folder, quiet=True).result()


@pytest.mark.parametrize("name", ["environment.json", "data.json"])
def test_a_changed_note_is_refused(folder, name):
    (folder / name).write_text((folder / name).read_text().replace("1", "2", 1))
    with pytest.raises(RecordError, match=name):
        resume(folder, quiet=True)


def test_a_lost_fingerprint_is_told(folder):
    (folder / "data.json").unlink()
    with pytest.raises(RecordError, match=r"data\.json was changed since the checkpoint: restore it"):
        resume(folder, quiet=True)


@pytest.mark.parametrize("name", ["config.toml", "environment.json", "data.json", *RECORDS, "checkpoint/*"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder, name):
    for path in list(folder.glob(name)):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(RecordError, match=rf"{name.strip('*')}.* could not be read: it is not a file"):
        resume(folder, quiet=True)


def test_pipes_are_not_shown(whole, tmp_path):
    for name in ("result.json", "evaluation.json"):
        copy = Path(shutil.copytree(whole("ssvi"), tmp_path / name))
        (copy / name).unlink(missing_ok=True)
        os.mkfifo(copy / name)
        with pytest.raises(RecordError, match=rf"{name} could not be read: it is not a file"):
            write_report([copy], tmp_path / "report.html")


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("damage", ["cut", "deleted", "a line is lost", "a digit"])
def test_a_damaged_record_is_told(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "a line is lost": b"".join(lines[1:]),
                "a digit": content.replace(b"0", b"1", 1),
            }[damage]
        )
    with pytest.raises(RecordError, match=f"{name} is damaged.*delete .*checkpoint, and --resume trains"):
        resume(folder, quiet=True)


def test_every_flipped_bit_of_a_record_is_found(folder):
    """Or it is in what the resume drops anyway; nothing is trained here, the files are only looked at."""
    generator, run = random.Random(0), Run.open(folder)
    known = run.checksums()
    for _ in range(100):
        path = folder / generator.choice(RECORDS)
        content = path.read_bytes()
        at, bit = generator.randrange(len(content)), generator.randrange(8)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        with pytest.raises(RecordError, match="is damaged"):
            Run.open(folder).check(known)
        path.write_bytes(content)
    Run.open(folder).check(known)


def test_the_advice_for_a_damaged_record_helps(folder, whole, assert_same_runs):
    (folder / "metrics.jsonl").write_text("broken\nbroken\n")
    shutil.rmtree(folder / "checkpoint")
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("ssvi"))


def test_records_are_on_the_disk_before_the_checkpoint_that_counts_them(settings, monkeypatch, tmp_path):
    done, fsync = [], os.fsync
    save = job_module.checkpoint.save

    def note(handle):
        done.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(job_module.checkpoint, "save", lambda *args: (done.append("checkpoint"), save(*args))[1])
    train(settings("ssvi"), tmp_path / "run", quiet=True)
    before = done[: done.index("checkpoint")]
    assert set(RECORDS) <= set(before)


def test_a_result_that_was_changed_is_told(whole, tmp_path):
    folder = Path(shutil.copytree(whole("ssvi"), tmp_path / "run"))
    path = folder / "result.json"
    assert "checksums" not in Run.open(folder).result()
    path.write_text(path.read_text().replace('"accuracy": 0.', '"accuracy": 1.', 1))
    with pytest.raises(RecordError, match=r"result\.json was changed after the run: delete it, and --resume"):
        Run.open(folder).result()
    path.unlink()
    assert resume(folder, quiet=True).result() == Run.open(whole("ssvi")).result() | {
        "cost": Run.open(folder).result()["cost"]
    }


def test_a_finished_run_with_damaged_records_is_told(whole, tmp_path):
    folder = Path(shutil.copytree(whole("ssvi"), tmp_path / "run"))
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": ', '"loss": 1', 1))
    with pytest.raises(RecordError, match=r"metrics\.jsonl is damaged"):
        Run.open(folder).result()


def test_all_that_two_rules_do_is_recorded_once_and_in_order(settings, tmp_path):
    """em_mcmc has two rules: one moves groups between spike and slab, the other prunes."""
    told = settings("em_mcmc", options={"density": 0.3, "cycles": 1})
    training = job_module.start(told, told.load_task(), job_module.launch(told))
    for _ in training.run():
        pass
    expected = [entry for rule in training.rules for entry in rule.record]
    rows = train(told, tmp_path / "run", quiet=True).updates()
    assert sorted(map(json.dumps, rows)) == sorted(map(json.dumps, expected))
    assert len(set(map(json.dumps, rows))) == len(rows)
    assert any("removed" in row for row in rows)
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


def test_under_the_worst_schedule_one_of_two_processes_trains(settings, monkeypatch, tmp_path):
    """Both find the folder free and load their data; then both go on at once."""
    meet, begin, outcomes = threading.Barrier(2), job_module._begin, []

    def together(*args):
        job = begin(*args)
        meet.wait()
        return job

    def run():
        try:
            outcomes.append(train(settings("sgd", epochs=1), tmp_path / "run", quiet=True).result() is not None)
        except RecordError as error:
            outcomes.append(str(error))

    monkeypatch.setattr(job_module, "_begin", together)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(type, outcomes), key=str) == [bool, str]
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert "is being trained by another process" in refused or "is not empty" in refused


def test_two_resumes_of_one_run_follow_each_other(folder, monkeypatch):
    """The second took its look before the first was finished; it must not train again."""
    opened = Run.open

    def open_late(path, lock=None):
        run = opened(path, lock)
        if lock is None and not (folder / "result.json").exists():
            monkeypatch.setattr(Run, "open", opened)
            resume(folder, quiet=True)
        return run

    monkeypatch.setattr(Run, "open", open_late)
    before = Run.open(folder).folder / "result.json"
    stamp = before.stat().st_mtime_ns
    resume(folder, quiet=True)
    assert before.stat().st_mtime_ns == stamp


def test_the_lock_dies_with_its_process(tmp_path):
    code = (  # of the package only what the lock needs, to start at once
        "import sys, types; from pathlib import Path\n"
        "sys.modules['gossamer'] = package = types.ModuleType('gossamer')\n"
        "package.__path__, package.__version__ = [sys.argv[2]], ''\n"
        "from gossamer.lab.record import Lock\n"
        "Lock(Path(sys.argv[1])).__enter__(); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run"), gossamer.__path__[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RecordError, match="is being trained by another process"), Lock(tmp_path / "run"):
            pass
        process.kill()
    with Lock(tmp_path / "run") as lock:
        assert lock.is_held()


def test_a_lock_on_a_folder_that_was_made_again_is_not_held(tmp_path):
    with Lock(tmp_path / "run") as lock:
        shutil.rmtree(tmp_path / "run")
        assert not lock.is_held()
        with Lock(tmp_path / "run") as other:
            assert other.is_held()
            with pytest.raises(RecordError, match="removed, moved or replaced while it was trained"):
                lock.check()


class KilledError(BaseException):
    """Ends a process in a test."""


@pytest.mark.parametrize("written", range(4))
def test_a_process_killed_while_its_folder_is_made(written, settings, whole, assert_same_runs, monkeypatch, tmp_path):
    """Before each of its three files, and before the first step: it can be trained or resumed in any case."""
    folder, write = tmp_path / "run", run_module.atomic.write_atomically
    count = iter(range(10))

    def killed(path, data):
        if next(count) == written:
            path.with_name(f".{path.name}.0123.tmp").write_text("half")
            raise KilledError
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.atomic, "write_atomically", killed)
        if written == 3:
            patch.setattr(job_module, "_go_on", lambda *args: killed(folder / "x", ""))
        with pytest.raises(KilledError):
            train(settings("sgd"), folder, quiet=True)
    if (folder / "config.toml").exists():
        run = resume(folder, quiet=True)
    else:
        with pytest.raises(RecordError, match="nothing was trained yet, give the command that began it again"):
            resume(folder, quiet=True)
        run = train(settings("sgd"), folder, quiet=True)
    assert run.data()
    assert Run.open(folder).environment
    assert_same_runs(folder, whole("sgd"))


def test_a_process_killed_before_it_has_locked_its_folder(settings, whole, assert_same_runs, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(RecordError, match="the folder is empty, give the command that began it again"):
        resume(folder, quiet=True)
    train(settings("sgd"), folder, quiet=True)
    assert_same_runs(folder, whole("sgd"))


def test_a_folder_of_somebody_else_is_left_as_it_is(settings, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RecordError, match="is not empty"):
        train(settings("sgd"), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("step", [3, 15, 45])
def test_a_run_folder_that_is_removed_ends_the_run(step, settings, monkeypatch, tmp_path):
    folder, advance = tmp_path / "run", Training.advance

    def advance_and_remove(self):
        values = advance(self)
        if self.step == step:
            shutil.rmtree(folder)
        return values

    monkeypatch.setattr(Training, "advance", advance_and_remove)
    with pytest.raises(RecordError, match="removed, moved or replaced while it was trained: --resume it where it is"):
        train(settings("sgd"), folder, quiet=True, checkpoint_seconds=0)
    assert not folder.exists()


def test_a_run_folder_that_is_removed_before_the_result_ends_the_run(settings, monkeypatch, tmp_path):
    folder, build = tmp_path / "run", job_module.build_result

    def build_and_remove(*args):
        result = build(*args)
        shutil.rmtree(folder)
        return result

    monkeypatch.setattr(job_module, "build_result", build_and_remove)
    with pytest.raises(RecordError, match="removed, moved or replaced"):
        train(settings("sgd", epochs=1), folder, quiet=True)
    assert not folder.exists()
