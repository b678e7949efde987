"""The published image sets: files in any of their forms -> a Task of bytes (n, channels, height, width).

As out-of-distribution images only those for testing are needed (``only_test=True``), and they must go through the
``transform`` of the set that the network was trained on.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.data._files import (
    WHERE,
    Arrays,
    DataNotFoundError,
    check_sum,
    data_root,
    find_file,
    one_line,
    read_blob,
    read_cifar_pickle,
    read_idx,
    read_mat,
    read_npz,
)
from gossamer.data._images import SPLIT_SEED, CropFlip, Normalize, split_rows
from gossamer.likelihoods import Categorical
from gossamer.types import Task, identity

__all__ = ["SETS", "load"]

BOTH = ("train", "test")

Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True)
class Layout:
    """One form of a set: the files of each part, all in one of ``places``, folders below the root.

    ``md5`` has the checksums of the unpacked files; without them the images are checked instead. ``note`` is added to
    the name of the task if this form is not exactly the published set.
    """

    places: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    read: Callable[[bytes, str], Arrays]
    md5: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class ImageSet:
    """The facts of one set of images.

    ``normalize`` has the means and stds of the training images. ``sha256`` of a part covers its images, (n, channels,
    height, width), then its labels, all as bytes. If ``has_order`` is false, copies in circulation differ in the order
    of their images, or are sorted by class. These are then put in one random order that depends only on the images, so
    that the held-out ones are the same for every copy.
    """

    name: str
    shape: tuple[int, int, int]
    sizes: Mapping[str, int]
    class_names: tuple[str, ...]
    normalize: Normalize
    layouts: tuple[Layout, ...]  # the first that is there is read
    sha256: Mapping[str, str]
    source: str
    augment: Callable[[Tensor], Tensor] = identity
    has_order: bool = True


def load(
    root: str | Path | None = None,
    *,
    name: str,
    n_val: int | None = None,
    only_test: bool = False,
    verify: bool = True,
) -> Task:
    """The published test images; a tenth of the training images, always the same, held out for choices.

    Args:
        root: Folder with the published files, also in a folder of their own such as ``cifar-10-batches-py/``,
            ``MNIST/raw/`` or ``svhn/`` (those of MNIST and Fashion-MNIST plain or ``.gz``), or ``<name>.npz``.
        name: One of ``SETS``.
        n_val: How many training images to hold out instead; with 0 ``val`` has no rows.
        only_test: Read no training images; ``train`` and ``val`` have no rows.
        verify: Compare checksums with those of the published files; without them only shapes, types and labels are
            checked, and the task is called unverified.
    """
    images, parts = SETS[name], ("test",) if only_test else BOTH
    try:
        layout, found = _read(images, data_root(root), parts, verify)
    except DataNotFoundError as error:
        if only_test:
            raise
        raise DataNotFoundError(f"{error}. If the test images are all you need, ask for only_test=True") from error
    empty = (np.zeros((0, *images.shape), np.uint8), np.zeros(0, np.int64))
    x, y = (torch.from_numpy(array) for array in found.get("train", empty))
    x_test, y_test = (torch.from_numpy(array) for array in found["test"])
    train_rows, val_rows = split_rows(len(y), n_val)
    notes = [note for note in (layout.note, "" if verify else "unverified") if note]
    return Task(
        (x[train_rows], y[train_rows]),
        (x[val_rows], y[val_rows]),
        (x_test, y_test),
        Categorical(),
        n_outputs=len(images.class_names),
        name=images.name + (f" ({', '.join(notes)})" if notes else ""),
        transform=images.normalize,
        augment=images.augment,
        class_names=images.class_names,
    )


def _npz(name: str, note: str = "") -> Layout:
    """``<name>.npz`` in the root or its folder ``<name>``."""
    return Layout(("", name), {part: (f"{name}.npz",) for part in BOTH}, read_npz, note=note)


def _idx(places: tuple[str, ...], *md5: str) -> Layout:
    """The four files of MNIST, whose names other sets use too; ``md5`` in the order of the files."""
    files = {
        part: (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
        for part, stem in (("train", "train"), ("test", "t10k"))
    }
    return Layout(places, files, read_idx, dict(zip((*files["train"], *files["test"]), md5, strict=True)))


def _pickles(folder: str, below: str, *files: tuple[str, str]) -> Layout:
    """CIFAR's Python version: names and MD5 of its files, the test images last."""
    names = tuple(name for name, _ in files)
    parts = {"train": names[:-1], "test": names[-1:]}
    return Layout((folder, f"{below}/{folder}"), parts, read_cifar_pickle, dict(files))


MNIST = ImageSet(
    name="mnist",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    class_names=tuple("0123456789"),
    normalize=Normalize(mean=(0.1307,), std=(0.3081,)),
    layouts=(
        _idx(
            ("mnist", "MNIST", "MNIST/raw", ""),
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        _npz("mnist"),
    ),
    sha256={
        "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
        "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
    },
    source="yann.lecun.com/exdb/mnist",
)
"""MNIST: handwritten digits, 28×28 grey pixels, 10 classes, 60,000 + 10,000 (LeCun, Cortes and Burges 1998)."""

CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    class_names=CLOTHES,
    normalize=Normalize(mean=(0.2860,), std=(0.3530,)),
    layouts=(
        _idx(
            ("fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", ""),
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        _npz("fashion_mnist"),
    ),
    sha256={
        "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
        "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
    },
    source="github.com/zalandoresearch/fashion-mnist",
)
"""Fashion-MNIST: pieces of clothing, 28×28 grey pixels, 10 classes, 60,000 + 10,000 (Xiao, Rasul and Vollgraf 2017)."""

CIFAR10 = ImageSet(
    name="cifar10",
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    normalize=Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    augment=CropFlip(padding=4),
    layouts=(
        _pickles(
            "cifar-10-batches-py",
            "cifar10",
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ("test_batch", "40351d587109b95175f43aff81a1287e"),
        ),
        _npz("cifar10"),
    ),
    sha256={
        "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
        "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
    },
    source="www.cs.toronto.edu/~kriz/cifar.html (the Python version, unpacked)",
)
"""CIFAR-10: photographs, 32×32 pixels in colour, 10 classes, 50,000 + 10,000 (Krizhevsky 2009)."""

FINE_LABELS = (  # in the order of their numbers
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

CIFAR100 = ImageSet(
    name="cifar100",
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    class_names=tuple(FINE_LABELS.split()),
    normalize=Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    augment=CropFlip(padding=4),
    layouts=(
        _pickles(
            "cifar-100-python",
            "cifar100",
            ("train", "16019d7e3df5f24257cddd939b257f8d"),
            ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ),
        _npz("cifar100"),
    ),
    sha256={
        "train": "601d76fc2320abef34890b492bba4e3af9549dc4a280827e3bd0f41f805f40e3",
        "test": "96335226835035b1d9edd9e35b7f37b0e3ed0f8f5ca0988d57676497e22b39ec",
    },
    source="www.cs.toronto.edu/~kriz/cifar.html (the Python version, unpacked)",
    has_order=False,
)
"""CIFAR-100: photographs, 32×32 pixels in colour, 100 classes, 50,000 + 10,000 (Krizhevsky 2009).

The images come in a fixed random order of their own, not that of the files: copies sorted by class are in circulation.
"""

SVHN = ImageSet(
    name="svhn",
    shape=(3, 32, 32),
    sizes={"train": 73_257, "test": 26_032},
    class_names=tuple("0123456789"),
    normalize=Normalize(mean=(0.4377, 0.4438, 0.4728), std=(0.1980, 0.2010, 0.1970)),
    layouts=(
        Layout(
            places=("svhn", "SVHN", ""),
            files={"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)},
            read=read_mat,
            md5={
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
        _npz("svhn", note="reconstructed"),
    ),
    sha256={"test": "9e7f60f5f516cf88f8cf4a4385c6333cea9884d56426276d93c30fc73be85a1d"},
    source="ufldl.stanford.edu/housenumbers",
)
"""SVHN, cropped digits: house numbers, 32×32 pixels in colour, 10 classes, 73,257 + 26,032 (Netzer et al. 2011).

The test images that circulate as ``svhn.npz`` were cropped again from the full house numbers and are not equal byte for
byte; the task is then called ``svhn (reconstructed)``, and so should be the results. SVHN is for non-commercial use.
"""

SETS = {
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "fashion_mnist": FASHION_MNIST,
    "mnist": MNIST,
    "svhn": SVHN,
}
"""The sets by name."""


def _read(images: ImageSet, root: Path, parts: tuple[str, ...], verify: bool) -> tuple[Layout, dict[str, Part]]:
    """The first layout that is there, and images and labels of each part."""
    layout, place, paths = _located(images, root, parts)
    pieces: dict[str, list[Arrays]] = {part: [] for part in parts}
    for name, path in paths.items():
        blob = read_blob(path)
        if verify and name in layout.md5:
            check_sum(path, "MD5", hashlib.md5(blob, usedforsecurity=False).hexdigest(), layout.md5[name])
        for part in parts:
            if name in layout.files[part]:
                try:
                    pieces[part].append(layout.read(blob, part))
                except DataNotFoundError as error:
                    raise DataNotFoundError(f"{path}: {error}") from error
                except ValueError as error:
                    raise ValueError(f"{path}: {one_line(error)}") from error
    result = {}
    for part in parts:
        where = f"{place if len(layout.files[part]) > 1 else paths[layout.files[part][0]]}: {part} part"
        x, y = _checked(images, part, where, pieces[part])
        if verify and not layout.md5 and part in images.sha256:
            check_sum(where, "SHA-256", _digest(x, y), images.sha256[part])
        result[part] = x, y.astype(np.int64)
    return layout, result


def _located(images: ImageSet, root: Path, parts: tuple[str, ...]) -> tuple[Layout, Path, dict[str, Path]]:
    """The first layout whose files are all in one place, the place, and the files by name."""
    looked, incomplete = [], []
    for layout in images.layouts:
        names = list(dict.fromkeys(name for part in parts for name in layout.files[part]))
        for place in (root / place for place in layout.places):
            paths = {name: path for name in names if (path := find_file(place, name)) is not None}
            if len(paths) == len(names):
                return layout, place, paths
            if paths:
                incomplete.append(f"; {place} lacks {', '.join(name for name in names if name not in paths)}")
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        looked.append(f"{layout.places[0]}/{names[0]}{more}".lstrip("/"))
    raise DataNotFoundError(
        f"{images.name} not found: looked for {'; or '.join(looked)} in {root}{''.join(incomplete)}. Published at "
        f"{images.source}. {WHERE}"
    )


def _checked(images: ImageSet, part: str, where: str, pieces: list[Arrays]) -> Part:
    """Images and labels in one array each, checked; an error says what was found and what was expected."""
    n, n_classes = images.sizes[part], len(images.class_names)
    xs, ys = ([piece[key] for piece in pieces if key in piece] for key in ("x", "y"))
    for array, dtype, shape in [(x, "uint8", images.shape) for x in xs] + [(y, "integers", ()) for y in ys]:
        right = array.dtype == np.uint8 if dtype == "uint8" else np.issubdtype(array.dtype, np.integer)
        if not right or array.shape[1:] != shape or array.ndim == 0:
            found = f"{array.dtype} of shape {array.shape}"
            raise ValueError(f"{where}: found {found}, expected {dtype} of shape {(n, *shape)}, images channels first")
    x, y = np.ascontiguousarray(np.concatenate(xs)), np.concatenate(ys)
    if len(x) != n or len(y) != n:
        raise ValueError(f"{where}: found {len(x)} images and {len(y)} labels, expected {n} of each")
    if y.min() < 0 or y.max() >= n_classes:
        raise ValueError(f"{where}: found labels from {y.min()} to {y.max()}, expected 0 to {n_classes - 1}")
    if images.has_order:
        return x, y
    rows = np.concatenate([y.astype(np.uint8)[:, None], x.reshape(n, -1)], axis=1)
    by_content = np.argsort(rows.view(f"V{rows.shape[1]}").ravel(), kind="stable")
    order = by_content[np.random.RandomState(SPLIT_SEED).permutation(n)]  # by content alone would be by class
    return x[order], y[order]


def _digest(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256(x.data)
    digest.update(y.astype(np.uint8).data)
    return digest.hexdigest()
