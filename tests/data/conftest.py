"""Tiny copies of the image sets, in each of their published forms, with sizes and checksums to match."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import tarfile

import numpy as np
import pytest
from scipy.io import savemat

from gossamer.data import _images, cifar10, cifar100, fashion_mnist, mnist, svhn

MODULES = {"mnist": mnist, "fashion_mnist": fashion_mnist, "cifar10": cifar10, "cifar100": cifar100, "svhn": svhn}
SIZES = {"train": 50, "test": 20}


def arrays(module, seed=0):
    """Random images (n, height, width, channels) and labels, both parts, under the names of an .npz file."""
    rng = np.random.default_rng(seed)
    channels, height, width = module.SET.shape
    n_classes = len(module.SET.class_names)
    result = {}
    for part, n in SIZES.items():
        result[f"x_{part}"] = rng.integers(0, 256, (n, height, width, channels), dtype=np.uint8)
        result[f"y_{part}"] = rng.integers(0, n_classes, n, dtype=np.uint8)
    return result


def idx(array):
    dims = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + dims + array.tobytes()


class PythonTwoPickler(pickle._Pickler):
    """Writes bytes as the strings of Python 2, as the published CIFAR pickles have them."""

    dispatch = pickle._Pickler.dispatch | {
        bytes: lambda self, obj: self.write(pickle.BINSTRING + len(obj).to_bytes(4, "little") + obj)
    }


def python_two_pickle(obj):
    stream = io.BytesIO()
    PythonTwoPickler(stream, protocol=2).dump(obj)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def npz(content):
    stream = io.BytesIO()
    np.savez(stream, **content)
    return stream.getvalue()


def mat(x, y):
    stream = io.BytesIO()
    savemat(stream, {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y)[:, None]})
    return stream.getvalue()


def channels_first(x):
    return x.transpose(0, 3, 1, 2)


def contents(name, form, data):
    """Relative path -> bytes of the files of a set in one of its forms."""
    if form == "npz":
        return {f"{name}.npz": npz(data)}
    if form == "idx":
        stems = {"train": "train", "test": "t10k"}
        images = {f"{stem}-images-idx3-ubyte": idx(data[f"x_{part}"][..., 0]) for part, stem in stems.items()}
        return images | {f"{stem}-labels-idx1-ubyte": idx(data[f"y_{part}"]) for part, stem in stems.items()}
    if form == "mat":
        return {f"{part}_32x32.mat": mat(data[f"x_{part}"], data[f"y_{part}"]) for part in SIZES}
    folder, batches = cifar_batches(name, form, data)
    return {f"{folder}/{file}": cifar_bytes(name, form, x, y) for file, (x, y) in batches.items()}


def cifar_batches(name, form, data):
    x, y = data["x_train"], data["y_train"]
    end = ".bin" if form == "bin" else ""
    if name == "cifar100":
        train = {f"train{end}": (x, y)}
        return f"cifar-100-{'binary' if end else 'python'}", train | {f"test{end}": (data["x_test"], data["y_test"])}
    train = {f"data_batch_{i + 1}{end}": (x[10 * i : 10 * i + 10], y[10 * i : 10 * i + 10]) for i in range(5)}
    return f"cifar-10-batches-{'bin' if end else 'py'}", train | {f"test_batch{end}": (data["x_test"], data["y_test"])}


def cifar_bytes(name, form, x, y):
    flat = channels_first(x).reshape(len(x), -1)
    if form == "bin":
        coarse = [np.zeros_like(y)[:, None]] if name == "cifar100" else []
        return np.concatenate([*coarse, y[:, None], flat], axis=1).tobytes()
    key = "fine_labels" if name == "cifar100" else "labels"
    return python_two_pickle({"data": flat, key: y.tolist(), "batch_label": "a batch", "filenames": ["a.png"] * len(x)})


def tar_gz(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, blob in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(blob)
            archive.addfile(member, io.BytesIO(blob))
    return stream.getvalue()


ARCHIVES = {
    ("cifar10", "pickle"): "cifar-10-python.tar.gz",
    ("cifar10", "bin"): "cifar-10-binary.tar.gz",
    ("cifar100", "pickle"): "cifar-100-python.tar.gz",
    ("cifar100", "bin"): "cifar-100-binary.tar.gz",
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a tiny set in a form and makes its sizes and checksums the expected ones."""

    def write_set(name, form, *, data=None, zipped=False, archived=False, under=""):
        module = MODULES[name]
        data = arrays(module) if data is None else data
        files = contents(name, form, data)
        md5 = {path.rsplit("/", 1)[-1]: hashlib.md5(blob).hexdigest() for path, blob in files.items()}
        layouts = tuple(
            dataclasses.replace(layout, md5={file: md5.get(file, "") for file in layout.md5})
            for layout in module.SET.layouts
        )
        tiny = dataclasses.replace(module.SET, sizes=SIZES, layouts=layouts, sha256={})
        monkeypatch.setattr(module, "SET", dataclasses.replace(tiny, sha256=digests(tiny, data)))
        if archived:
            files = {ARCHIVES[name, form]: tar_gz(files)}
        root = tmp_path / under
        for path, blob in files.items():
            file = root / (path + ".gz" if zipped else path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(gzip.compress(blob) if zipped else blob)
        return data

    return write_set


def digests(images, data):
    """The checksums of the images, put in order as the library does it."""
    result = {}
    for part in SIZES:
        x, y = data.get(f"x_{part}"), data.get(f"y_{part}")
        if x is not None:
            result[part] = _images._digest(*_images._checked(images, part, "here", [channels_first(x)], [y]))
    return result


FORMS = [
    ("mnist", "idx", {}),
    ("mnist", "idx", {"zipped": True}),
    ("mnist", "idx", {"under": "mnist"}),
    ("mnist", "idx", {"under": "MNIST/raw", "zipped": True}),
    ("mnist", "npz", {}),
    ("fashion_mnist", "idx", {"under": "fashion-mnist", "zipped": True}),
    ("fashion_mnist", "idx", {"under": "FashionMNIST/raw"}),
    ("fashion_mnist", "npz", {"under": "fashion_mnist"}),
    ("cifar10", "pickle", {}),
    ("cifar10", "pickle", {"archived": True}),
    ("cifar10", "bin", {"under": "cifar10"}),
    ("cifar10", "bin", {"archived": True}),
    ("cifar10", "npz", {}),
    ("cifar100", "pickle", {}),
    ("cifar100", "pickle", {"archived": True}),
    ("cifar100", "bin", {}),
    ("cifar100", "bin", {"archived": True, "under": "cifar100"}),
    ("cifar100", "npz", {}),
    ("svhn", "mat", {}),
    ("svhn", "mat", {"under": "SVHN"}),
    ("svhn", "npz", {}),
]


@pytest.fixture(params=FORMS, ids=lambda form: "-".join([*form[:2], *map(str, form[2].values())]))
def form(request):
    """Name of a set, form, and where and how it is written."""
    return request.param
