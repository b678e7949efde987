"""The sizes that all kernels take, in one order: numbers at run time, so that one kernel serves layers of all sizes."""

from __future__ import annotations

from gossamer.kernels.fused.geometry import Geometry

__all__ = ["RUNTIME", "sizes"]

# Names of those that must not make kernels of their own. The channels may: being multiples of 16 makes loads wide.
RUNTIME = [
    "height",
    "width",
    "out_height",
    "out_width",
    "kernel_height",
    "kernel_width",
    "stride",
    "pad_height",
    "pad_width",
]


def sizes(geometry: Geometry) -> tuple[int, ...]:
    """As the kernels list them.

    Example:
        >>> sizes(Geometry(2, 3, 8, 8, 16, (3, 3), 2, (1, 1)))
        (3, 16, 8, 8, 4, 4, 3, 3, 2, 1, 1)
    """
    return (
        geometry.n_in,
        geometry.n_out,
        geometry.height,
        geometry.width,
        geometry.out_height,
        geometry.out_width,
        *geometry.kernel,
        geometry.stride,
        *geometry.padding,
    )
