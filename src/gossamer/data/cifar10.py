"""CIFAR-10: photographs, 32×32 pixels in colour, 10 classes, 50,000 + 10,000 (Krizhevsky 2009)."""

from pathlib import Path

from gossamer.data._files import read_cifar_pickle
from gossamer.data._images import CropFlip, ImageSet, Layout, Normalize, load_images, npz_layout
from gossamer.types import Task

__all__ = ["load"]

PICKLES = Layout(
    places=("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
    files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    read=read_cifar_pickle,
    md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)

SET = ImageSet(
    name="cifar10",
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    normalize=Normalize(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),  # of the training images
    augment=CropFlip(padding=4),
    layouts=(PICKLES, npz_layout("cifar10")),
    sha256={
        "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
        "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
    },
    source="www.cs.toronto.edu/~kriz/cifar.html (the Python version, unpacked)",
)


def load(root: str | Path | None = None, *, n_val: int | None = None, verify: bool = True) -> Task:
    """The published test images; 5,000 of the training images, always the same, held out for choices.

    Args:
        root: Folder with ``cifar-10-batches-py/`` or ``cifar10.npz``.
        n_val: How many training images to hold out instead; with 0 ``val`` has no rows.
        verify: Compare checksums with those of the published files.
    """
    return load_images(SET, root, n_val, verify)
