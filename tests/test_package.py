"""What the package offers, what it needs, and what it says where that is missing."""

import importlib
import inspect
import operator
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gossamer
from gossamer import lab

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

WITHOUT = """
import sys

class Absent:
    names = {names}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in Absent.names else found(name, *rest)
"""

OPTIONAL = {
    "sklearn",
    "scipy",
    "lightning_fabric",
    "onnx",
    "onnxscript",
    "tomli_w",
    "rich",
    "docstring_parser",
    "shtab",
}


def without(names: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code where some packages are not installed."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = WITHOUT.format(names=names) + code
    run = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(run, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_every_room_is_there_after_the_import():
    pages = {path.stem for path in (ROOT / "docs" / "api").glob("*.md")}
    rooms = sorted(pages - {"allocation", "criteria", "gossamer", "gossamer_sweep", "index"})
    code = f"import gossamer; [getattr(gossamer, name) for name in (*dir(gossamer), *{rooms})]; print(*dir(gossamer))"
    assert without(set(), code).stdout.split() == gossamer.__all__
    assert len(gossamer.__all__) <= 24


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("Categorical", "likelihoods"),
        ("Gaussian", "likelihoods"),
        ("Prediction", "posterior"),
        ("active_parameters", "layers"),
        ("density", "layers"),
        ("frozen", "posterior"),
        ("load_run", "lab"),
        ("patch", "adaptation"),
        ("patched", "adaptation"),
    ],
)
def test_names_that_moved_into_a_room_are_still_found_at_the_top(name, home):
    assert name not in dir(gossamer)
    assert getattr(gossamer, name) is getattr(importlib.import_module(f"gossamer.{home}"), name)


def test_completion_finds_every_public_name():
    assert set(gossamer.__all__) <= set(dir(gossamer))
    assert set(lab.__all__) <= set(dir(lab))
    for module in (gossamer, lab):
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            operator.attrgetter("nothing")(module)


def public_classes():
    names = [info.name for info in pkgutil.walk_packages(gossamer.__path__, "gossamer.")]
    native = ("_cpu_", "tiles", "__main__")  # C++, Triton, and a command
    modules = [importlib.import_module(name) for name in names if not name.rpartition(".")[2].startswith(native)]
    classes = {cls for module in modules for cls in vars(module).values() if inspect.isclass(cls)}
    return [cls for cls in classes if cls.__module__.startswith("gossamer") and not cls.__name__.startswith("_")]


def test_every_method_says_what_it_does_unless_its_base_says_so():
    silent = []
    for cls in public_classes():
        for name, member in vars(cls).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            overrides = any(name in vars(base) for base in cls.__mro__[1:])
            named = inspect.isfunction(function) and function.__name__ == name and not name.startswith("_")
            if named and not overrides and not function.__doc__:
                silent.append(f"{cls.__module__}.{cls.__name__}.{name}")
    assert not silent


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("gossamer.SparseBayesClassifier", "this needs sklearn: pip install 'gossamer[sklearn]'"),
        ("gossamer.data.load('digits')", "this needs sklearn: pip install 'gossamer[sklearn]'"),
        ("gossamer.export(torch.nn.Linear(2, 2), 'a.onnx')", "this needs onnx: pip install 'gossamer[onnx]'"),
        ("train(Settings('sgd', 'two_moons', epochs=1), 'a')", "needs tomli_w: pip install 'gossamer[cli]'"),
        ("train(Settings('sgd', 'two_moons', ranks=2), 'a')", "lightning_fabric: pip install 'gossamer[ranks]'"),
        ("sys.exit(main(['train', '--help']))", "needs docstring_parser: pip install 'gossamer[cli]'"),
    ],
)
def test_a_missing_package_names_its_extra(code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # a run locks its folder before it needs anything
    imports = "import torch, gossamer\nfrom gossamer.lab import Settings, train\nfrom gossamer.lab.cli import main\n"
    done = without(OPTIONAL, imports + code)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith(words)
    extra = words.split("[")[1].split("]")[0]
    package = {"sklearn": "scikit-learn", "lightning_fabric": "lightning-fabric", "tomli_w": "tomli-w"}
    name = words.split(":")[0].split()[-1]
    needed = package.get(name, name.replace("_", "-"))
    assert any(requirement.startswith(needed) for requirement in EXTRAS[extra])


def test_the_version_is_that_of_the_newest_entry_in_the_changelog():
    version, date = re.search(r"^## \[(.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert gossamer.__version__ == (f"{version}.dev0" if date == "unreleased" else version)


def test_torch_is_enough_to_train_and_to_save():
    code = """
import tempfile, pathlib, gossamer
task = gossamer.data.load("two_moons")
network = lambda: gossamer.models.mlp(2, (8,), 2)
posterior = gossamer.fit(gossamer.methods.build("ssvi", task, 5, density=0.5), network(), task, 5)
file = gossamer.save(posterior, pathlib.Path(tempfile.mkdtemp()) / "net")
print(type(gossamer.load(file, network())).__name__)
"""
    done = without(OPTIONAL, code)
    assert (done.returncode, done.stdout) == (0, "InLayers\n"), done.stderr


def test_estimators_need_scikit_learn_alone():
    code = """
import numpy as np, gossamer
X = np.random.default_rng(0).normal(size=(40, 3))
print(gossamer.SparseBayesRegressor(max_steps=5, verbose=True).fit(X, X[:, 0]).predict(X).shape)
"""
    done = without(OPTIONAL - {"sklearn", "scipy"}, code)
    assert (done.returncode, done.stdout) == (0, "(40,)\n"), done.stderr


@pytest.mark.slow
def test_one_wheel_serves_every_python(tmp_path: Path):
    """It holds the kernels, whose names know no Python, and neither their sources nor tests."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "src" / "gossamer").rglob("*"):
        if path.suffix in (".py", ".cpp", ".h", ".css", ".js", ".typed"):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    code = "import setuptools.build_meta as build; print(build.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "dist").glob("*.whl")
    assert "-py3-none-" in wheel.name
    import zipfile

    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".cpp", ".h")) or name.startswith("tests")]
    assert {"gossamer/py.typed", "gossamer/lab/report/style.css", "gossamer/lab/report/page.html"} <= set(names)
    if not wheel.name.endswith("-any.whl"):
        assert "gossamer/kernels/_cpu_generic.so" in names
