"""The attack on a sweep, in small: with its file, and with a PostgreSQL server of its own."""

import contextlib
import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from gossamer.lab import Settings
from gossamer.lab.runs.search import read_space
from gossamer.lab.runs.sweep import sweep
from tests.endurance.sweep import attack, main


def find_postgresql():
    """The folder of the server's programs, or ``None``."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in folders if (one / "initdb").exists() and (one / "postgres").exists()), None)


@pytest.fixture(scope="module")
def postgresql():
    """The URL of a server that runs meanwhile; it refuses to run as root, but not as another user."""
    programs = find_postgresql()
    if programs is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    pytest.importorskip("pg8000", reason="needs a driver: pip install pg8000")
    user = getpass.getuser()
    if os.geteuid() == 0:
        user = next((one.pw_name for one in pwd.getpwall() if one.pw_name in ("postgres", "nobody")), None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        shutil.chown(folder, user)
        data, own = Path(folder) / "data", {"user": user} if os.geteuid() == 0 else {}
        told = ["-U", "postgres", "-A", "trust", "-D", data]
        subprocess.run([programs / "initdb", *told], check=True, capture_output=True, cwd=folder, **own)
        flags = ["-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", folder, "-c", "fsync=off"]
        log = (Path(folder) / "log").open("w")
        with (
            log,
            subprocess.Popen([programs / "postgres", *flags], cwd=folder, stdout=log, stderr=log, **own) as server,
        ):
            try:
                wait_for(port)
                yield f"postgresql+pg8000://postgres@127.0.0.1:{port}/postgres"
            finally:
                server.terminate()


def wait_for(port):
    import pg8000.dbapi

    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(Exception):
            pg8000.dbapi.connect(user="postgres", host="127.0.0.1", port=port, database="postgres").close()
            return
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.1)


@pytest.mark.slow
def test_nothing_is_lost_with_a_file(tmp_path):
    outcome, kills = attack(tmp_path / "sweep", trials=8, kills=1, seed=1)
    assert (outcome.lost, outcome.duplicated, outcome.differing) == (0, 0, 0)
    assert outcome.finished + outcome.pruned + outcome.failed == outcome.asked == 8
    assert len(kills) == 2


@pytest.mark.slow
def test_nothing_is_lost_with_postgresql(postgresql, tmp_path):
    outcome, kills = attack(tmp_path / "sweep", trials=8, kills=1, seed=2, storage=postgresql)
    assert (outcome.lost, outcome.duplicated, outcome.differing) == (0, 0, 0)
    assert outcome.finished + outcome.pruned + outcome.failed == outcome.asked == 8
    assert len(kills) == 2


@pytest.mark.slow
def test_two_machines_without_a_common_folder_share_a_study(postgresql, tmp_path):
    settings = Settings("sgd", "two_moons", epochs=1, n_draws=1, device="cpu")
    space = read_space("sgd", ["lr=log:1e-3..1"])
    told = {"storage": postgresql, "pruner": "none", "quiet": True}
    sweep(settings, space, "apart", tmp_path / "one", trials=2, **told)
    found = sweep(settings, space, "apart", tmp_path / "two", trials=3, **told)
    assert [one.state for one in found.trials] == ["finished"] * 3
    assert [path.name for path in sorted((tmp_path / "two").glob("trial-*"))] == ["trial-0002"]
    alone = sweep(settings, space, "alone", tmp_path / "alone", trials=3, pruner="none", quiet=True)
    assert [one.values for one in found.trials] == [one.values for one in alone.trials]  # by number, wherever trained


def test_usage():
    with pytest.raises(SystemExit):
        main(["--trails", "3"])
