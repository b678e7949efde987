"""Tiny copies of the image sets, in each of their published forms, with sizes and checksums to match.

Which sets and forms there are is read from ``gossamer.data.images``: its sets, and their layouts.
"""

import dataclasses
import gzip
import hashlib
import io
import pickle

import numpy as np
import pytest
from scipy.io import savemat

from gossamer.data import images
from gossamer.data.images import SETS

SIZES = {"train": 50, "test": 20}


def arrays(image_set, seed=0):
    """Random images (n, height, width, channels) and labels, both parts, under the names of an .npz file."""
    rng = np.random.default_rng(seed)
    channels, height, width = image_set.shape
    n_classes = len(image_set.class_names)
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


def form_of(layout):
    """The name of a layout's format: idx, npz, mat or pickle."""
    return layout.read.__name__.rsplit("_", 1)[-1]


def base_of(layout):
    """Where a set lies if nothing else is said: in the root itself, or in its first place."""
    return "" if "" in layout.places else layout.places[0]


def layout_of(name, form):
    return next(one for one in SETS[name].layouts if form_of(one) == form)


def contents(name, form, data):
    """File -> bytes of a set in one of its forms; the rows of a part are shared among its files."""
    if form == "npz":
        return {f"{name}.npz": npz(data)}
    files = {}
    for part in SIZES:
        x, y, names = data[f"x_{part}"], data[f"y_{part}"], layout_of(name, form).files[part]
        if form == "idx":
            files |= {file: idx(x[..., 0] if "images" in file else y) for file in names}
        else:
            shares = zip(names, np.array_split(x, len(names)), np.array_split(y, len(names)), strict=True)
            files |= {file: batch(name, form, *share) for file, *share in shares}
    return files


def batch(name, form, x, y):
    if form == "mat":
        return mat(x, y)
    flat = channels_first(x).reshape(len(x), -1)
    key = "fine_labels" if name == "cifar100" else "labels"
    return python_two_pickle({"data": flat, key: y.tolist(), "batch_label": "a batch", "filenames": ["a.png"] * len(x)})


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes a tiny set in a form and makes its sizes and checksums the expected ones."""

    def write_set(name, form, *, data=None, zipped=False, under=""):
        published = SETS[name]
        data = arrays(published) if data is None else data
        files = contents(name, form, data)
        md5 = {file: hashlib.md5(blob).hexdigest() for file, blob in files.items()}
        layouts = tuple(
            dataclasses.replace(layout, md5={file: md5.get(file, "") for file in layout.md5})
            for layout in published.layouts
        )
        tiny = dataclasses.replace(published, sizes=SIZES, layouts=layouts, sha256={})
        monkeypatch.setitem(SETS, name, dataclasses.replace(tiny, sha256=digests(tiny, data)))
        folder = base_of(layout_of(name, form))
        files = {f"{folder}/{file}" if folder else file: blob for file, blob in files.items()}
        root = tmp_path / under
        for path, blob in files.items():
            file = root / (path + ".gz" if zipped else path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(gzip.compress(blob) if zipped else blob)
        return data

    return write_set


@pytest.fixture
def blob_of():
    """A function that returns the first file of a set of a few images, in a form."""

    def first(name, form):
        small = {key: value[:5] for key, value in arrays(SETS[name]).items()}
        return next(iter(contents(name, form, small).values()))

    return first


def digests(image_set, data):
    """The checksums of the images, put in order as the library does it."""
    result = {}
    for part in SIZES:
        x, y = data.get(f"x_{part}"), data.get(f"y_{part}")
        if x is not None:
            result[part] = images._digest(*images._checked(image_set, part, "here", [{"x": channels_first(x), "y": y}]))
    return result


def forms():
    """(name, form, how it is written) for every place of every layout."""
    for name, image_set in SETS.items():
        for layout in image_set.layouts:
            base = base_of(layout)
            for place in layout.places:
                yield name, form_of(layout), {"under": place.removesuffix(base).rstrip("/")}
            if form_of(layout) == "idx":
                yield name, "idx", {"zipped": True}


FORMS = list(forms())


@pytest.fixture(
    params=FORMS, ids=lambda form: "-".join([*form[:2], *(str(value) for value in form[2].values() if value)])
)
def form(request):
    """Name of a set, form, and where and how it is written."""
    return request.param


@pytest.fixture(params=SETS)
def image_set(request):
    """Name of a set and all its forms."""
    return request.param, list(dict.fromkeys(map(form_of, SETS[request.param].layouts)))
