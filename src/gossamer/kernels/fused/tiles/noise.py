"""Standard normals inside a kernel: Philox gives four words a call, Box and Muller make four normals of them.

The number at an output depends on the seed, the layer and the place of the output alone, not on the tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

__all__ = ["normals"]

# Philox4x32 passes every test of BigCrush from 7 rounds on (Salmon et al., 2011, table 2).
ROUNDS = tl.constexpr(7)
TWO_PI = tl.constexpr(6.283185307179586)
MINUS_TWO_LN_TWO = tl.constexpr(-1.3862943611198906)


@triton.jit
def normals(seed, layer, row, group, n_groups, ROWS: tl.constexpr, GROUPS: tl.constexpr, FAST: tl.constexpr):
    """``(ROWS, 4 · GROUPS)`` normals for the rows ``row`` and the groups ``group`` of four columns."""
    place = row[:, None] * n_groups + group[None, :]
    zero = place * 0
    a, b, c, d = tl.philox(seed, place, zero + layer, zero, zero, ROUNDS)
    first, second = _pair(a, b, FAST)
    third, fourth = _pair(c, d, FAST)
    return tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), (ROWS, 4 * GROUPS))


@triton.jit
def _pair(a, b, FAST: tl.constexpr):
    """Two normals of two random words."""
    share = ((a >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # (0, 1), so that its logarithm is finite
    angle = ((b >> 8).to(tl.float32) * 5.9604644775390625e-08 - 0.5) * TWO_PI
    if FAST:
        radius = tl.sqrt(MINUS_TWO_LN_TWO * libdevice.fast_log2f(share))
        return radius * libdevice.fast_cosf(angle), radius * libdevice.fast_sinf(angle)
    radius = tl.sqrt(MINUS_TWO_LN_TWO * tl.log2(share))
    return radius * tl.cos(angle), radius * tl.sin(angle)
