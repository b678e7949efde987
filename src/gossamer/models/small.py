"""Small networks: a multilayer perceptron and a convolutional network for small images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def mlp(in_features: int, hidden: Sequence[int] = (256, 256), out_features: int = 10) -> nn.Sequential:
    """Linear layers with ReLU between them; the input is flattened first, and an empty ``hidden`` is a linear model.

    >>> import torch
    >>> mlp(784, hidden=(32,))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    require_positive(in_features=in_features, out_features=out_features)
    for i, width in enumerate(hidden):
        require_positive(**{f"hidden[{i}]": width})
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in pairwise((in_features, *hidden)):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((in_features, *hidden)[-1], out_features))


class ConstantNoise(nn.Module):
    """A network for the means and noise stds that do not depend on the input, in the form that ``Gaussian()`` reads."""

    def __init__(self, mean: nn.Module, n_targets: int) -> None:
        super().__init__()
        self.mean = mean
        self.raw_noise = nn.Parameter(torch.full((n_targets,), math.log(math.e - 1)))  # softplus of it is 1

    def forward(self, x: Tensor) -> Tensor:
        """Means and raw noise stds, ``(batch, 2 · targets)``."""
        mean: Tensor = self.mean(x)
        return torch.cat([mean, self.raw_noise.expand_as(mean)], -1)


def table(in_features: int, out_features: int) -> nn.Sequential:
    """The network of the estimators: two hidden layers of 50 units.

    >>> table(4, 2)[1].weight.shape
    torch.Size([50, 4])
    """
    return mlp(in_features, (50, 50), out_features)


def table_one_noise(in_features: int, out_features: int) -> nn.Module:
    """The same for numbers whose noise does not depend on the input, for methods with one learning rate for all.

    >>> table_one_noise(4, 2)(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """
    return ConstantNoise(table(in_features, out_features // 2), out_features // 2)


def conv_net(num_classes: int = 10, in_channels: int = 1, width: int = 16, pool: bool = False) -> nn.Sequential:
    """Two 3×3 convolutions, pooling to 4×4, two linear layers; any image of at least 8×8 pixels.

    With ``pool`` the image is halved between the convolutions, which saves most of the operations.

    >>> import torch
    >>> conv_net()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    require_positive(num_classes=num_classes, in_channels=in_channels, width=width)
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.ReLU(),
        *([nn.MaxPool2d(2)] if pool else []),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * width, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def pooled_conv_net(num_classes: int = 10, in_channels: int = 1, width: int = 16) -> nn.Sequential:
    """The same as ``conv_net``, but the image is halved between the convolutions: most operations are saved.

    >>> import torch
    >>> pooled_conv_net()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    return conv_net(num_classes, in_channels, width, pool=True)


def require_positive(**sizes: int) -> None:
    """Raise ``ValueError`` for the first size that is not positive, by its name."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
