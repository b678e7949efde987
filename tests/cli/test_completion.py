"""Completion scripts do in a shell what they are for."""

import shutil
import subprocess

import pytest

from gossamer import data, methods
from gossamer.cli import COMMANDS
from gossamer.completion import SHELLS, script


@pytest.fixture
def scripts(gossamer, tmp_path):
    def write(shell):
        code, out, err = gossamer("completion", shell)
        assert (code, err) == (0, "")
        (tmp_path / f"script.{shell}").write_text(out)
        return tmp_path / f"script.{shell}"

    return write


def complete(path, *lines):
    """What bash offers for the last word of each line."""
    asked = "\n".join(
        f"COMP_WORDS=({line.rstrip()}{' ' + chr(39) * 2 if line.endswith(' ') else ''}); "
        "COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=(); _gossamer; echo ${COMPREPLY[@]}"
        for line in lines
    )
    program = f"set -u; source '{path}'; complete -p gossamer >/dev/null || exit 9\n{asked}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, cwd=path.parent)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash(scripts):
    path = scripts("bash")
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    (path.parent / "my_run").mkdir()
    offers = complete(
        path,
        "gossamer ",
        "gossamer tr",
        "gossamer train ",
        "gossamer train ss",
        "gossamer train ssvi dig",
        "gossamer train ssvi digits --dens",
        "gossamer train sgd digits --dens",
        "gossamer train --res",
        "gossamer compare sgd,ss",
        "gossamer compare sgd,",
        "gossamer compare sgd --see",
        "gossamer list me",
        "gossamer completion z",
        "gossamer show my_",
        "gossamer evaluate my_run --spl",
        "gossamer train ssvi uci/bo",
    )
    assert offers[0] == [*COMMANDS, "--help", "--version"]
    assert offers[1] == ["train"]
    assert offers[2] == methods.names()
    assert offers[3] == ["ssvi"]
    assert offers[4] == ["digits"]
    assert offers[5] == ["--density"]
    assert offers[6] == []
    assert offers[7] == ["--resume"]
    assert offers[8] == ["sgd,ssvi"]
    assert offers[9] == [f"sgd,{method}" for method in methods.names()]
    assert offers[10] == ["--seeds"]
    assert offers[11] == ["methods"]
    assert offers[12] == ["zsh"]
    assert offers[13] == ["my_run"]
    assert offers[14] == ["--split"]
    assert offers[15] == ["uci/boston"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(scripts, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert subprocess.run([shell, "-n", scripts(shell)], check=False).returncode == 0


def test_fish_offers_names_at_their_places(gossamer):
    _, out, _ = gossamer("completion", "fish")
    for method in methods.names():
        (line,) = [line for line in out.splitlines() if f'train; and __fish_seen_subcommand_from {method}" -a' in line]
        assert all(name in line for name in data.names())
    assert all(line.startswith("complete -c gossamer -n ") for line in out.splitlines())


def test_an_unknown_shell():
    with pytest.raises(ValueError, match="completion knows bash, zsh, fish, not 'tcsh'"):
        script("tcsh", {}, {})
    assert SHELLS == ("bash", "zsh", "fish")
