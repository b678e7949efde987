"""MNIST: handwritten digits, 28×28 grey pixels, 10 classes, 60,000 + 10,000 (LeCun, Cortes and Burges 1998)."""

from pathlib import Path

from gossamer.data._images import ImageSet, Normalize, idx_layout, load_images, npz_layout
from gossamer.types import Task

__all__ = ["load"]

SET = ImageSet(
    name="mnist",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    class_names=tuple("0123456789"),
    normalize=Normalize(mean=(0.1307,), std=(0.3081,)),  # of the training images
    layouts=(
        idx_layout(
            ("mnist", "MNIST", "MNIST/raw", ""),
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        npz_layout("mnist"),
    ),
    sha256={
        "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
        "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
    },
    source="yann.lecun.com/exdb/mnist",
)


def load(root: str | Path | None = None, *, n_val: int | None = None, verify: bool = True) -> Task:
    """The published test images; 6,000 of the training images, always the same, held out for choices.

    Args:
        root: Folder with the four IDX files (plain or ``.gz``; also in ``mnist/`` or ``MNIST/raw/``) or ``mnist.npz``.
        n_val: How many training images to hold out instead; with 0 ``val`` has no rows.
        verify: Compare checksums with those of the published files.
    """
    return load_images(SET, root, n_val, verify)
