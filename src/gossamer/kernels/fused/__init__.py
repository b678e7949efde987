"""Local reparameterization in one kernel, for the training steps of a GPU: y = W_μ x + b + sqrt(W_σ² x²) · ε.

Two convolutions and what lies between them read and write every activation many times. Here a tile of the input is
loaded once, squared in registers, and multiplied with both weights; the noise is added before anything is written, and
may be drawn there. Of the backward pass the same holds: dx = W_μᵀ dy + 2 x · W_σ²ᵀ (dy · ε / 2 std).

``tiles`` holds the kernels, in Triton, which nothing here imports before it is needed; ``choosing`` finds out by
measurement which parts of which layers are better off with them; :func:`noisy_product` is one node of a compiled graph.
"""

from __future__ import annotations

from gossamer.kernels.fused.choosing import Fused, Times, check_fused, choose, compile_all, measure, why_not
from gossamer.kernels.fused.geometry import Geometry, as_images
from gossamer.kernels.fused.plans import Plan, Tile
from gossamer.kernels.fused.product import Source, noisy_product

__all__ = [
    "Fused",
    "Geometry",
    "Plan",
    "Source",
    "Tile",
    "Times",
    "as_images",
    "check_fused",
    "choose",
    "compile_all",
    "load",
    "measure",
    "noisy_product",
    "why_not",
]


def load() -> None:
    """Make the operators known to torch; :func:`noisy_product` needs them."""
    from gossamer.kernels.fused import operators as _operators

    del _operators
