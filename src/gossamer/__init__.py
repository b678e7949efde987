"""Gossamer: Bayesian neural networks that are sparse from the first step to the last."""

from gossamer.convert import bayesianize, sparsify
from gossamer.layers import active_parameters, density, kl, param_groups, summary

__version__ = "0.1.0"
