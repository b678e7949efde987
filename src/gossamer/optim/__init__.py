"""Samplers and variational optimizers, each a ``torch.optim.Optimizer``; the network stays plain."""

from gossamer.optim.curvature import Curvature
from gossamer.optim.cv_adam import CVAdam
from gossamer.optim.hmc import HMC
from gossamer.optim.ivon import IVON
from gossamer.optim.sampler import Sampler
from gossamer.optim.sghmc import SGHMC
from gossamer.optim.sgld import SGLD
from gossamer.optim.weight_draws import DrawingOptimizer, sampled

__all__ = ["HMC", "IVON", "SGHMC", "SGLD", "CVAdam", "Curvature", "DrawingOptimizer", "Sampler", "sampled"]
