"""Every package that a check needs is pinned, with checksums."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIX = "run: make lock"


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def entries():
    """Name, version and number of checksums of each package in requirements.lock."""
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"^(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.M), flags=re.M)
    found = [(re.match(r"([\w.-]+)==([\w.+]+)", block), block.count("--hash=sha256:")) for block in blocks if block]
    return {plain(match[1]): (match[2], n) for match, n in found}


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(line.split("==")[0]): re.split(r"[ ;]", line.split("==")[1])[0] for line in lines if line[0] != "#"}


def test_each_package_has_one_version_and_checksums():
    locked = entries()
    assert len(locked) > 80
    assert all(n >= 1 for _, n in locked.values())
    assert pins() == {name: version for name, (version, _) in locked.items()} | {"torch": pins()["torch"]}


@pytest.mark.parametrize("extra", ["train", "dev", "docs"])
def test_what_pyproject_asks_for_is_pinned(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"][extra]]
    names = {plain(re.match(r"[\w.-]+", line)[0]) for line in asked} - {"gossamer"}
    assert names - pins().keys() == set(), FIX


def test_torch_has_no_checksum_since_its_build_differs_by_machine():
    assert "torch" not in entries()
    assert not any(name.startswith("nvidia") for name in entries())
