"""y = W x for a weight W of which only the active entries are stored.

``maps`` defines the products (linear, convolution, embedding). ``reference`` computes them on any device by scattering
the active vector into a temporary dense weight that is freed when the call returns. Two kernels work from the active
entries alone: ``native`` (C++ on a CPU) for linear layers and convolutions, ``lookup`` for embeddings. ``dispatch``
chooses between them, as :func:`use` tells it to. :func:`watch` exposes the dense gradient, whichever kernel computed
the product.
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
