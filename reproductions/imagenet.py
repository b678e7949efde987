"""ImageNet in its usual folders, ``imagenet/{train,val}/<class>/*.JPEG``, read as it is used.

1.28 million images do not fit into memory, so an example is the number of its file: a batch is decoded when it is
transformed. A batch for training is marked by a sign, and cropped and flipped at random.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer._text.names import needs
from gossamer.data import DataNotFoundError, Normalize
from gossamer.data._files import data_root
from gossamer.likelihoods import Categorical
from gossamer.types import Split, Task

__all__ = ["load"]

SIZE, BEFORE_CROP = 224, 256
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop
NORMALIZE = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def load(root: str | None = None) -> Task:
    """The training images, and as test images those of the folder ``val``."""
    needs("PIL", extra="images")
    folder = data_root(root) / "imagenet"
    classes = sorted(path.name for path in (folder / "train").glob("*") if path.is_dir())
    if not classes:
        raise DataNotFoundError(f"no folder {folder / 'train'} with a folder for each class (image-net.org)")
    files: list[Path] = []
    train, test = (_numbered(folder / part, classes, files) for part in ("train", "val"))
    images = Images(files)
    none = (train[0][:0], train[1][:0])
    names = tuple(classes)
    return Task(train, none, test, Categorical(), len(names), "imagenet", images, images.marked, class_names=names)


class Images:
    """Decodes the images of a batch of numbers; a negative number asks for a random crop, perhaps mirrored."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __call__(self, numbers: Tensor) -> Tensor:
        """``(batch, 1) -> (batch, 3, 224, 224)``, normalised."""
        images = [self._read(int(number)) for number in numbers.flatten().tolist()]
        return NORMALIZE(torch.stack(images)).to(numbers.device)

    def marked(self, numbers: Tensor) -> Tensor:
        """The batch, for training."""
        return -1 - numbers

    def _read(self, number: int) -> Tensor:
        from PIL import Image

        with Image.open(self.files[number if number >= 0 else -1 - number]) as file:
            pixels = torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1)
        part = _random_part(pixels) if number < 0 else _middle(pixels)
        sized = F.interpolate(part[None].float(), (SIZE, SIZE), mode="bilinear", antialias=True)[0]
        return sized.round().to(torch.uint8)


def _random_part(pixels: Tensor) -> Tensor:
    height, width = pixels.shape[1:]
    area = height * width * float(torch.empty(()).uniform_(*AREA))
    ratio = float(torch.empty(()).uniform_(np.log(RATIO[0]), np.log(RATIO[1])).exp())
    rows, columns = min(height, round((area / ratio) ** 0.5)), min(width, round((area * ratio) ** 0.5))
    top, left = (int(torch.randint(most + 1, ())) for most in (height - rows, width - columns))
    part = pixels[:, top : top + max(1, rows), left : left + max(1, columns)]
    return part.flip(2) if torch.rand(()) < 0.5 else part


def _middle(pixels: Tensor) -> Tensor:
    """The part that is left of an image whose shorter side is 256 pixels when 224 are cut out of its middle."""
    side = round(min(pixels.shape[1:]) * SIZE / BEFORE_CROP)
    top, left = ((length - side) // 2 for length in pixels.shape[1:])
    return pixels[:, top : top + side, left : left + side]


def _numbered(folder: Path, classes: list[str], files: list[Path]) -> Split:
    """The numbers that the files of a folder get in the list, and their classes."""
    labels = []
    start = len(files)
    for label, name in enumerate(classes):
        found = sorted((folder / name).glob("*.JPEG"))
        files += found
        labels += [label] * len(found)
    if not labels:
        raise DataNotFoundError(f"{folder} has no images <class>/*.JPEG")
    return torch.arange(start, len(files))[:, None], torch.tensor(labels)
