"""An evaluation that was killed goes on from its last finished batch, to the bit."""

import json
import subprocess
import sys
import time

import pytest

from gossamer.lab import Settings, train
from gossamer.lab.cli import main
from gossamer.lab.runs.unfinished import Unfinished

SLOW = """
import sys, time
from gossamer.lab.cli import main
from gossamer.lab.runs import unfinished

once = unfinished.Unfinished.once
unfinished.SECONDS = unfinished.SHARE = 0
unfinished.Unfinished.once = lambda *given: (once(*given), time.sleep(0.5))[0]
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(
    scope="module",
    params=[("vi", "resnet8", {"refresh_batchnorm": True}), ("mc_dropout", "mlp", {})],
    ids=lambda param: param[0],
)
def run(request, tmp_path_factory):
    """Networks of which each pass takes one draw; those of mc_dropout draw their masks within it."""
    method, model, options = request.param
    settings = Settings(method, "digits", model, epochs=1, n_train=64, n_draws=6, device="cpu", options=options)
    return train(settings, tmp_path_factory.mktemp("runs") / method, quiet=True).folder


def evaluated(run, capsys, monkeypatch):
    """What the command prints, and the names of the batches that it had to compute."""
    computed, once = [], Unfinished.once
    with monkeypatch.context() as patch:
        patch.setattr(
            Unfinished,
            "once",
            lambda self, name, compute: once(self, name, lambda: (computed.append(name), compute())[1]),
        )
        assert main(["evaluate", str(run), "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out), computed


def test_a_killed_evaluation_goes_on_and_finds_the_same(run, capsys, monkeypatch):
    expected, every = evaluated(run, capsys, monkeypatch)
    kept = run / "evaluating.safetensors"
    assert not kept.exists()
    process = subprocess.Popen([sys.executable, "-c", SLOW, "evaluate", str(run), "--quiet"])
    sizes, deadline = set(), time.monotonic() + 120
    while len(sizes) < 3 and time.monotonic() < deadline:
        sizes |= {kept.stat().st_size} if kept.exists() else set()
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9
    assert len(sizes) == 3
    assert kept.stat().st_size < 2**20
    found, rest = evaluated(run, capsys, monkeypatch)
    assert found == expected
    assert every[: len(every) - len(rest)] + rest == every
    assert 0 < len(rest) <= len(every) - 3
    assert not kept.exists()


def test_what_is_kept_is_of_one_state_and_may_be_damaged(tmp_path):
    file = tmp_path / "kept"
    first = Unfinished(file, "step 1")
    first.next = 0.0
    assert first.once("all", lambda: [first.once("part", lambda: 1), 2]) == [1, 2]
    first.next = 0.0
    assert first.once("more", lambda: 3) == 3
    assert Unfinished(file, "step 1").parts == {"all": [1, 2], "more": 3}  # what they were made of is forgotten
    assert Unfinished(file, "step 2").parts == {}
    file.write_bytes(file.read_bytes()[:-1])
    assert Unfinished(file, "step 1").parts == {}
    file.write_bytes(b"")
    with pytest.raises(KeyboardInterrupt), Unfinished(file, "step 1"):
        raise KeyboardInterrupt
    assert file.exists()
    with pytest.raises(ValueError, match="wrong"), Unfinished(file, "step 1"):
        raise ValueError("wrong")
    assert not file.exists()


def test_a_folder_that_cannot_be_written_is_evaluated_all_the_same(tmp_path):
    kept = Unfinished(tmp_path / "no folder" / "kept", "step 1")
    kept.next = 0.0
    with kept:
        assert kept.once("part", lambda: 1) == 1
