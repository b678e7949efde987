"""Residual networks: ResNet-8, -18 and -34 and wide ones for 32 x 32 images, ResNet-50 for 224 x 224.

For small images the stem is a 3 x 3 convolution of stride 1 without max-pooling (He et al., 2016); wide networks have
pre-activation blocks (Zagoruyko and Komodakis, 2016).
"""

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
    return _basic(num_classes, in_channels, (64, 128, 256, 512), (2, 2, 2, 2))


def resnet34(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Four stages of 3, 4, 6 and 3 basic blocks, 64 to 512 channels.

    >>> sum(p.numel() for p in resnet34(num_classes=10).parameters())
    21282122
    """
    return _basic(num_classes, in_channels, (64, 128, 256, 512), (3, 4, 6, 3))


def resnet8(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Three stages of one basic block, 16 to 64 channels: all parts of a ResNet, for a few minutes of a CPU.

    >>> sum(p.numel() for p in resnet8(num_classes=10).parameters())
    78042
    """
    return _basic(num_classes, in_channels, (16, 32, 64), (1, 1, 1))


def resnet50(num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """Four stages of 3, 4, 6 and 3 bottlenecks behind a 7 x 7 stem and max-pooling, for images of ImageNet.

    >>> sum(p.numel() for p in resnet50(num_classes=1000).parameters())
    25557032
    """
    require_positive(num_classes=num_classes, in_channels=in_channels)
    parts = [*_stem(in_channels, 64, 7, stride=2), ("pooled", nn.MaxPool2d(3, stride=2, padding=1))]
    parts += _stages(Bottleneck, 64, (256, 512, 1024, 2048), (3, 4, 6, 3))
    return _with_head(parts, 2048, num_classes)


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
    parts += _stages(block, 16, widths, [(depth - 4) // 6] * 3)
    parts += [("norm", nn.BatchNorm2d(widths[-1])), ("relu", nn.ReLU())]
    return _with_head(parts, widths[-1], num_classes)


def _basic(num_classes: int, in_channels: int, widths: Sequence[int], n_blocks: Sequence[int]) -> nn.Sequential:
    require_positive(num_classes=num_classes, in_channels=in_channels)
    parts = [*_stem(in_channels, widths[0], 3), *_stages(BasicBlock, widths[0], widths, n_blocks)]
    return _with_head(parts, widths[-1], num_classes)


def _stem(n_in: int, n_out: int, kernel: int, stride: int = 1) -> list[tuple[str, nn.Module]]:
    return list(zip(("stem", "norm", "relu"), (*_normed(n_in, n_out, kernel, stride), nn.ReLU()), strict=True))


def _stages(
    block: Callable[..., nn.Module], n_in: int, widths: Sequence[int], n_blocks: Sequence[int]
) -> Iterator[tuple[str, nn.Module]]:
    """Stages of so many blocks each; all but the first halve the image."""
    for i, (n_out, n) in enumerate(zip(widths, n_blocks, strict=True), 1):
        first = block(n_in, n_out, stride=1 if i == 1 else 2)
        yield f"stage{i}", nn.Sequential(first, *(block(n_out, n_out) for _ in range(n - 1)))
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
        self.residual = self.path(in_channels, out_channels, stride)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(*_normed(in_channels, out_channels, 1, stride))
        self.relu = nn.ReLU()

    @staticmethod
    def path(n_in: int, n_out: int, stride: int) -> nn.Sequential:
        """Two 3 x 3 convolutions."""
        return nn.Sequential(*_normed(n_in, n_out, 3, stride), nn.ReLU(), *_normed(n_out, n_out, 3))

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, height, width) -> (batch, out_channels, height / stride, width / stride)``."""
        out: Tensor = self.relu(self.shortcut(x) + self.residual(x))
        return out


class Bottleneck(BasicBlock):
    """A basic block whose path narrows to a quarter of the channels for its 3 x 3 convolution, which has the stride."""

    @staticmethod
    def path(n_in: int, n_out: int, stride: int) -> nn.Sequential:
        """1 x 1, 3 x 3 and 1 x 1 convolutions."""
        n = n_out // 4
        return nn.Sequential(
            *_normed(n_in, n, 1), nn.ReLU(), *_normed(n, n, 3, stride), nn.ReLU(), *_normed(n, n_out, 1)
        )


def _normed(n_in: int, n_out: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(n_out)


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
