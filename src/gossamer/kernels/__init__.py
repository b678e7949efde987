"""y = W x for a weight W of which only the active entries are stored.

``reference`` defines the products (linear, convolution, embedding) and computes them on any device by scattering the
active vector into a temporary dense weight. Two kernels work from the active entries alone: ``native`` (C++ on a CPU)
for linear layers and convolutions, ``lookup`` for embeddings. ``dispatch`` chooses between them, as :func:`use` tells
it to. :func:`watch` exposes the dense gradient, whichever kernel computed the product.
"""

from gossamer.kernels import operators as _operators
from gossamer.kernels.dispatch import Kernel, Sink, in_use, noisy_product, product, use, watch
from gossamer.kernels.draws import is_seeded, mapped, products, sampled, seeds
from gossamer.kernels.reference import ConvMap, EmbeddingMap, LinearMap, Placement, WeightMap, scatter

__all__ = [
    "ConvMap",
    "EmbeddingMap",
    "Kernel",
    "LinearMap",
    "Placement",
    "Sink",
    "WeightMap",
    "in_use",
    "is_seeded",
    "mapped",
    "noisy_product",
    "product",
    "products",
    "sampled",
    "scatter",
    "seeds",
    "use",
    "watch",
]

del _operators
