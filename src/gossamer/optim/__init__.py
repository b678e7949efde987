"""Samplers and variational optimizers, each a ``torch.optim.Optimizer``; the network stays plain."""

from gossamer.optim.curvature import Curvature
from gossamer.optim.cv_adam import CVAdam
from gossamer.optim.hmc import HMC
from gossamer.optim.ivon import IVON
from gossamer.optim.sampler import DrawingOptimizer, Sampler, sampled
from gossamer.optim.sghmc import SGHMC
from gossamer.optim.sgld import SGLD

__all__ = ["HMC", "IVON", "SGHMC", "SGLD", "CVAdam", "Curvature", "DrawingOptimizer", "Sampler", "sampled"]
