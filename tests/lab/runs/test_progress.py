"""Progress: a bar on a terminal, plain lines elsewhere, silence when asked for."""

import contextlib
import os
import pty
import re
import sys

import pytest

from gossamer._text.terminal import Progress
from gossamer.lab import train


def test_plain_lines_where_there_is_no_terminal(settings, capsys, tmp_path):
    train(settings("ssvi"), tmp_path / "run")
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 3
    pattern = r"ssvi digits seed 0: epoch %d/3  loss \d+\.\d{3}  val accuracy \d+\.\d%%  density 10\.0%%  "
    for number, line in enumerate(lines, 1):
        assert re.match(pattern % number, line)
        assert line.endswith(" examples/s")
        assert "\x1b" not in line
        assert "\r" not in line


def test_quiet_is_silent(settings, capsys, tmp_path):
    train(settings("sgd", epochs=1), tmp_path / "run", quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("epochs", [1, 49, 50, 120, 1000])
def test_long_trainings_print_about_fifty_lines_and_the_last_one(capsys, epochs):
    with Progress("sgd", total=7 * epochs, lines=50) as progress:
        for step in range(1, 7 * epochs + 1):
            progress.update(step, (lambda: f"epoch {step // 7}/{epochs} ") if step % 7 == 0 else None)  # noqa: B023
    lines = capsys.readouterr().err.splitlines()
    assert min(epochs, 25) <= len(lines) <= 60
    assert f"epoch {epochs}/{epochs} " in lines[-1]


def on_a_terminal(monkeypatch, act, columns=100):
    """What an act shows on standard error where that is a terminal."""
    master, slave = pty.openpty()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with os.fdopen(slave, "w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", file)
        act()
        file.flush()
        os.set_blocking(master, False)
        parts = []
        with contextlib.suppress(BlockingIOError):
            while part := os.read(master, 65536):
                parts.append(part)
    os.close(master)
    return b"".join(parts).decode()


@pytest.mark.parametrize("columns", [60, 100, 160])
def test_a_bar_on_a_terminal(settings, monkeypatch, tmp_path, columns):
    shown = on_a_terminal(monkeypatch, lambda: train(settings("ssvi", epochs=1), tmp_path / "run"), columns)
    assert "\x1b[" in shown
    assert "━" in shown
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "ssvi digits seed 0" in text
    assert "15/15" in text
    assert "val accuracy" in text
    assert max(map(len, re.split(r"[\r\n]+", text))) <= columns


def test_quiet_is_silent_on_a_terminal_too(settings, monkeypatch, tmp_path):
    act = lambda: train(settings("sgd", epochs=1), tmp_path / "run", quiet=True)  # noqa: E731
    assert on_a_terminal(monkeypatch, act) == ""
