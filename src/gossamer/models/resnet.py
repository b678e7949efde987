"""Residual networks for 32 x 32 images.

ResNet-18 with a 3 x 3 stem of stride 1 and no max-pooling (He et al., 2016), and wide residual networks with
pre-activation blocks (Zagoruyko and Komodakis, 2016).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torch import Tensor, nn

from gossamer.models.small import require_positive


def resnet18(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Four stages of two basic blocks, 64 to 512 channels: 11 164 352 weights for ten classes, without BN and bias.

    >>> import torch
    >>> resnet18(num_classes=10).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_positive(num_classes=num_classes, in_channels=in_channels)
    parts: list[tuple[str, nn.Module]] = [
        ("stem", nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)),
        ("norm", nn.BatchNorm2d(64)),
        ("relu", nn.ReLU()),
    ]
    parts += _stages(BasicBlock, 64, (64, 128, 256, 512), 2)
    return _with_head(parts, 512, num_classes)


def wide_resnet28_10(num_classes: int = 10, in_channels: int = 3, dropout: float = 0.0) -> nn.Sequential:
    """WRN-28-10, 36.5 million parameters.

    >>> import torch
    >>> with torch.device("meta"):
    ...     model = wide_resnet28_10()
    >>> sum(p.numel() for p in model.parameters())
    36479194
    """
    return wide_resnet(28, 10, num_classes=num_classes, in_channels=in_channels, dropout=dropout)


def wide_resnet(
    depth: int, width: int, num_classes: int = 10, in_channels: int = 3, dropout: float = 0.0
) -> nn.Sequential:
    """WRN-``depth``-``width``: three stages of ``(depth - 4) / 6`` blocks of 16, 32 and 64 times ``width`` channels.

    >>> import torch
    >>> wide_resnet(10, 1).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    require_positive(width=width, num_classes=num_classes, in_channels=in_channels)
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth must be 6 n + 4 with n at least 1 (10, 16, 22, 28, ...), not {depth}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
    parts: list[tuple[str, nn.Module]] = [("stem", nn.Conv2d(in_channels, 16, 3, padding=1, bias=False))]
    block, widths = partial(WideBlock, dropout=dropout), (16 * width, 32 * width, 64 * width)
    parts += _stages(block, 16, widths, (depth - 4) // 6)
    parts += [("norm", nn.BatchNorm2d(widths[-1])), ("relu", nn.ReLU())]
    return _with_head(parts, widths[-1], num_classes)


def _stages(
    block: Callable[..., nn.Module], n_in: int, widths: Sequence[int], n_blocks: int
) -> Iterator[tuple[str, nn.Module]]:
    """Stages of ``n_blocks`` blocks each; all but the first halve the image."""
    for i, n_out in enumerate(widths, 1):
        first = block(n_in, n_out, stride=1 if i == 1 else 2)
        yield f"stage{i}", nn.Sequential(first, *(block(n_out, n_out) for _ in range(n_blocks - 1)))
        n_in = n_out


def _with_head(parts: list[tuple[str, nn.Module]], n_in: int, num_classes: int) -> nn.Sequential:
    head = [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("head", nn.Linear(n_in, num_classes))]
    model = nn.Sequential(OrderedDict([*parts, *head]))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class BasicBlock(nn.Module):
    """``relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))``, with a 1 x 1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, height, width) -> (batch, out_channels, height / stride, width / stride)``."""
        out: Tensor = self.relu(self.shortcut(x) + self.residual(x))
        return out


class WideBlock(nn.Module):
    """``shortcut + conv(dropout(relu(bn(conv(a)))))`` with ``a = relu(bn(x))``.

    The shortcut is ``x`` itself or, where the shape changes, a 1 x 1 convolution of ``a``.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU())
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        )
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, height, width) -> (batch, out_channels, height / stride, width / stride)``."""
        activated = self.activation(x)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        out: Tensor = shortcut + self.residual(activated)
        return out
