"""Plain torch networks, to be made Bayesian or used as they are.

>>> import torch
>>> mlp(4, hidden=(8,), out_features=3)(torch.zeros(2, 4)).shape
torch.Size([2, 3])
"""

from gossamer.models.mlp import mlp
from gossamer.models.resnet import resnet18
from gossamer.models.vit import vit_tiny
from gossamer.models.wide_resnet import wide_resnet, wide_resnet28_10

__all__ = ["mlp", "resnet18", "vit_tiny", "wide_resnet", "wide_resnet28_10"]
