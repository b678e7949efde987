"""The fifteen corruptions of CIFAR-C at five severities, for images of any size, grey or coloured.

Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations" (ICLR 2019).
Their severities are kept, but images are made by the formulas below, so numbers are comparable with one another, and
close to those of the published files but not equal:

- Lengths in pixels are theirs for images up to 32 pixels, and grow in proportion for larger ones.
- ``frost`` blends a fractal in place of photographs of ice. Its severities are theirs, its texture is ours.
- ``glass_blur`` takes each pixel from a random neighbour, where they exchange neighbours one after another.
- ``elastic_transform`` interpolates once, where they do it twice; borders are reflected.
- ``jpeg_compression`` quantises an exact cosine transform; no file is written.
- The same noise is used at every severity, so that a higher one is only stronger.

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
from gossamer.data._images import LUMA, grey

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


def _glass_blur(x: Tensor, level: tuple[float, int, int], noise: _Noise) -> Tensor:
    """Each pixel is taken from a place at most ``reach`` away, a few times over, between two Gaussian blurs."""
    std, reach, times = level[0] * _scale(x), round(level[1] * _scale(x)), level[2]
    n, channels, height, width = x.shape
    x = _blur(x, std)
    for _ in range(times):
        shift = noise().randint(-reach, reach + 1, size=(n, height, width, 2))
        rows = (torch.arange(height)[:, None] + torch.from_numpy(shift[..., 0])).clamp(0, height - 1)
        columns = (torch.arange(width) + torch.from_numpy(shift[..., 1])).clamp(0, width - 1)
        x = x[
            torch.arange(n).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1), rows[:, None], columns[:, None]
        ]
    return _blur(x, std)


def _motion_blur(x: Tensor, level: tuple[float, float], noise: _Noise) -> Tensor:
    return _smear(x, *level, noise.uniform(-45, 45, len(x)))


def _zoom_blur(x: Tensor, largest: float, noise: _Noise) -> Tensor:
    """Mean of the image and of its enlargements by 1, 1.01, … ``largest``."""
    factors = [1 + 0.01 * i for i in range(round((largest - 1) * 100) + 1)]
    return (x + sum(_zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


def _snow(x: Tensor, level: tuple[float, ...], noise: _Noise) -> Tensor:
    """Flakes, smeared by the wind, on an image that is whitened."""
    mean, std, zoom, threshold, radius, spread, keep = level
    flakes = _zoomed(mean + std * noise.normal(len(x), 1, *x.shape[2:]), zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes.clamp(0, 1))
    flakes = _smear(flakes, radius, spread, noise.uniform(-135, -45, len(x)))
    whitened = keep * x + (1 - keep) * torch.maximum(x, 1.5 * grey(x) + 0.5)
    return whitened + flakes + flakes.rot90(2, (2, 3))


def _frost(x: Tensor, level: tuple[float, float], noise: _Noise) -> Tensor:
    """The image under ice: ridges of a fractal, which are thin and branch, in a white that is slightly blue."""
    keep, ice = level
    ridges = 1 - (2 * _plasma(len(x), x.shape[2:], 1.3, noise) - 1).abs()
    colour = torch.tensor([0.85, 0.95, 1.0] if x.shape[1] == 3 else [1.0]).view(-1, 1, 1)
    return keep * x + ice * colour * (0.3 + 0.7 * ridges)


def _fog(x: Tensor, level: tuple[float, float], noise: _Noise) -> Tensor:
    thickness, decay = level
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * _plasma(len(x), x.shape[2:], decay, noise)) * brightest / (brightest + thickness)


def _brightness(x: Tensor, amount: float, noise: _Noise) -> Tensor:
    """The value of HSV is raised, hue and saturation stay: all channels are multiplied by one factor."""
    value = x.amax(1, keepdim=True)
    raised = (value + amount).clamp(0, 1)
    return torch.where(value > 0, x * raised / value.clamp_min(1e-12), raised)


def _contrast(x: Tensor, factor: float, noise: _Noise) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _elastic_transform(x: Tensor, level: tuple[float, float, float], noise: _Noise) -> Tensor:
    """A random affine map, given by what it does to three points, and a smooth random displacement."""
    n, _, height, width = x.shape
    strength, std, affine = (min(height, width) * share for share in level)
    middle, arm = torch.tensor([height // 2, width // 2]), min(height, width) // 3
    corners = middle + arm * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = corners + noise.uniform(-affine, affine, n, 3, 2)
    back = torch.linalg.solve(torch.cat([moved, torch.ones(n, 3, 1)], 2), corners.expand(n, 3, 2))  # (n, 3, 2)
    at = _places(height, width) + (strength * _blur(noise.uniform(-1, 1, n, 2, height, width), std)).movedim(1, -1)
    homogeneous = torch.cat([at, torch.ones(n, height, width, 1)], -1)
    return _sampled(x, (homogeneous.flatten(1, 2) @ back).view(n, height, width, 2))


def _pixelate(x: Tensor, share: float, noise: _Noise) -> Tensor:
    """Shrunk by means over boxes, enlarged again by repetition."""
    height, width = (max(1, int(size * share)) for size in x.shape[2:])
    small = _box_means(x.shape[2], height) @ x @ _box_means(x.shape[3], width).T
    return F.interpolate(small, size=x.shape[2:], mode="nearest-exact")


def _jpeg_compression(x: Tensor, quality: int, noise: _Noise) -> Tensor:
    """What JPEG loses: 8×8 cosine transforms rounded by the tables of Annex K, colours at half the resolution."""
    if x.shape[1] == 1:
        return _quantised(255 * x, LUMINANCE, quality) / 255
    luma = 255 * grey(x)
    # Blue and red less the luminance, scaled to bytes: B − Y ranges over 2 (1 − 0.114), R − Y over 2 (1 − 0.299).
    chroma = [(255 * x[:, i : i + 1] - luma) / (2 * (1 - LUMA[i])) + 128 for i in (2, 0)]
    height, width = x.shape[2:]
    even = [F.pad(part, (0, width % 2, 0, height % 2), mode="replicate") for part in chroma]
    coarse = [_quantised(F.avg_pool2d(part, 2), CHROMINANCE, quality) for part in even]
    fine = [F.interpolate(part, scale_factor=2, mode="bilinear")[:, :, :height, :width] for part in coarse]
    luma = _quantised(luma, LUMINANCE, quality)
    blue, red = (luma + 2 * (1 - LUMA[i]) * (part - 128) for i, part in zip((2, 0), fine, strict=True))
    green = (luma - LUMA[0] * red - LUMA[2] * blue) / LUMA[1]
    return torch.cat([red, green, blue], 1) / 255


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
    "glass_blur": Corruption(_glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": Corruption(_motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "zoom_blur": Corruption(_zoom_blur, (1.05, 1.10, 1.15, 1.20, 1.25)),
    "snow": Corruption(
        _snow,
        (
            (0.1, 0.2, 1.0, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1.0, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": Corruption(_frost, ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(_fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    "brightness": Corruption(_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": Corruption(
        _elastic_transform,
        ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption(_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption(_jpeg_compression, (80, 65, 58, 50, 40)),
}
"""The corruptions by name, in the order of the paper: noise, blur, weather, digital."""


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


def _smear(x: Tensor, radius: float, std: float, degrees: Tensor) -> Tensor:
    """Blur along a line, one angle per image: weights exp(−i² / 2 std²) for i = 0 … 2 radius pixels along it."""
    radius, std = radius * _scale(x), std * _scale(x)
    angle = torch.deg2rad(degrees)
    direction = torch.stack([angle.sin(), angle.cos()], 1).view(-1, 1, 1, 2)
    weights = [math.exp(-(i**2) / (2 * std**2)) for i in range(2 * math.ceil(radius) + 1)]
    at = _places(*x.shape[2:])
    total = torch.zeros_like(x)
    for i, weight in enumerate(weights):
        total += weight / sum(weights) * _sampled(x, at + i * direction)
    return total


def _zoomed(x: Tensor, factor: float) -> Tensor:
    """The middle of the image, enlarged to its size."""
    height, width = x.shape[2:]
    middle = torch.tensor([(height - 1) / 2, (width - 1) / 2])
    at = middle + (_places(height, width) - middle) / factor
    return _sampled(x, at.expand(len(x), -1, -1, -1))


def _places(height: int, width: int) -> Tensor:
    """Row and column of each pixel, ``(height, width, 2)``."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([rows, columns], -1).float()


def _sampled(x: Tensor, at: Tensor) -> Tensor:
    """Bilinear values at rows and columns ``(n, height, width, 2)``; the image is reflected at its borders."""
    size = torch.tensor([x.shape[2] - 1.0, x.shape[3] - 1.0])
    grid = (2 * at / size - 1).flip(-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=True)


def _plasma(n: int, size: torch.Size | tuple[int, ...], decay: float, noise: _Noise) -> Tensor:
    """Clouds from 0 to 1, ``(n, 1, height, width)``, by the diamond-square algorithm on a torus.

    Each halving of the step divides the amplitude by decay², as in the published code.
    """
    side = 2 ** math.ceil(math.log2(max(size)))
    field, step, amplitude = torch.zeros(n, side, side), side, 1.0
    while step >= 2:
        half = step // 2
        cells = (n, side // step, side // step)
        corners = field[:, ::step, ::step]
        squares = (corners + corners.roll(-1, 1) + corners.roll(-1, 2) + corners.roll((-1, -1), (1, 2))) / 4
        middles = squares + amplitude * noise.uniform(-1, 1, *cells)
        across = (corners + corners.roll(-1, 2) + middles + middles.roll(1, 1)) / 4
        down = (corners + corners.roll(-1, 1) + middles + middles.roll(1, 2)) / 4
        field[:, half::step, half::step] = middles
        field[:, ::step, half::step] = across + amplitude * noise.uniform(-1, 1, *cells)
        field[:, half::step, ::step] = down + amplitude * noise.uniform(-1, 1, *cells)
        step, amplitude = half, amplitude / decay**2
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low))[:, None, : size[0], : size[1]]


def _box_means(n: int, m: int) -> Tensor:
    """Matrix ``(m, n)`` that averages n pixels over m boxes of equal length; a pixel counts by its part in the box."""
    edges = torch.arange(m + 1, dtype=torch.float64) * n / m
    pixel = torch.arange(n, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], pixel + 1) - torch.maximum(edges[:-1, None], pixel)
    return (overlap.clamp_min(0) * m / n).float()


def _quantised(plane: Tensor, table: Tensor, quality: int) -> Tensor:
    """A plane ``(n, 1, height, width)`` of bytes whose 8×8 cosine transforms are rounded by a table."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = ((table * scale + 50) / 100).floor().clamp(1, 255)
    height, width = plane.shape[2:]
    padded = F.pad(plane.round() - 128, (0, -width % 8, 0, -height % 8), mode="replicate")
    blocks = padded.unfold(2, 8, 8).unfold(3, 8, 8)  # (n, 1, rows, columns, 8, 8)
    k = torch.arange(8, dtype=torch.float64)
    cosines = (torch.cos(math.pi * (2 * k + 1) * k[:, None] / 16) / 2).float()
    cosines[0] /= math.sqrt(2)
    rounded = ((cosines @ blocks @ cosines.T) / steps).round() * steps
    back = (cosines.T @ rounded @ cosines).transpose(3, 4).reshape(padded.shape)
    return (back[:, :, :height, :width] + 128).round().clamp(0, 255)


def _table(*rows: str) -> Tensor:
    return torch.tensor([[float(word) for word in row.split()] for row in rows])


LUMINANCE = _table(  # ITU-T T.81, Table K.1
    "16 11 10 16 24 40 51 61",
    "12 12 14 19 26 58 60 55",
    "14 13 16 24 40 57 69 56",
    "14 17 22 29 51 87 80 62",
    "18 22 37 56 68 109 103 77",
    "24 35 55 64 81 104 113 92",
    "49 64 78 87 103 121 120 101",
    "72 92 95 98 112 100 103 99",
)
CHROMINANCE = _table(  # Table K.2
    "17 18 24 47 99 99 99 99",
    "18 21 26 66 99 99 99 99",
    "24 26 56 99 99 99 99 99",
    "47 66 99 99 99 99 99 99",
    *["99 99 99 99 99 99 99 99"] * 4,
)


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
