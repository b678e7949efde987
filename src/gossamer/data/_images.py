"""Images as tensors: normalised, cropped, grey; and which rows of a set are held out."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.types import Split

SPLIT_SEED = 0  # the split is part of the data set: seeds of runs do not change it

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


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


def split_in_order(x: Tensor, y: Tensor, n_val: int | None) -> tuple[Split, Split, Split]:
    """Parts of a small set: the first third is for testing, a fifth of the rest for choices."""
    n_rest = len(y) - len(y) // 3
    n_val = n_held_out(n_rest, n_rest // 5 if n_val is None else n_val)
    parts = [len(y) // 3, n_val, n_rest - n_val]
    test, val, train = zip(x.split(parts), y.split(parts), strict=True)
    return train, val, test


def split_rows(n: int, n_val: int | None, seed: int = SPLIT_SEED) -> Split:
    """Rows for training and ``n_val`` held-out rows (None: a tenth; 0: an empty split), in one fixed random order."""
    n_val = n_held_out(n, n // 10 if n_val is None else n_val)
    # numpy guarantees that this stream never changes
    order = torch.from_numpy(np.random.RandomState(seed).permutation(n))
    return order[n_val:], order[:n_val]


@functools.lru_cache(maxsize=64)
def _constants(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    # Cached per device, since each copy to a GPU waits for it; not in inference mode, whose tensors autograd rejects.
    with torch.inference_mode(False):
        return _tensors(normalize, device)


def _tensors(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    mean = torch.tensor(normalize.mean, device=device).view(-1, 1, 1)
    return mean, torch.tensor(normalize.std, device=device).view(-1, 1, 1)
