import errno
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer
from gossamer.lab.record import FORMAT, RecordError, Run, environment, to_toml, write_atomically
from gossamer.lab.record.contents import UPDATES

CONFIG = {"method": "ssvi", "seed": 0, "lr": 0.01, "options": {"density": 0.05, "layers": [1, 2]}}


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "runs" / "first", CONFIG)


def one_line(caught):
    message = str(caught.value)
    assert "\n" not in message
    return message


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def failing(code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


def test_a_new_run_has_its_configuration_and_environment(run):
    assert names(run.folder) == ["config.toml", "environment.json"]
    assert run.config == CONFIG
    assert tomllib.loads((run.folder / "config.toml").read_text())["format"] == FORMAT == 1
    assert run.environment["versions"]["torch"] == importlib.metadata.version("torch")
    assert run.checkpoint_folder == run.folder / "checkpoint"


def test_what_is_written_is_read_back(run):
    run.append({"step": 1, "loss": 2.5})
    run.append({"step": 2, "loss": float("inf"), "note": "größer\n"})
    run.append({"step": 2, "replaced": {"conv1": 3}}, UPDATES)
    run.write_result({"metrics": {"accuracy": 0.9}})
    again = Run.open(run.folder)
    assert again.config == run.config
    assert again.environment == run.environment
    assert again.metrics() == [{"step": 1, "loss": 2.5}, {"step": 2, "loss": float("inf"), "note": "größer\n"}]
    assert again.updates() == [{"step": 2, "replaced": {"conv1": 3}}]
    assert again.result() == {"format": 1, "metrics": {"accuracy": 0.9}}


def test_nothing_recorded_is_nothing_read(run):
    assert run.metrics() == run.updates() == []
    assert run.result() is None
    run.rewind(0)
    assert names(run.folder) == ["config.toml", "environment.json"]


def test_numbers_of_torch_and_numpy_become_plain(run):
    run.append({"loss": torch.tensor(2.5), "kl": np.float32(0.5), "counts": np.arange(3)})
    assert run.metrics() == [{"loss": 2.5, "kl": 0.5, "counts": [0, 1, 2]}]
    assert tomllib.loads(to_toml({"lr": np.float64(0.1), "n": np.int64(3)})) == {"lr": 0.1, "n": 3}


def test_an_empty_folder_is_taken_and_a_full_one_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    Run.create(folder, {})
    with pytest.raises(RecordError) as caught:
        Run.create(folder, {})
    assert str(folder) in one_line(caught)
    assert "not empty" in one_line(caught)
    assert "--resume" in one_line(caught)
    assert "--out" in one_line(caught)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="is a file"):
        Run.create(tmp_path / "file", {})
    with pytest.raises(RecordError, match="could not be written"):
        Run.create(tmp_path / "file" / "run", {})


def test_a_missing_folder_or_configuration_is_named(tmp_path):
    with pytest.raises(RecordError) as caught:
        Run.open(tmp_path / "none")
    assert "none does not exist" in one_line(caught)
    with pytest.raises(RecordError) as caught:
        Run.open(tmp_path)
    assert "config.toml is missing" in one_line(caught)


@pytest.mark.parametrize("text", [b"format = ", b"\xff\xfe\x00", b'format = 1\nx = "a\nb"', b"a = 1\n\na = 2"])
def test_a_broken_configuration_is_named(run, text):
    (run.folder / "config.toml").write_bytes(text)
    with pytest.raises(RecordError) as caught:
        Run.open(run.folder)
    assert "config.toml is broken" in one_line(caught)


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_flipped_bytes_in_the_configuration_never_escape_as_another_error(run, place):
    path = run.folder / "config.toml"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RecordError) as caught:
        Run.open(run.folder)
    assert "config.toml" in one_line(caught)


@pytest.mark.parametrize("line", ["", 'format = "1"'])
def test_a_configuration_without_format_is_refused(run, line):
    (run.folder / "config.toml").write_text(line)
    with pytest.raises(RecordError, match="no format number"):
        Run.open(run.folder)


def test_a_newer_format_is_refused(run):
    (run.folder / "config.toml").write_text("format = 2")
    with pytest.raises(RecordError) as caught:
        Run.open(run.folder)
    assert "has format 2" in one_line(caught)
    assert "upgrade gossamer" in one_line(caught)


def test_a_newer_or_broken_result_is_refused(run):
    (run.folder / "result.json").write_text('{"format": 2}')
    with pytest.raises(RecordError, match=r"result\.json has format 2"):
        run.result()
    for broken in ('{"format": 1', "[]", "\x00"):
        (run.folder / "result.json").write_text(broken)
        with pytest.raises(RecordError, match=r"result\.json is broken") as caught:
            run.result()
        one_line(caught)


def test_the_environment_is_not_needed_but_must_be_whole(run):
    path = run.folder / "environment.json"
    path.write_text("{")
    with pytest.raises(RecordError, match=r"environment\.json is broken.*delete it"):
        Run.open(run.folder)
    path.unlink()
    assert Run.open(run.folder).environment == {}


@pytest.mark.parametrize("half", ['{"step": 3, "lo', '{"step": 3}', "\0\0\0", '{"step": 3, "lo\n', "3\n"])
def test_a_half_written_last_line_is_dropped(run, half):
    run.append({"step": 1})
    run.append({"step": 2})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write(half)
    assert [row["step"] for row in run.metrics()] == [1, 2]
    run.rewind(2)
    run.append({"step": 3})
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]


@pytest.mark.parametrize("half", ['{"step": 3, "lo', "{"])
def test_appending_after_a_half_written_line_leaves_a_whole_file(run, half):
    path = run.folder / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + half)
    run.append({"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text(half)
    Run.open(run.folder).append({"step": 2})
    assert path.read_text() == '{"step": 2}\n'


def test_a_broken_line_elsewhere_is_named_with_its_number(run):
    (run.folder / "subspace.jsonl").write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    for action in (run.updates, lambda: run.rewind(3)):
        with pytest.raises(RecordError) as caught:
            action()
        assert "subspace.jsonl, line 2 is broken" in one_line(caught)


def test_rewind_drops_what_is_later_from_both_files(run):
    for step in (1, 2, 3):
        run.append({"step": step, "loss": 0.1 * step})
        run.append({"step": step, "rate": 0.1}, UPDATES)
    before = (run.folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    run.rewind(2)
    assert [row["step"] for row in run.metrics()] == [row["step"] for row in run.updates()] == [1, 2]
    assert (run.folder / "metrics.jsonl").read_bytes() == b"".join(before[:2])
    run.rewind(0)
    assert run.metrics() == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(run, monkeypatch, code, call):
    run.write_result({"old": True})
    before = names(run.folder)
    monkeypatch.setattr(os, call, failing(code))
    with pytest.raises(RecordError) as caught:
        run.write_result({"old": False})
    assert "result.json could not be written" in one_line(caught)
    assert ("space" if code in (errno.ENOSPC, errno.EDQUOT) else os.strerror(code)) in one_line(caught)
    monkeypatch.undo()
    assert run.result() == {"format": 1, "old": True}
    assert names(run.folder) == before


def test_a_disk_that_fills_in_the_middle_of_a_line_leaves_whole_lines(run, monkeypatch):
    run.append({"step": 1})
    write = os.write

    def half(handle, data):
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[: len(data) - 5])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(RecordError, match="the disk is full"):
        run.append({"step": 2, "loss": 0.5})
    monkeypatch.undo()
    assert (run.folder / "metrics.jsonl").read_text() == '{"step": 1}\n'


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_read_only_place_is_named(run, tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "open", failing(code))
    for action in (
        lambda: run.append({"step": 1}),
        lambda: run.write_result({}),
        lambda: Run.create(tmp_path / "other", {}),
    ):
        with pytest.raises(RecordError) as caught:
            action()
        assert "could not be written" in one_line(caught)
        assert "read-only" in one_line(caught) or "permission denied" in one_line(caught)


def test_a_folder_without_permission_is_named(tmp_path):
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("this user may write everywhere; the same failure is simulated above")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RecordError, match="permission denied"):
            Run.create(tmp_path / "run", {})
    finally:
        tmp_path.chmod(0o700)


def test_a_real_limit_on_the_size_of_files_is_survived(tmp_path):
    """The system itself refuses the write, in a process of its own, for the limit cannot be raised again."""
    resource = pytest.importorskip("resource", reason="the limit is one of POSIX systems")
    code = (
        "import resource, signal; from pathlib import Path; from gossamer.lab.record import *\n"
        "run = Run.create(Path('run'), {}); run.append({'step': 1}); run.write_result({'n': 1})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "for act in (lambda: run.write_result({'n': [0] * 4000}), lambda: run.append({'x': [0] * 4000})):\n"
        "    try: act()\n"
        "    except RecordError as error: print(error)\n"
        "print(run.result(), run.metrics(), len(list(run.folder.iterdir())))\n"
    )
    assert resource.RLIMIT_FSIZE
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert "result.json could not be written" in lines[0]
    assert "metrics.jsonl could not be written" in lines[1]
    assert lines[2] == "{'format': 1, 'n': 1} [{'step': 1}] 4"


def test_a_failed_start_can_be_tried_again(tmp_path, monkeypatch):
    from gossamer.files import atomic as files

    def full(path, data):
        if path.name == "config.toml":
            raise RecordError("full")
        write_atomically(path, data)

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(RecordError):
        Run.create(tmp_path / "run", CONFIG)
    monkeypatch.undo()
    assert Run.create(tmp_path / "run", CONFIG).config == CONFIG


def test_atomic_files_have_the_usual_rights(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "atomic", b"\x00\xff")
    assert (tmp_path / "atomic").read_bytes() == b"\x00\xff"
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", "text")
    assert names(tmp_path) == []


@pytest.mark.parametrize("value", [{1, 2}, [None], object()])
def test_what_toml_cannot_hold_is_named(tmp_path, value):
    with pytest.raises(RecordError) as caught:
        Run.create(tmp_path / "run", {"options": {"odd": value}})
    assert "options.odd" in one_line(caught)
    assert not (tmp_path / "run").exists()


def test_a_name_that_is_no_unicode_is_refused(tmp_path):
    with pytest.raises(RecordError, match="not valid Unicode"):
        Run.create(tmp_path / "run", {"root": "\udcff"})


SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = SCALARS | st.lists(SCALARS) | st.lists(st.lists(SCALARS))
TABLES = st.dictionaries(st.text(), VALUES | st.dictionaries(st.text(), VALUES | st.dictionaries(st.text(), VALUES)))


@given(TABLES)
def test_toml_survives_the_way_there_and_back(table):
    assert tomllib.loads(to_toml(table)) == table


def test_toml_leaves_out_none_and_keeps_nan():
    table = tomllib.loads(to_toml({"a": None, "b": float("nan"), "c": {"d": None}, "e": -float("inf")}))
    assert table.keys() == {"b", "c", "e"}
    assert table["b"] != table["b"]
    assert table["c"] == {}


def test_the_environment_says_what_a_number_depends_on(tmp_path, monkeypatch):
    keys = {"time", "argv", "git_commit", "python", "versions", "platform", "cpu", "cpu_count", "memory_bytes", "gpu"}
    found = environment()
    assert found.keys() == keys
    assert found["cpu_count"] >= 1
    assert found["time"].endswith("+00:00")
    assert found["versions"].keys() == {"gossamer", "torch", "numpy"}
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.0.1")  # another one is installed
    assert environment()["versions"]["gossamer"] == gossamer.__version__
    json.dumps(found)


GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]


def git(*command: str) -> str:
    return subprocess.run([*GIT, *command], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "code.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return folder


def test_a_repository_cannot_have_its_configuration_executed(repository, tmp_path):
    """An unpacked archive may bring a ``.git`` whose configuration names programs that git would run."""
    proof = tmp_path / "executed"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {proof}\ncat\n")
    script.chmod(0o755)
    commit = git("rev-parse", "HEAD")
    for key in ("core.fsmonitor", "filter.own.clean", "filter.own.process", "core.pager", "core.sshCommand"):
        git("config", key, str(script))
    (repository / ".gitattributes").write_text("* filter=own\n")
    (repository / "code.py").write_text("changed")
    proof.unlink(missing_ok=True)
    assert environment()["git_commit"] == commit
    assert not proof.exists()


def test_the_commit_is_found_wherever_git_keeps_it(repository, tmp_path, monkeypatch):
    commit = git("rev-parse", "HEAD")
    assert environment()["git_commit"] == commit
    git("pack-refs", "--all")
    assert environment()["git_commit"] == commit
    git("worktree", "add", "-q", str(tmp_path / "other"))
    (tmp_path / "other" / "below").mkdir()
    for folder in (tmp_path / "other", tmp_path / "other" / "below"):
        monkeypatch.chdir(folder)
        assert environment()["git_commit"] == commit
    git("checkout", "-q", "--detach")
    assert environment()["git_commit"] == commit
    monkeypatch.setenv("PATH", "")
    assert environment()["git_commit"] is None  # without git nothing is known


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "ref: refs/../../secret", "ref: refs/heads/loop", "\0"])
def test_a_broken_repository_has_no_commit(tmp_path, monkeypatch, head):
    (tmp_path / "secret").write_text("1" * 40)
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "refs" / "heads" / "loop").write_text("ref: refs/heads/loop")
    (tmp_path / ".git" / "HEAD").write_text(head)
    monkeypatch.chdir(tmp_path)
    assert environment()["git_commit"] is None
