"""A small convolutional network for small images."""

from __future__ import annotations

from torch import nn

from gossamer.models.arguments import require_positive

__all__ = ["conv_net"]


def conv_net(num_classes: int = 10, in_channels: int = 1, width: int = 16) -> nn.Sequential:
    """Two 3×3 convolutions, pooling to 4×4, two linear layers; any image of at least 8×8 pixels.

    >>> import torch
    >>> conv_net()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    require_positive(num_classes=num_classes, in_channels=in_channels, width=width)
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * width, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )
