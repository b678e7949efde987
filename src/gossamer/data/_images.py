"""Image sets: files in any of their published forms -> a Task of bytes (n, channels, height, width)."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.data._files import (
    WHERE,
    Arrays,
    DataNotFoundError,
    data_root,
    missing,
    one_line,
    read_blobs,
    read_idx,
    read_npz,
)
from gossamer.likelihoods import Categorical
from gossamer.types import Split, Task, identity

BOTH = ("train", "test")
SPLIT_SEED = 0  # the split is part of the data set: seeds of runs do not change it

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601

Part = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True)
class Normalize:
    """Bytes 0…255 ``(batch, channels, height, width)`` to float32, ``(x / 255 - mean) / std`` for each channel.

    Example:
        >>> Normalize(mean=(0.5,), std=(0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-2.,  2.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """The batch, normalised."""
        if x.dim() != 4 or x.shape[1] != len(self.mean):
            raise ValueError(f"expected images (batch, {len(self.mean)}, height, width), got {tuple(x.shape)}")
        # torch.compile makes constants of them by itself.
        mean, std = (_tensors if torch.compiler.is_compiling() else _constants)(self, x.device)
        return (x.float() / 255 - mean) / std


@dataclass(frozen=True)
class CropFlip:
    """A random crop of each image padded with zeros, then a horizontal flip of half of them.

    Shape, dtype and device of the batch are kept; one gather does the whole batch, and the random numbers come from
    torch's global generator on its device.

    Example:
        >>> x = torch.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
        >>> CropFlip()(x).shape
        torch.Size([2, 3, 32, 32])
    """

    padding: int = 4
    flip: bool = True

    def __call__(self, x: Tensor) -> Tensor:
        """The batch ``(batch, channels, height, width)``, cropped and flipped."""
        if x.dim() != 4:
            raise ValueError(f"expected images (batch, channels, height, width), got {tuple(x.shape)}")
        n, channels, height, width = x.shape
        offsets = torch.randint(2 * self.padding + 1, (2, n, 1), device=x.device)
        columns = torch.arange(width, device=x.device).expand(n, width)
        if self.flip:
            flipped = torch.rand(n, 1, device=x.device) < 0.5
            columns = torch.where(flipped, width - 1 - columns, columns)
        rows = offsets[0] + torch.arange(height, device=x.device)
        columns = offsets[1] + columns
        image = torch.arange(n, device=x.device).view(n, 1, 1, 1)
        channel = torch.arange(channels, device=x.device).view(1, channels, 1, 1)
        padded = F.pad(x, [self.padding] * 4)
        return padded[image, channel, rows.view(n, 1, height, 1), columns.view(n, 1, 1, width)]


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

    ``sha256`` of a part covers its images, (n, channels, height, width), then its labels, all as bytes. If
    ``has_order`` is false, copies in circulation differ in the order of their images. These are then put in one random
    order that depends only on the images, so that the held-out ones are the same for every copy.
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


def npz_layout(name: str, note: str = "") -> Layout:
    """``<name>.npz`` in the root or its folder ``<name>``."""
    return Layout(("", name), {part: (f"{name}.npz",) for part in BOTH}, read_npz, note=note)


def idx_layout(places: tuple[str, ...], *md5: str) -> Layout:
    """The four files of MNIST, whose names other sets use too; ``md5`` in the order of the files."""
    files = {
        part: (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
        for part, stem in (("train", "train"), ("test", "t10k"))
    }
    return Layout(places, files, read_idx, dict(zip((*files["train"], *files["test"]), md5, strict=True)))


def load_images(
    images: ImageSet, root: str | Path | None, n_val: int | None, verify: bool, parts: Sequence[str] = BOTH
) -> Task:
    """Read ``parts`` of a set; the others stay empty. ``n_val`` training images are held out, a tenth if None.

    With ``verify=False`` only shapes, types and labels are checked, no checksums, and the task is called unverified.
    """
    layout, place = _locate(images, data_root(root), parts)
    read = _read(images, layout, place, parts, verify)
    empty = (np.zeros((0, *images.shape), np.uint8), np.zeros(0, np.int64))
    x, y = (torch.from_numpy(array) for array in read.get("train", empty))
    test = tuple(torch.from_numpy(array) for array in read.get("test", empty))
    train_rows, val_rows = split_rows(len(y), n_val)
    notes = [note for note in (layout.note, "" if verify else "unverified") if note]
    return Task(
        (x[train_rows], y[train_rows]),
        (x[val_rows], y[val_rows]),
        (test[0], test[1]),
        Categorical(),
        n_outputs=len(images.class_names),
        name=images.name + (f" ({', '.join(notes)})" if notes else ""),
        transform=images.normalize,
        augment=images.augment,
        class_names=images.class_names,
    )


def grey(x: Tensor) -> Tensor:
    """The luminance of floats ``(n, 1 or 3, height, width)``, in one channel.

    Example:
        >>> grey(torch.ones(2, 3, 4, 4)).shape
        torch.Size([2, 1, 4, 4])
    """
    return x if x.shape[1] == 1 else (x * x.new_tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)


def n_held_out(n: int, n_val: int) -> int:
    """``n_val``, if it leaves some of ``n`` examples to train on."""
    if not 0 <= n_val <= max(n - 1, 0):
        raise ValueError(f"n_val must be from 0 to {max(n - 1, 0)}, to leave some of {n} examples; got {n_val}")
    return n_val


def split_rows(n: int, n_val: int | None, seed: int = SPLIT_SEED) -> Split:
    """Rows for training and ``n_val`` held-out rows (None: a tenth; 0: an empty split), in one fixed random order."""
    n_val = n_held_out(n, n // 10 if n_val is None else n_val)
    # numpy guarantees that this stream never changes
    order = torch.from_numpy(np.random.RandomState(seed).permutation(n))
    return order[n_val:], order[:n_val]


def _locate(images: ImageSet, root: Path, parts: Sequence[str]) -> tuple[Layout, Path]:
    looked, incomplete = [], []
    for layout in images.layouts:
        files = _files(layout, parts)
        places = [root / place for place in layout.places]
        for place in places:
            lost = missing(place, files)
            if not lost:
                return layout, place
            if len(lost) < len(files):
                incomplete.append(f"; {place} lacks {', '.join(lost)}")
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        looked.append(f"{layout.places[0]}/{files[0]}{more}".lstrip("/"))
    raise DataNotFoundError(
        f"{images.name} not found: looked for {'; or '.join(looked)} in {root}{''.join(incomplete)}. Published at "
        f"{images.source}. {WHERE}"
    )


def _read(images: ImageSet, layout: Layout, place: Path, parts: Sequence[str], verify: bool) -> dict[str, Part]:
    pieces: dict[tuple[str, str], Arrays] = {}
    for where, name, blob in read_blobs(place, _files(layout, parts)):
        if verify and name in layout.md5:
            _check_sum(where, "MD5", hashlib.md5(blob, usedforsecurity=False).hexdigest(), layout.md5[name])
        for part in parts:
            if name in layout.files[part]:
                try:
                    pieces[part, name] = layout.read(blob, part)
                except DataNotFoundError as error:
                    raise DataNotFoundError(f"{where}: {error}") from error
                except ValueError as error:
                    raise ValueError(f"{where}: {one_line(error)}") from error
    result = {}
    for part in parts:
        files = layout.files[part]
        where = f"{place}: {part} part" if len(files) > 1 else f"{place / files[0]}: {part} part"
        columns = [[piece[key] for name in files if key in (piece := pieces[part, name])] for key in ("x", "y")]
        x, y = _checked(images, part, where, *columns)
        if verify and not layout.md5 and part in images.sha256:
            _check_sum(where, "SHA-256", _digest(x, y), images.sha256[part])
        result[part] = x, y.astype(np.int64)
    return result


def _checked(images: ImageSet, part: str, where: str, xs: list[npt.NDArray[Any]], ys: list[npt.NDArray[Any]]) -> Part:
    """Images and labels in one array each, checked; an error says what was found and what was expected."""
    n, n_classes = images.sizes[part], len(images.class_names)
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


def _check_sum(where: str, kind: str, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(
            f"{where}: damaged, or not the published set: its {kind} is {found}, expected {expected} "
            "(verify=False reads it all the same)"
        )


def _files(layout: Layout, parts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in layout.files[part]))


@functools.lru_cache(maxsize=64)
def _constants(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    # Cached per device, since each copy to a GPU waits for it; not in inference mode, whose tensors autograd rejects.
    with torch.inference_mode(False):
        return _tensors(normalize, device)


def _tensors(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    mean = torch.tensor(normalize.mean, device=device).view(-1, 1, 1)
    return mean, torch.tensor(normalize.std, device=device).view(-1, 1, 1)
