"""A small vision transformer, normalized before each part (Dosovitskiy et al., 2021; Touvron et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gossamer.models.small import require_positive


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
