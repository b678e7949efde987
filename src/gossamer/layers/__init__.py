"""Layers of which only the active entries are stored, and the swap that puts them into any network."""

from gossamer.layers.curvature import CurvatureWeight
from gossamer.layers.delta import DeltaWeight
from gossamer.layers.fixed import DenseCopy
from gossamer.layers.gaussian import GaussianWeight, WeightedKL, inverse_softplus, kl, param_groups
from gossamer.layers.modules import DenseWeight, SparseLayer, SparseModule
from gossamer.layers.structure import replica
from gossamer.layers.summary import Summary, active_parameters, density, summary
from gossamer.layers.support import Support
from gossamer.layers.swap import Found, find, match_names, swap
from gossamer.layers.weight import PointWeight, SparseWeight, sparse_weights

__all__ = [
    "CurvatureWeight",
    "DeltaWeight",
    "DenseCopy",
    "DenseWeight",
    "Found",
    "GaussianWeight",
    "PointWeight",
    "SparseLayer",
    "SparseModule",
    "SparseWeight",
    "Summary",
    "Support",
    "WeightedKL",
    "active_parameters",
    "density",
    "find",
    "inverse_softplus",
    "kl",
    "match_names",
    "param_groups",
    "replica",
    "sparse_weights",
    "summary",
    "swap",
]
