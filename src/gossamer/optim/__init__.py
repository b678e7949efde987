"""Samplers and variational optimizers, each a ``torch.optim.Optimizer``; the network stays plain."""

from gossamer.optim.curvature import Curvature
from gossamer.optim.cv_adam import CVAdam, sampled
from gossamer.optim.sampler import Sampler
from gossamer.optim.sghmc import SGHMC
from gossamer.optim.sgld import SGLD

__all__ = ["SGHMC", "SGLD", "CVAdam", "Curvature", "Sampler", "sampled"]
