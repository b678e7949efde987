"""y = W x for a weight W of which only the active entries are stored.

``maps`` says what the product is (linear, convolution, embedding). ``reference`` computes it on any device by
scattering the active vector into a temporary dense weight that is gone when the call returns; ``native`` computes it on
a CPU from the active entries alone, and so does ``csr``, for linear layers, where ``native`` is not built. ``dispatch``
chooses, and :func:`use` tells it what to choose. ``watch`` tells who asks for it the dense gradient, whatever kernel it
was.
"""

from gossamer.kernels import operators as _operators
from gossamer.kernels.dense_gradient import Sink, watch
from gossamer.kernels.dispatch import Kernel, in_use, moments, noisy_product, product, use
from gossamer.kernels.maps import ConvMap, EmbeddingMap, LinearMap, Placement, WeightMap
from gossamer.kernels.reference import gather, perturb, scatter

__all__ = [
    "ConvMap",
    "EmbeddingMap",
    "Kernel",
    "LinearMap",
    "Placement",
    "Sink",
    "WeightMap",
    "gather",
    "in_use",
    "moments",
    "noisy_product",
    "perturb",
    "product",
    "scatter",
    "use",
    "watch",
]

del _operators
