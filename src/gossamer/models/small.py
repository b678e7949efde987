"""Small networks: a multilayer perceptron, a convolutional network and a vision transformer.

The transformer is normalised before each part (Dosovitskiy et al., 2021; Touvron et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

OF_TABLES = (50, 50)  # units of the hidden layers


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
    return mlp(in_features, OF_TABLES, out_features)


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


def vit_tiny(
    num_classes: int = 10,
    image_size: int = 32,
    patch_size: int = 4,
    dim: int = 192,
    depth: int = 12,
    heads: int = 3,
    in_channels: int = 3,
) -> VisionTransformer:
    """ViT-Ti for small images: 5.4 million parameters with the defaults.

    >>> import torch
    >>> vit_tiny(depth=1).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return VisionTransformer(num_classes, image_size, patch_size, dim, depth, heads, in_channels)


class VisionTransformer(nn.Module):
    """Patches to tokens, a class token, learned positions, ``depth`` encoder layers, a linear head on its output."""

    def __init__(
        self, num_classes: int, image_size: int, patch_size: int, dim: int, depth: int, heads: int, in_channels: int = 3
    ) -> None:
        super().__init__()
        require_positive(num_classes=num_classes, image_size=image_size, patch_size=patch_size)
        require_positive(dim=dim, depth=depth, heads=heads, in_channels=in_channels)
        if image_size % patch_size:
            raise ValueError(f"image_size ({image_size}) must be a multiple of patch_size ({patch_size})")
        if dim % heads:
            raise ValueError(f"dim ({dim}) must be a multiple of heads ({heads})")
        self.image_size = image_size
        self.patches = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.zeros(1, 1 + (image_size // patch_size) ** 2, dim))
        # Layer by layer, since nn.TransformerEncoder copies one layer and so starts all of them at the same weights.
        self.encoder = nn.Sequential(*[_encoder_layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        # 0.02 is the value of Touvron et al.
        nn.init.trunc_normal_(self.class_token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, image_size, image_size) -> (batch, num_classes)``."""
        if tuple(x.shape[-2:]) != (self.image_size, self.image_size):
            raise ValueError(f"images must be {self.image_size} x {self.image_size}, not {tuple(x.shape[-2:])}")
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1) + self.position
        out: Tensor = self.head(self.norm(self.encoder(tokens))[:, 0])
        return out


def _encoder_layer(dim: int, heads: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        dim, heads, dim_feedforward=4 * dim, dropout=0.0, activation=_gelu, batch_first=True, norm_first=True
    )


def _gelu(x: Tensor) -> Tensor:
    # A function of our own keeps torch off its fused inference path, which reads linear1.weight and linear2.weight
    # itself and would pass by a layer put in their place.
    return F.gelu(x)
