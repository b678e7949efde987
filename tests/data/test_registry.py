import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer import data
from gossamer.likelihoods import Categorical, Gaussian

SOURCE = Path(__file__).parents[2] / "src"
GENERATED = ["digits", "sun1", "sun2", "sun3", "two_moons"]


def test_names_are_those_of_the_files_and_of_the_uci_sets():
    files = {path.stem for path in (SOURCE / "gossamer" / "data").glob("[!_]*.py")} - {"uci"}
    assert {name for name in data.names() if not name.startswith("uci/")} == files
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
    assert not loaded & {"sklearn", "scipy", *(f"gossamer.data.{name}" for name in [*data.names(), "uci"])}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_task_has_splits_that_do_not_overlap_and_can_be_pickled(name):
    task = data.load(name, **({"n_train": 200} if name.startswith("sun") else {}))
    assert task.name == name
    rows = [tuple(row) for x, _ in (task.train, task.val, task.test) for row in x[:, :50].flatten(1).tolist()]
    # Nothing says that two of the 8×8 digits may not be equal, but none are.
    assert len(set(rows)) == len(rows)
    again = pickle.loads(pickle.dumps(task))
    assert again.likelihood == task.likelihood
    assert again.transform(again.test[0]).equal(task.transform(task.test[0]))
    assert all(len(x) == len(y) > 0 for x, y in (task.train, task.val, task.test))


@pytest.mark.parametrize("name", GENERATED)
def test_targets_fit_the_likelihood(name):
    task = data.load(name, **({"n_train": 200} if name.startswith("sun") else {}))
    x, y = task.train
    if isinstance(task.likelihood, Categorical):
        assert y.shape == (len(x),)
        assert y.unique().tolist() == list(range(task.n_outputs))
        assert len(task.class_names) == task.n_outputs
    else:
        assert task.likelihood == Gaussian(noise_std=1.0)
        assert y.shape == (len(x), task.n_outputs)
