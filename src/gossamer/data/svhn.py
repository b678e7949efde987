"""SVHN, cropped digits: house numbers, 32×32 pixels in colour, 10 classes, 73,257 + 26,032 (Netzer et al. 2011).

Mostly used as out-of-distribution images: then ``only_test=True`` suffices, and the images must go through the
``transform`` of the set that the network was trained on. The test images that circulate as ``svhn.npz`` were cropped
again from the full house numbers and are not equal byte for byte; the task is then called ``svhn (reconstructed)``, and
so should be the results. SVHN is for non-commercial use.
"""

from pathlib import Path

from gossamer.data._files import DataNotFoundError, read_mat
from gossamer.data._images import BOTH, ImageSet, Layout, Normalize, load_images, npz_layout
from gossamer.types import Task

__all__ = ["load"]

SET = ImageSet(
    name="svhn",
    shape=(3, 32, 32),
    sizes={"train": 73_257, "test": 26_032},
    class_names=tuple("0123456789"),
    normalize=Normalize(mean=(0.4377, 0.4438, 0.4728), std=(0.1980, 0.2010, 0.1970)),  # of the training images
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
        npz_layout("svhn", note="reconstructed"),
    ),
    sha256={"test": "9e7f60f5f516cf88f8cf4a4385c6333cea9884d56426276d93c30fc73be85a1d"},
    source="ufldl.stanford.edu/housenumbers",
)


def load(
    root: str | Path | None = None, *, n_val: int | None = None, only_test: bool = False, verify: bool = True
) -> Task:
    """The published test images; a tenth of the training images (7,325), always the same, held out for choices.

    Args:
        root: Folder with ``train_32x32.mat`` and ``test_32x32.mat`` (also in ``svhn/``) or ``svhn.npz``.
        n_val: How many training images to hold out instead; with 0 ``val`` has no rows.
        only_test: Read no training images; ``train`` and ``val`` have no rows.
        verify: Compare checksums with those of the published files.
    """
    try:
        return load_images(SET, root, n_val, verify, parts=("test",) if only_test else BOTH)
    except DataNotFoundError as error:
        if only_test:
            raise
        raise DataNotFoundError(f"{error}. If the test images are all you need, ask for only_test=True") from error
