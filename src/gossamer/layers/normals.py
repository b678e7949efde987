"""Normal numbers that are a function of a seed and a position: nothing is stored, and nothing has to be moved along."""

import torch
from torch import Tensor

BITS = 23  # of the uniform number: (2k + 1) / 2^24 is exact in float32 and never 0 or 1


def normals_at(position: Tensor, seed: int) -> Tensor:
    """Standard normal numbers at flat positions, in float32: the quantiles of the outputs of SplitMix64.

    Example:
        >>> position = torch.tensor([3, 7, 1000])
        >>> torch.equal(normals_at(position, 5)[1:], normals_at(position[1:], 5))
        True
    """
    x = position.long() * _signed(0x9E3779B97F4A7C15) + _signed(seed * 0xD1342543DE82EF95)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    uniform = (2 * _shifted(x ^ _shifted(x, 31), 64 - BITS) + 1).float() / 2 ** (BITS + 1)
    normals: Tensor = torch.special.ndtri(uniform)
    return normals


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A shift of unsigned numbers, which torch lacks."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The 64-bit integer with the same bits."""
    return (number + 2**63) % 2**64 - 2**63
