"""A multilayer perceptron with ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from gossamer.models.arguments import require_positive

__all__ = ["mlp"]


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
