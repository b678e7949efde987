"""The folder is the registry; every data set in it is held to the same contract, with nothing typed here by hand."""

import importlib
import os
import pickle
import pkgutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from gossamer import data
from gossamer.data import images, uci
from gossamer.likelihoods import Categorical

SOURCE = Path(__file__).parents[2] / "src"
NAMES = data.names()
MODULES = [module.name for module in pkgutil.iter_modules(data.__path__) if not module.ispkg and module.name[0] != "_"]


def test_names_are_those_of_the_files_and_of_the_uci_sets():
    files = {path.stem for path in (SOURCE / "gossamer" / "data").glob("[!_]*.py")} - {"images", "uci"}
    assert {name for name in data.names() if not name.startswith("uci/")} == files | set(images.SETS)
    assert len([name for name in data.names() if name.startswith("uci/")]) == 9


@pytest.mark.parametrize(
    ("name", "near"), [("cifar", "cifar10"), ("MNIST", "mnist"), ("fashion-mnist", "fashion_mnist"), ("sun4", "sun")]
)
def test_an_unknown_name_is_told_the_nearest(name, near):
    with pytest.raises(ValueError, match=rf"unknown data set '{name}'; did you mean '{near}") as caught:
        data.load(name)
    assert "\n" not in str(caught.value)


def test_an_unknown_uci_name_is_told_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown data set 'uci/bostn'; did you mean 'uci/boston'\? Known: uci/boston"
    ):
        data.load("uci/bostn")


@pytest.mark.parametrize("name", ["xyzzy", "uci", "_batches", ""])
def test_what_is_no_data_set_is_refused(name):
    with pytest.raises(ValueError, match=r"unknown data set .* Known: cifar10, cifar100"):
        data.load(name)


def test_importing_the_package_brings_no_data_set_and_nothing_optional():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, gossamer.data; print(*sys.modules, sep='\\n')"],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"sklearn", "scipy", *(f"gossamer.data.{name}" for name in [*data.names(), "images", "uci"])}


def small(name):
    """Options with which a generated set has few examples."""
    return {key: 200 for key in ("n_train", "n") if key in signature(data.find(name)).parameters}


@pytest.mark.parametrize("name", MODULES)
def test_it_is_documented(name):
    module = importlib.import_module(f"gossamer.data.{name}")
    first, _, _ = module.__doc__.partition("\n")
    assert first.endswith((".", ":", ","))
    assert "load" in module.__all__
    parameters = signature(module.load).parameters
    assert next(iter(parameters)) == "root"
    assert parameters["root"].default is None
    documented = module.load.__doc__.split("Args:")[1]
    assert [key for key in parameters if f"\n        {key}: " not in documented] == []


@pytest.mark.parametrize("name", NAMES)
def test_without_files_it_loads_or_says_what_is_missing(name, tmp_path):
    try:
        task = data.load(name, tmp_path, **small(name))
    except data.DataNotFoundError as error:
        message = str(error)
        assert message.startswith(f"{name} not found: looked for ")
        assert "\n" not in message
        assert "Published" in message
        assert "GOSSAMER_DATA" in message
        for part in expected_parts(name, tmp_path):
            assert part in message
        return
    check_task(task, name)


def expected_parts(name, root):
    """The folder, the first file of each form and the source of an image set; of the sets of UCI, the folder."""
    if name.startswith("uci/"):
        return [str(root / "uci" / uci.FOLDERS[name.partition("/")[2]])]
    published = images.SETS[name]
    return [str(root), *(one.files["train"][0] for one in published.layouts), published.source, "--data_dir"]


def check_task(task, name):
    assert task.name == name
    rows = [tuple(row) for x, _ in (task.train, task.val, task.test) for row in x[:, :50].flatten(1).tolist()]
    assert len(set(rows)) == len(rows)  # no example is in two splits, and none twice
    assert all(len(x) == len(y) > 0 for x, y in (task.train, task.val, task.test))
    again = pickle.loads(pickle.dumps(task))
    assert again.likelihood == task.likelihood
    assert again.transform(again.test[0]).equal(task.transform(task.test[0]))
    assert task.transform(task.train[0][:2]).shape == (2, *task.input_shape)
    x, y = task.train
    if isinstance(task.likelihood, Categorical):
        assert y.shape == (len(x),)
        assert y.unique().tolist() == list(range(task.n_outputs))
        assert len(task.class_names) == task.n_outputs
    else:
        assert y.shape == (len(x), task.n_outputs // (2 if task.likelihood.noise_std is None else 1))
