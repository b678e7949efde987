"""CIFAR-100: photographs, 32×32 pixels in colour, 100 classes, 50,000 + 10,000 (Krizhevsky 2009).

The images come in a fixed random order of their own, not that of the files: copies sorted by class are in circulation.
"""

from pathlib import Path

from gossamer.data._files import read_cifar_pickle
from gossamer.data._images import CropFlip, ImageSet, Layout, Normalize, load_images, npz_layout
from gossamer.types import Task

__all__ = ["load"]

PICKLES = Layout(
    places=("cifar-100-python", "cifar100/cifar-100-python"),
    files={"train": ("train",), "test": ("test",)},
    read=read_cifar_pickle,
    md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)

# The fine labels, in the order of their numbers.
CLASS_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle "
    "caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant "
    "flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man "
    "maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree "
    "plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper "
    "snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train "
    "trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)

SET = ImageSet(
    name="cifar100",
    shape=(3, 32, 32),
    sizes={"train": 50_000, "test": 10_000},
    class_names=tuple(CLASS_NAMES.split()),
    normalize=Normalize(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),  # of the training images
    augment=CropFlip(padding=4),
    layouts=(PICKLES, npz_layout("cifar100")),
    sha256={
        "train": "601d76fc2320abef34890b492bba4e3af9549dc4a280827e3bd0f41f805f40e3",
        "test": "96335226835035b1d9edd9e35b7f37b0e3ed0f8f5ca0988d57676497e22b39ec",
    },
    source="www.cs.toronto.edu/~kriz/cifar.html (the Python version, unpacked)",
    has_order=False,
)


def load(root: str | Path | None = None, *, n_val: int | None = None, verify: bool = True) -> Task:
    """The published test images; 5,000 of the training images, always the same, held out for choices.

    Args:
        root: Folder with ``cifar-100-python/`` or ``cifar100.npz``.
        n_val: How many training images to hold out instead; with 0 ``val`` has no rows.
        verify: Compare checksums with those of the published files.
    """
    return load_images(SET, root, n_val, verify)
