"""Corruptions of CIFAR-C at five severities, for images of any size, grey or coloured.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations" (ICLR 2019).
These are seven of their fifteen; ``reproductions.corruptions`` of the repository has the others. Severities are theirs,
but lengths in pixels grow in proportion for images of more than 32 pixels, and the same noise is used at every
severity, so that a higher one is only stronger: numbers are near those of the published files, not equal.

Random numbers come from numpy's ``RandomState``, whose streams never change. Image i of a set gets the same noise
however many images follow it.
"""

import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer._text.names import unknown
from gossamer.data._files import DataNotFoundError, one_line, read_npy_header

SEVERITIES = (1, 2, 3, 4, 5)
SIDE = 32  # of the images for which lengths in pixels were published


def corrupt(x: Tensor, name: str, severity: int = 3, seed: int = 0) -> Tensor:
    """Images with one of :data:`CORRUPTIONS`; the same every time.

    Args:
        x: Images ``(n, 1 or 3, height, width)``, bytes from 0 to 255 or floats from 0 to 1.
        name: Which corruption.
        severity: From 1 to 5.
        seed: Seed of the noise.

    Returns:
        Images of the same shape and dtype.

    Example:
        >>> x = torch.full((2, 3, 8, 8), 128, dtype=torch.uint8)
        >>> corrupt(x, "brightness", severity=2).unique()  # 128 + 0.1 · 255
        tensor([154], dtype=torch.uint8)
    """
    if name not in CORRUPTIONS:
        raise ValueError(unknown("corruption", name, CORRUPTIONS))
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be a whole number from 1 to 5; got {severity!r}")
    if x.dim() != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < 2:
        raise ValueError(f"x must be images (n, 1 or 3, height, width) of 2 pixels or more; got {tuple(x.shape)}")
    apply, levels = CORRUPTIONS[name]
    is_bytes = x.dtype == torch.uint8
    if not is_bytes and not x.is_floating_point():
        raise ValueError(f"x must be bytes from 0 to 255 or floats from 0 to 1; got {x.dtype}")
    pixels = x.float().cpu() / (255 if is_bytes else 1)
    result = apply(pixels, levels[severity - 1], _Noise(name, seed)).clamp(0, 1)
    return ((result * 255).round() if is_bytes else result).to(x)


def read_corrupted(folder: str | Path, name: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images and labels of the published files (CIFAR-10-C): ``<name>.npy`` and ``labels.npy``, severities in order.

    Returns:
        Bytes ``(n, channels, height, width)`` and class numbers ``(n,)`` of one severity.
    """
    x, labels = (_npy(Path(folder) / f"{file}.npy") for file in (name, "labels"))
    right = x.dtype == np.uint8 and x.ndim == 4 and labels.dtype.kind in "iu"
    if not right or len(x) % len(SEVERITIES) or labels.shape != x.shape[:1]:
        raise ValueError(
            f"{Path(folder) / name}.npy: found {x.dtype} of shape {x.shape} and {labels.size} labels, expected bytes "
            "(5 n, height, width, channels), a fifth for each severity, and as many labels"
        )
    n = len(x) // len(SEVERITIES)
    rows = slice((severity - 1) * n, severity * n)
    images = torch.from_numpy(np.moveaxis(x[rows], -1, 1).copy())  # the file is read-only
    return images, torch.from_numpy(labels[rows].astype(np.int64))


class _Noise:
    """Streams of random numbers, a new one at each call: what an image gets does not depend on the images after it."""

    def __init__(self, name: str, seed: int) -> None:
        self.words, self.count = [zlib.crc32(name.encode()), seed], 0

    def __call__(self) -> np.random.RandomState:
        self.count += 1
        return np.random.RandomState([*self.words, self.count])

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(self().uniform(low, high, shape)).float()

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self().standard_normal(shape)).float()


def _gaussian_noise(x: Tensor, std: float, noise: _Noise) -> Tensor:
    return x + std * noise.normal(*x.shape)


def _shot_noise(x: Tensor, photons: float, noise: _Noise) -> Tensor:
    counts = noise().poisson(photons * x.clamp_min(0).double().numpy())
    return torch.from_numpy(counts / photons).float()


def _impulse_noise(x: Tensor, share: float, noise: _Noise) -> Tensor:
    """A share of the values becomes 0 or 1, each as often."""
    u = noise.uniform(0, 1, *x.shape)
    return torch.where(u < share / 2, 0.0, torch.where(u < share, 1.0, x))


def _defocus_blur(x: Tensor, level: tuple[float, float], noise: _Noise) -> Tensor:
    """Mean over a disc, then a Gaussian of a fraction of a pixel, which softens its edge at any size."""
    radius, std = _scale(x) * level[0], level[1]
    reach = math.ceil(radius)
    at = torch.arange(-reach, reach + 1.0)
    disc = (at.square()[:, None] + at.square() <= radius**2).float()
    return _blur(_filter(x, disc / disc.sum()), std)


def _brightness(x: Tensor, amount: float, noise: _Noise) -> Tensor:
    """The value of HSV is raised, hue and saturation stay: all channels are multiplied by one factor."""
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp(0, 1)
    return torch.where(value > 0, x * raised / value.clamp_min(1e-12), raised)


def _contrast(x: Tensor, factor: float, noise: _Noise) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _pixelate(x: Tensor, share: float, noise: _Noise) -> Tensor:
    """Shrunk by means over boxes, enlarged again by repetition."""
    height, width = (max(1, int(size * share)) for size in x.shape[2:])
    small = _box_means(x.shape[2], height) @ x @ _box_means(x.shape[3], width).T
    return F.interpolate(small, size=x.shape[2:], mode="nearest-exact")


Apply = Callable[[Tensor, Any, _Noise], Tensor]
"""(images from 0 to 1, the level of a severity, noise) -> images, not yet clipped."""


class Corruption(NamedTuple):
    """A corruption and its levels, one for each severity."""

    apply: Apply
    levels: tuple[Any, ...]


# The levels of CIFAR-C (make_cifar_c.py of Hendrycks and Dietterich).
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": Corruption(_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": Corruption(_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "brightness": Corruption(_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "pixelate": Corruption(_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
}
"""The corruptions by name: noise, blur, light and resolution. Another one is another row."""

PUBLISHED = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The corruptions of the published files, in the order of the paper: noise, blur, weather, digital."""


def _scale(x: Tensor) -> float:
    """How many times a length in pixels is that of CIFAR."""
    return max(1.0, min(x.shape[2:]) / SIDE)


def _filter(x: Tensor, kernel: Tensor) -> Tensor:
    """Correlation of every channel with a kernel; the border is repeated."""
    reach = len(kernel) // 2
    padded = F.pad(x, [reach] * 4, mode="replicate").flatten(0, 1).unsqueeze(1)
    return F.conv2d(padded, kernel[None, None]).view(x.shape)


def _blur(x: Tensor, std: float) -> Tensor:
    """Gaussian blur of the last two dimensions; weights that fall outside the image are given to the rest."""
    if not std:
        return x

    def weights(size: int) -> Tensor:
        at = torch.arange(size, dtype=torch.float64)
        matrix = torch.exp(-(at[:, None] - at).square() / (2 * std**2))
        return (matrix / matrix.sum(1, keepdim=True)).float()

    return weights(x.shape[-2]) @ x @ weights(x.shape[-1]).T


def _box_means(n: int, m: int) -> Tensor:
    """Matrix ``(m, n)`` that averages n pixels over m boxes of equal length; a pixel counts by its part in the box."""
    edges = torch.arange(m + 1, dtype=torch.float64) * n / m
    pixel = torch.arange(n, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)
    return (overlap.clamp_min(0) * m / n).float()


def _npy(path: Path) -> Any:
    """The array, mapped: only the rows of a severity are read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            shape, is_fortran, dtype = read_npy_header(stream, size)
            start = stream.tell()
        return np.memmap(path, dtype, "r", start, shape, "F" if is_fortran else "C")
    except FileNotFoundError:
        raise DataNotFoundError(
            f"{path} is missing: give the folder of CIFAR-10-C (zenodo.org/records/2535967), unpacked"
        ) from None
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not a .npy array: {one_line(error)}; get it again") from error
