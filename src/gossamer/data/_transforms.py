"""From stored bytes to what a network reads, and random changes of a training batch; both can be pickled."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["CropFlip", "Normalize", "Standardize"]


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
        # A traced graph makes constants of them by itself.
        mean, std = (_tensors if torch.compiler.is_compiling() else _constants)(self, x.device)
        return (x.float() / 255 - mean) / std


@dataclass(frozen=True)
class Standardize:
    """Columns of a table in their original units, float64, to ``(x - mean) / std`` in float32.

    Example:
        >>> Standardize(mean=(10.0,), std=(2.0,))(torch.tensor([[14.0]], dtype=torch.float64))
        tensor([[2.]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """The rows, standardised; subtracted in float64, since a column may vary in its last digits only."""
        mean, std = (torch.tensor(part, dtype=torch.float64, device=x.device) for part in (self.mean, self.std))
        return ((x.double() - mean) / std).float()


@dataclass(frozen=True)
class CropFlip:
    """A random crop of each image padded with zeros, then a horizontal flip of half of them.

    Shape, dtype and device of the batch are kept; one gather serves the whole batch; the randomness is that of torch's
    global generator on the batch's device.

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


@functools.lru_cache(maxsize=64)
def _constants(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    # Made once a device, since each copy to a GPU waits for it; not in inference mode, whose tensors autograd refuses.
    with torch.inference_mode(False):
        return _tensors(normalize, device)


def _tensors(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    mean = torch.tensor(normalize.mean, device=device).view(-1, 1, 1)
    return mean, torch.tensor(normalize.std, device=device).view(-1, 1, 1)
