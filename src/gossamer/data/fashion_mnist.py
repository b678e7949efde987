"""Fashion-MNIST: pieces of clothing, 28×28 grey pixels, 10 classes, 60,000 + 10,000 (Xiao, Rasul and Vollgraf 2017)."""

from pathlib import Path

from gossamer.data._images import ImageSet, Normalize, idx_layout, load_images, npz_layout
from gossamer.types import Task

__all__ = ["load"]

CLASS_NAMES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

SET = ImageSet(
    name="fashion_mnist",
    shape=(1, 28, 28),
    sizes={"train": 60_000, "test": 10_000},
    class_names=CLASS_NAMES,
    normalize=Normalize(mean=(0.2860,), std=(0.3530,)),  # of the training images
    layouts=(
        idx_layout(
            ("fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", ""),
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        npz_layout("fashion_mnist"),
    ),
    sha256={
        "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
        "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
    },
    source="github.com/zalandoresearch/fashion-mnist",
)


def load(root: str | Path | None = None, *, n_val: int | None = None, verify: bool = True) -> Task:
    """The published test images; 6,000 of the training images, always the same, held out for choices.

    Args:
        root: Folder with the four IDX files, plain or ``.gz``, named as MNIST's (also in ``fashion_mnist/`` or
            ``FashionMNIST/raw/``), or ``fashion_mnist.npz``.
        n_val: How many training images to hold out instead; with 0 ``val`` has no rows.
        verify: Compare checksums with those of the published files.
    """
    return load_images(SET, root, n_val, verify)
