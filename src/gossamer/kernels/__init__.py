"""y = W x for a weight W of which only the active entries are stored.

``maps`` says what the product is (linear, convolution, embedding); ``reference`` computes it on any device by
scattering the active vector into a temporary dense weight that is gone when the call returns.
"""

from gossamer.kernels.maps import ConvMap, EmbeddingMap, LinearMap, WeightMap
from gossamer.kernels.reference import gather, moments, perturb, product, scatter

__all__ = [
    "ConvMap",
    "EmbeddingMap",
    "LinearMap",
    "WeightMap",
    "gather",
    "moments",
    "perturb",
    "product",
    "scatter",
]
