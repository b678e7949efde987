"""A small valid file of every kind that Gossamer reads, and the public function that reads it.

Files with checksums of their own can be taken apart and put together again with the right ones (``decode``,
``encode``): a checksum finds accidents, not a file that somebody has made on purpose.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import json
import pickle
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import gossamer
from benchmarks.trials import Trials
from gossamer.data import digits, images, uci
from gossamer.data import load as load_data
from gossamer.data._corruptions import read_corrupted
from gossamer.data.own.record import task_without_data
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
from gossamer.files import container
from gossamer.lab import Settings, compare, read_recipe, train
from gossamer.lab.cli import UsageError
from gossamer.lab.cli import main as command
from gossamer.lab.record import RecordError, Run, to_toml
from gossamer.lab.record.run import _digest
from gossamer.lab.report import write_report
from gossamer.lab.runs.folders import settings_of, show, stored_record
from gossamer.lab.runs.job import restored
from gossamer.lab.runs.reading import read_inputs
from gossamer.methods.mc_dropout import Dropped, with_dropout
from gossamer.methods.rank1 import FactorPosterior, with_factors
from gossamer.posterior import InLayers, Mixture, SwagPosterior
from gossamer.train import checkpoint
from gossamer.types import Posterior

Reader = Callable[[bytes], Any]


@dataclasses.dataclass(frozen=True)
class FileKind:
    """A kind of file.

    Attributes:
        name: What it is called in tables.
        blob: A valid file.
        prepare: Makes, in an empty folder, all that the reader needs beside the file, and returns the reader.
        names: A refusal must have one of these in its message.
        decode: From bytes to a tree of values that can be changed one by one, and
        encode: back, with the right checksums.
        share: Among how many files one is of this kind, relative to the others: less where reading takes long.
    """

    name: str
    blob: bytes
    prepare: Callable[[Path], Reader]
    names: tuple[str, ...]
    decode: Callable[[bytes], Any] | None = None
    encode: Callable[[Any], bytes] | None = None
    share: float = 1.0


def _to_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _toml(tree: Any) -> bytes:
    return to_toml(tree).encode()


def _from_toml(blob: bytes) -> Any:
    return tomllib.loads(blob.decode())


def _rows(blob: bytes) -> Any:
    return [json.loads(line) for line in blob.splitlines()]


def _to_rows(tree: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in tree)


# Runs.


@functools.cache
def _trained(root: Path) -> Path:
    """A finished run on a table of the user's own, with an evaluation."""
    table, folder = root / "houses.csv", root / "ssvi-0"
    table.write_bytes(_csv())
    options = {"density": 0.2, "update_period": 2}
    settings = Settings("ssvi", str(table), target="price", epochs=3, batch_size=16, n_draws=2, options=options)
    run = train(settings, folder, quiet=True)
    run.add_evaluation("conformal", {"0.9": {"n_val": 3, "n_test": 8, "kinds": {"scaled": {"coverage": 0.9}}}})
    return folder


def _in_run(file: str, read: Callable[[Path], Any], *, finished: bool = True) -> Callable[[Path, Path], Reader]:
    """Readers that put the bytes into a copy of the run."""

    def prepare(template: Path, folder: Path) -> Reader:
        copy = shutil.copytree(template, folder / template.name, dirs_exist_ok=True)
        if not finished:
            (copy / "result.json").unlink()

        def reader(blob: bytes) -> Any:
            (copy / file).write_bytes(blob)
            return read(copy)

        return reader

    return prepare


def _run_kind(
    root: Path,
    file: str,
    read: Callable[[Path], Any],
    coding: tuple[Callable[[bytes], Any], Callable[[Any], bytes]],
    name: str = "",
    *,
    finished: bool = True,
    share: float = 1.0,
) -> FileKind:
    template = _trained(root)
    prepare = functools.partial(_in_run(file, read, finished=finished), template)
    return FileKind(name or file, (template / file).read_bytes(), prepare, (template.name,), *coding, share)


JSON = (json.loads, _to_json)
TOML = (_from_toml, _toml)
ROWS = (_rows, _to_rows)


def _look(folder: Path) -> None:
    """All that shows a run."""
    show(folder)
    write_report([folder], folder / "report.html")


def _config(root: Path) -> FileKind:
    def read(folder: Path) -> None:
        show(folder)
        settings_of(Run.open(folder))

    return _run_kind(root, "config.toml", read, TOML)


def _environment(root: Path) -> FileKind:
    return _run_kind(root, "environment.json", _look, JSON, share=0.1)


def _data(root: Path) -> FileKind:
    def read(folder: Path) -> None:
        show(folder)
        if own := stored_record(Run.open(folder)):
            task_without_data(own)

    return _run_kind(root, "data.json", read, JSON)


def _metrics(root: Path) -> FileKind:
    return _run_kind(root, "metrics.jsonl", _look, ROWS, finished=False, share=0.1)


def _updates(root: Path) -> FileKind:
    return _run_kind(root, "subspace.jsonl", _look, ROWS, finished=False, share=0.1)


def _result_coding(root: Path) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    known = json.loads((_trained(root) / "result.json").read_bytes())["checksums"]

    def encode(tree: Any) -> bytes:
        content = {key: value for key, value in tree.items() if key != "checksums"}
        return _to_json(content | {"checksums": known | {"result": _digest(content)}})

    return json.loads, encode


def _result(root: Path) -> FileKind:
    return _run_kind(root, "result.json", show, _result_coding(root))


def _reported(root: Path) -> FileKind:
    return _run_kind(root, "result.json", _look, _result_coding(root), "result.json, report", share=0.1)


def _evaluation(root: Path) -> FileKind:
    def encode(tree: Any) -> bytes:
        content = {key: value for key, value in tree.items() if key != "checksum"}
        return _to_json(content | {"checksum": _digest(content)})

    return _run_kind(root, "evaluation.json", _look, (json.loads, encode), share=0.1)


def _compared(root: Path) -> FileKind:
    settings = settings_of(Run.open(_trained(root)))

    def read(folder: Path) -> None:
        found = compare({"ssvi": settings}, seeds=1, out=folder.parent, quiet=True)
        if failure := found.entries[0].failure:  # a row of the table, not the end of the comparison
            raise (AssertionError if "Error: " in failure else RecordError)(failure)
        found.to_json()

    return _run_kind(root, "result.json", read, _result_coding(root), "result.json, compare", share=0.05)


def _index(root: Path) -> FileKind:
    return _run_kind(
        root, "checkpoint/latest.json", lambda folder: checkpoint.load(folder / "checkpoint"), JSON, "latest.json"
    )


def _checkpoint_file(root: Path) -> str:
    return f"checkpoint/{checkpoint._index(_trained(root) / 'checkpoint')[0].file}"


def _checkpoint(root: Path) -> FileKind:
    kind = _run_kind(
        root,
        _checkpoint_file(root),
        lambda folder: checkpoint.load(folder / "checkpoint"),
        (container.from_bytes, container.to_bytes),
        "checkpoint",
        share=0.5,
    )
    return dataclasses.replace(kind, decode=None, encode=None)


def _restored(root: Path) -> FileKind:
    """A checkpoint with right checksums and a wrong content."""
    file = _checkpoint_file(root)

    def prepare(folder: Path) -> Reader:
        copy = shutil.copytree(_trained(root), folder / "ssvi-0", dirs_exist_ok=True)
        index = json.loads((copy / "checkpoint/latest.json").read_bytes())
        before = Path(copy / file).read_bytes()

        def reader(blob: bytes) -> Any:
            (copy / file).write_bytes(blob)
            index["checkpoints"][0]["sha256"] = hashlib.sha256(blob).hexdigest()
            (copy / "checkpoint/latest.json").write_text(json.dumps(index))
            training = restored(copy).training
            if blob == before:
                return list(training.model.parameters())
            return None

        return reader

    blob = (_trained(root) / file).read_bytes()
    return FileKind(
        "checkpoint, restored", blob, prepare, ("ssvi-0",), container.from_bytes, container.to_bytes, share=0.01
    )


# Files of one object.


def _alone(suffix: str, read: Callable[[Path], Any]) -> Callable[[Path], Reader]:
    """Readers of a file that needs nothing beside it."""

    def prepare(folder: Path) -> Reader:
        folder.mkdir(exist_ok=True)
        path = folder / f"given{suffix}"

        def reader(blob: bytes) -> Any:
            path.write_bytes(blob)
            return read(path)

        return reader

    return prepare


NAMED = ("given",)
TREE = (container.from_bytes, container.to_bytes)


def _table() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    return x, x[:, 0] + 0.1 * rng.normal(size=40)


SHORT: dict[str, Any] = {
    "hidden": (4,),
    "max_steps": 5,
    "n_draws": 2,
    "members": 1,
    "random_state": 0,
    "verbose": 0,
}


def _classifier(root: Path) -> FileKind:
    x, y = _table()
    SparseBayesClassifier(**SHORT).fit(x, np.where(y > 0, "high", "low")).save(root / "classifier")

    def read(path: Path) -> Any:
        model = SparseBayesClassifier.load(path)
        model.predict(x[:3])
        return [model.predict_proba(x[:3]), model.feature_importances_]

    return FileKind("classifier", (root / "classifier").read_bytes(), _alone("", read), NAMED, *TREE, share=0.5)


def _regressor(root: Path) -> FileKind:
    x, y = _table()
    SparseBayesRegressor(**SHORT).fit(x, y).save(root / "regressor")

    def read(path: Path) -> Any:
        return list(SparseBayesRegressor.load(path).predict(x[:3], return_std=True))

    return FileKind(
        "regressor, with training", (root / "regressor").read_bytes(), _alone("", read), NAMED, *TREE, share=0.3
    )


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))


def _posteriors() -> dict[str, Callable[[], Posterior | nn.Module]]:
    def bayesian() -> nn.Module:
        return gossamer.bayesianize(_network(), density=0.4)

    def swag() -> Posterior:
        n = sum(parameter.numel() for parameter in _network().parameters())
        return SwagPosterior(_network(), torch.randn(n), torch.rand(n), torch.randn(3, n), scale=0.25)

    return {
        "network": lambda: gossamer.sparsify(_network(), density=0.3),
        "posterior, Gaussian": lambda: InLayers(bayesian()),
        "posterior, SWAG": swag,
        "posterior, dropout": lambda: Dropped(with_dropout(_network(), rate=0.3)),
        "posterior, factors": lambda: FactorPosterior(with_factors(_network(), members=3)),
        "posterior, mixture": lambda: Mixture([InLayers(bayesian()), swag()]),
    }


def _saved(name: str, root: Path) -> FileKind:
    torch.manual_seed(0)
    file = gossamer.save(_posteriors()[name](), root / "saved")
    x = torch.randn(2, 8)

    def read(path: Path) -> None:
        again = gossamer.load(path, _network())
        for drawn in again.draws(1) if isinstance(again, Posterior) else [again]:
            if drawn(x).shape != (2, 3):
                raise AssertionError("the network has changed")

    return FileKind(name, file.read_bytes(), _alone(".safetensors", read), NAMED, *TREE, share=0.5)


def _trials(root: Path) -> FileKind:
    blob = compare({"ssvi": settings_of(Run.open(_trained(root)))}, seeds=1, out=root, quiet=True).to_json()
    return FileKind(
        "comparison", blob.encode(), _alone(".json", lambda path: Trials.read(path).by_label()), NAMED, *JSON
    )


# Settings.

RECIPE = {
    "data": "digits",
    "epochs": 3,
    "seeds": 2,
    "methods": {"ssvi": {"density": 0.1}, "mine": {"method": "sgd", "lr": 0.1}},
}


def _recipe(root: Path) -> FileKind:
    return FileKind("recipe", _toml(RECIPE), _alone(".toml", read_recipe), NAMED, *TOML)


def _flags(path: Path) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = command(["train", "--config", str(path), "--print_config"])
    if "--debug" in said.getvalue():
        raise RuntimeError(said.getvalue())
    if code:
        raise UsageError(said.getvalue().strip())


FLAGS = {"method": "ssvi", "data": "digits", "epochs": 3, "options": {"density": 0.1, "update_period": 10}}


def _config_toml(root: Path) -> FileKind:
    return FileKind("--config, TOML", _toml(FLAGS), _alone(".toml", _flags), NAMED, *TOML, share=0.2)


# Data.


def _csv() -> bytes:
    rng = np.random.default_rng(0)
    lines = ["area,town,rooms,price"]
    for i in range(40):
        rooms = "" if i % 7 == 0 else str(i % 5)
        area = rng.uniform(20, 200)
        lines.append(f"{area:.2f},{('Ulm', 'Bonn', 'Kiel')[i % 3]},{rooms},{area * 3 + i % 3 + 0.5:.2f}")
    return ("\n".join(lines) + "\n").encode()


def _task(path: Path, **options: Any) -> Any:
    task = load_data(str(path), None, **options)
    return [task.train[0].double(), task.test[0].double()]


def _own_table(suffix: str, root: Path) -> FileKind:
    blob = _csv().replace(b",", b"\t") if suffix == ".tsv" else _csv()
    read = functools.partial(_task, target="price")
    return FileKind(f"table, {suffix}", blob, _alone(suffix, read), NAMED)


def _parquet(root: Path) -> FileKind:
    # In a process of its own: the threads of polars would not survive the forks that read.
    code = (
        "import io, sys, polars; polars.read_csv(io.BytesIO(sys.stdin.buffer.read())).write_parquet(sys.stdout.buffer)"
    )
    made = subprocess.run([sys.executable, "-c", code], input=_csv(), stdout=subprocess.PIPE, check=True)
    read = functools.partial(_task, target="price")
    return FileKind("table, .parquet", made.stdout, _alone(".parquet", read), NAMED, share=0.04)


def _npy_header(tree: Any) -> bytes:
    text = repr({"descr": tree["descr"], "fortran_order": tree["fortran"], "shape": tuple(tree["shape"])})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text.encode("latin1")).to_bytes(2, "little") + text.encode("latin1")


def _to_npz(tree: Any) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in tree.items():
            file.writestr(f"{name}.npy", _npy_header(array) + array["data"].encode("latin1"))
    return stream.getvalue()


def _from_npz(blob: bytes) -> Any:
    with np.load(io.BytesIO(blob)) as file:
        return {
            name: {
                "descr": file[name].dtype.str,
                "fortran": False,
                "shape": list(file[name].shape),
                "data": file[name].tobytes().decode("latin1"),
            }
            for name in file.files
        }


def _npz(**arrays: npt.NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def _own_arrays(root: Path) -> FileKind:
    x, y = _table()
    return FileKind("arrays, .npz", _npz(x=x[:20], y=y[:20]), _alone(".npz", _task), NAMED, _from_npz, _to_npz)


def _inputs(root: Path) -> FileKind:
    stream = io.BytesIO()
    np.save(stream, np.zeros((2, 1, 8, 8)))
    task = digits.load()
    return FileKind("inputs, .npy", stream.getvalue(), _alone(".npy", lambda path: read_inputs(path, task).x), NAMED)


def _picture(form: str, root: Path) -> FileKind:
    from PIL import Image

    def picture(i: int) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), 9 * i, np.uint8)).save(stream, form)
        return stream.getvalue()

    def prepare(folder: Path) -> Reader:
        suffix = {"JPEG": ".jpg", "TIFF": ".tif"}.get(form, f".{form.lower()}")
        for i in range(12):
            file = folder / "given" / ("a", "b")[i % 2] / f"{i}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(i))

        def reader(blob: bytes) -> Any:
            (folder / "given" / "a" / f"0{suffix}").write_bytes(blob)
            return _task(folder / "given")

        return reader

    return FileKind(f"image, {form}", picture(0), prepare, NAMED, share=0.1)


SIZES = {"train": 10, "test": 2}


def _image_set(name: str, form: str) -> Callable[[Path], FileKind]:
    """A copy of a published set with a few images, whose first file is changed."""
    tiny = dataclasses.replace(images.SETS[name], sizes=SIZES, sha256={})
    layout = next(one for one in tiny.layouts if one.read.__name__.endswith(form))
    files = _published(tiny, layout, form)
    first = next(iter(files))

    def prepare(folder: Path) -> Reader:
        place = folder / layout.places[0]
        place.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (place / file).write_bytes(content)

        def reader(blob: bytes) -> Any:
            (place / first).write_bytes(blob)
            images.SETS[name] = tiny
            return images.load(folder, name=name, verify=False).train[0].double()

        return reader

    names = (Path(layout.places[0]).name or first, first)
    coding = (_from_npz, _to_npz) if form == "npz" else (None, None)
    kind = FileKind(f"{tiny.name}, {form}", files[first], prepare, names, *coding)
    return lambda root: kind


def _zipped_idx(root: Path) -> FileKind:
    kind = _image_set("fashion_mnist", "idx")(root)

    def prepare(folder: Path) -> Reader:
        kind.prepare(folder)(kind.blob)
        layout = next(one for one in images.SETS["fashion_mnist"].layouts if one.read.__name__.endswith("idx"))
        place = folder / layout.places[0] / layout.files["train"][0]
        place.unlink()

        def reader(blob: bytes) -> Any:
            place.with_name(f"{place.name}.gz").write_bytes(blob)
            return images.load(folder, name="fashion_mnist", verify=False).train[0].double()

        return reader

    return FileKind(
        "fashion_mnist, idx.gz", gzip.compress(kind.blob), prepare, kind.names,
        lambda blob: gzip.decompress(blob).decode("latin1"), lambda tree: gzip.compress(tree.encode("latin1")),
    )  # fmt: skip


def _published(image_set: Any, layout: Any, form: str) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    channels, height, width = image_set.shape
    x = {part: rng.integers(0, 256, (n, height, width, channels), dtype=np.uint8) for part, n in SIZES.items()}
    y = {part: (np.arange(n) % 10).astype(np.uint8) for part, n in SIZES.items()}
    if form == "npz":
        return {
            layout.files["train"][0]: _npz(
                **{f"{k}_{part}": v[part] for k, v in (("x", x), ("y", y)) for part in SIZES}
            )
        }
    files: dict[str, bytes] = {}
    for part in SIZES:
        names = layout.files[part]
        if form == "idx":
            files |= {name: _idx(x[part][..., 0] if "images" in name else y[part]) for name in names}
            continue
        for name, some, labels in zip(
            names, np.array_split(x[part], len(names)), np.array_split(y[part], len(names)), strict=True
        ):
            files[name] = _batch(image_set.name, form, some, labels)
    return files


def _idx(array: npt.NDArray[Any]) -> bytes:
    dims = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + dims + array.tobytes()


def _batch(name: str, form: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bytes:
    if form == "mat":
        from scipy.io import savemat

        stream = io.BytesIO()
        content = {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y)[:, None]}
        savemat(stream, content, do_compression=True)
        return stream.getvalue()
    flat = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    key = "fine_labels" if name == "cifar100" else "labels"
    return pickle.dumps({"data": flat, key: y.tolist(), "batch_label": "a batch"}, protocol=3)


def _corrupted(root: Path) -> FileKind:
    stream = io.BytesIO()
    np.save(stream, np.zeros((10, 4, 4, 3), np.uint8))

    def prepare(folder: Path) -> Reader:
        folder.mkdir(exist_ok=True)
        np.save(folder / "labels.npy", np.arange(10))

        def reader(blob: bytes) -> Any:
            (folder / "fog.npy").write_bytes(blob)
            return list(read_corrupted(folder, "fog", 2))

        return reader

    return FileKind("CIFAR-10-C, .npy", stream.getvalue(), prepare, ("fog.npy", "labels.npy"))


def _uci(root: Path) -> FileKind:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(308, 7)).round(2)

    def prepare(folder: Path) -> Reader:
        place = folder / "uci" / "yacht" / "data"
        place.mkdir(parents=True, exist_ok=True)

        def reader(blob: bytes) -> Any:
            (place / "data.txt").write_bytes(blob)
            return uci.load(folder, name="yacht", verify=False).train[0]

        return reader

    lines = (" ".join(f"{value:g}" for value in row) + "\n" for row in table)
    return FileKind("UCI, data.txt", "".join(lines).encode(), prepare, ("data.txt",), share=0.3)


KINDS: tuple[Callable[[Path], FileKind], ...] = (
    _config,
    _environment,
    _data,
    _metrics,
    _updates,
    _result,
    _reported,
    _evaluation,
    _compared,
    _index,
    _checkpoint,
    _restored,
    _classifier,
    _regressor,
    *(functools.partial(_saved, name) for name in _posteriors()),
    _trials,
    _recipe,
    _config_toml,
    functools.partial(_own_table, ".csv"),
    functools.partial(_own_table, ".tsv"),
    _parquet,
    _own_arrays,
    _inputs,
    *(functools.partial(_picture, form) for form in ("PNG", "JPEG", "GIF", "TIFF")),
    _image_set("cifar10", "pickle"),
    _image_set("cifar10", "npz"),
    _image_set("cifar100", "pickle"),
    _image_set("fashion_mnist", "idx"),
    _zipped_idx,
    _image_set("svhn", "mat"),
    _corrupted,
    _uci,
)
