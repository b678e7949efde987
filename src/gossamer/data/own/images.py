"""A folder of images with one sub-folder per class, perhaps below ``train/`` and ``test/``; Pillow reads the files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer._text.names import needs
from gossamer.data._files import DataNotFoundError, one_line
from gossamer.data._images import split_rows
from gossamer.data.own.record import labels_of, own_task, split_examples
from gossamer.types import Task

Array = npt.NDArray[Any]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
GREY = ("1", "L", "I", "F", "I;16")


def load(
    root: str | Path | None = None, *, path: Path, image_size: int | None = None, n_val: int | None = None
) -> Task:
    """The task in a folder: the name of a sub-folder is the class of its images.

    Without folders ``train`` and ``test`` a fifth is for testing; a tenth of the rest is held out.

    Args:
        root: Not used.
        path: The folder.
        image_size: Height and width that all images are resized to; without it they must be of one size.
        n_val: How many of the images that are not for testing to hold out for choices.
    """
    if not path.is_dir():
        raise DataNotFoundError(
            f"{path} is neither a folder of images nor a .csv, .tsv, .parquet or .npz file: check the path"
        )
    parts = [path / "train", path / "test"] if (path / "train").is_dir() and (path / "test").is_dir() else [path]
    found = [_by_class(part) for part in parts]
    files = [file for classes in found for members in classes.values() for file in members]
    if not files:
        raise DataNotFoundError(f"{path} has no images in sub-folders, one per class ({', '.join(SUFFIXES)})")
    names = np.array([name for classes in found for name, members in classes.items() for _ in members])
    if len(parts) == 1:
        train, val, test = split_examples(len(files), n_val, path.name)
    else:
        n_test = sum(map(len, found[1].values()))
        rest, held = split_rows(len(files) - n_test, n_val)
        train, val, test = rest.numpy(), held.numpy(), np.arange(len(files) - n_test, len(files))
    labels = labels_of(names, "folder", "classification", train, path.name)
    x = torch.from_numpy(read_images(files, image_size))
    return own_task("images", path, x, labels, (train, val, test), files, resized=image_size is not None)


def read(record: Mapping[str, Any], path: Path | str) -> tuple[Tensor, dict[str, list[str]]]:
    """One image, or all images of a folder and its sub-folders, in the order of their names."""
    path = Path(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise DataNotFoundError(f"{path} has no images ({', '.join(SUFFIXES)})")
    channels, height, width = record["shape"]
    x = read_images(files, height if record["resized"] else None, channels)
    if x.shape[1:] != (channels, height, width):
        raise ValueError(
            f"{path}: the images are {x.shape[3]}×{x.shape[2]} pixels, those of the training {width}×{height}"
        )
    return torch.from_numpy(x), {"file": [str(file) for file in files]}


def describe(record: Mapping[str, Any]) -> dict[str, str]:
    """The form of the images."""
    channels, height, width = record["shape"]
    resized = ", resized" if record["resized"] else ""
    return {"images": f"{width}×{height} pixels, {'grey' if channels == 1 else 'in colour'}{resized}"}


def _by_class(folder: Path) -> dict[str, list[Path]]:
    classes = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    found = {one.name: sorted(file for file in one.rglob("*") if file.suffix.lower() in SUFFIXES) for one in classes}
    return {name: files for name, files in found.items() if files}


def read_images(files: Sequence[Path], size: int | None, channels: int | None = None) -> Array:
    """Bytes ``(n, channels, height, width)``: grey if all images are, otherwise in colour."""
    needs("PIL", extra="images")
    from PIL import Image

    opened = []
    for file in files:
        try:
            with Image.open(file) as image:
                mode = "L" if image.mode in GREY else "RGB"
                small = image.convert(mode)
                opened.append(small if size is None else small.resize((size, size), Image.Resampling.BILINEAR))
        except Exception as error:  # each of Pillow's formats has its own, as SyntaxError for PNG
            raise ValueError(f"{file} is not a readable image: {one_line(error)}; replace or remove it") from error
    sizes = Counter(image.size for image in opened)
    if len(sizes) > 1:
        (usual, _), *others = sizes.most_common()
        odd = next(file for file, image in zip(files, opened, strict=True) if image.size == others[0][0])
        raise ValueError(
            f"the images have {len(sizes)} sizes: {usual[0]}×{usual[1]} mostly, but {odd} is {others[0][0][0]}×"
            f"{others[0][0][1]}. Give image_size to resize all of them"
        )
    is_grey = channels == 1 if channels is not None else all(image.mode == "L" for image in opened)
    arrays = [np.asarray(image.convert("L" if is_grey else "RGB")) for image in opened]
    x = np.stack(arrays)
    return np.ascontiguousarray(x[:, None] if is_grey else np.moveaxis(x, -1, 1))
