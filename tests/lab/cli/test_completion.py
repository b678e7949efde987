"""Completion scripts do in a shell what they are for."""

import shutil
import subprocess

import pytest

from gossamer import data, methods
from gossamer.lab.cli import COMMANDS
from gossamer.lab.cli.listing import SHELLS

# Outside of a completion bash has no compopt; the function is called as bash calls it.
PROGRAM = """
source {path}
complete -p gossamer >/dev/null || exit 9
compopt() {{ :; }}
offer() {{
  COMP_WORDS=("$@"); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMPREPLY=()
  _shtab_gossamer gossamer "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
  echo "${{COMPREPLY[@]}}"
}}
"""


@pytest.fixture
def scripts(gossamer, tmp_path):
    def write(shell):
        code, out, err = gossamer("completion", shell)
        assert (code, err) == (0, "")
        (tmp_path / f"script.{shell}").write_text(out)
        return tmp_path / f"script.{shell}"

    return write


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash(scripts):
    path = scripts("bash")
    (path.parent / "my_run").mkdir()
    expected = {
        "''": list(COMMANDS),
        "tr": ["train"],
        "train ''": methods.names(),
        "train ss": ["ssvi"],
        "train ssvi dig": ["digits"],
        "train ssvi uci/bo": ["uci/boston"],
        "train ssvi digits --dens": ["--density"],
        "train sgd digits --dens": [],
        "train --res": ["--resume"],
        "compare ss": ["ssvi"],
        "compare sgd --see": ["--seeds"],
        "list me": ["methods"],
        "completion z": ["zsh"],
        "show my_": ["my_run"],
        "evaluate my_run --spl": ["--split"],
    }
    program = PROGRAM.format(path=path) + "\n".join(f"offer gossamer {line}" for line in expected)
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, cwd=path.parent)
    assert (done.returncode, done.stderr) == (0, "")
    offers = [line.split() for line in done.stdout.splitlines()]
    assert dict(zip(expected, offers, strict=True)) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shells_can_read_theirs(scripts, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    assert subprocess.run([shell, "-n", scripts(shell)], check=False).returncode == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_every_name_is_in_the_script(gossamer, shell):
    _, out, _ = gossamer("completion", shell)
    assert all(name in out for name in (*COMMANDS, *methods.names(), *data.names()))
