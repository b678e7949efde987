"""Plain torch networks, to be made Bayesian or used as they are.

>>> import torch
>>> mlp(4, hidden=(8,), out_features=3)(torch.zeros(2, 4)).shape
torch.Size([2, 3])
"""

import math
from collections.abc import Callable

from torch import nn

from gossamer._text.names import imported, unknown
from gossamer.models.resnet import resnet8, resnet18, resnet34, resnet50, wide_resnet, wide_resnet28_10
from gossamer.models.small import ConstantNoise, conv_net, mlp, pooled_conv_net, table, table_one_noise, vit_tiny

__all__ = [
    "ConstantNoise",
    "build",
    "conv_net",
    "find",
    "mlp",
    "names",
    "pooled_conv_net",
    "resnet8",
    "resnet18",
    "resnet34",
    "resnet50",
    "vit_tiny",
    "wide_resnet",
    "wide_resnet28_10",
]

# Shape of an input and number of outputs -> the network that fits them.
_BUILDERS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp": lambda shape, n: mlp(math.prod(shape), out_features=n),
    "table": lambda shape, n: table(math.prod(shape), n),
    "table_one_noise": lambda shape, n: table_one_noise(math.prod(shape), n),
    "conv_net": lambda shape, n: conv_net(n, _image(shape)[0]),
    "pooled_conv_net": lambda shape, n: pooled_conv_net(n, _image(shape)[0]),
    "resnet8": lambda shape, n: resnet8(n, _image(shape)[0]),
    "resnet18": lambda shape, n: resnet18(n, _image(shape)[0]),
    "resnet34": lambda shape, n: resnet34(n, _image(shape)[0]),
    "resnet50": lambda shape, n: resnet50(n, _image(shape)[0]),
    "wide_resnet28_10": lambda shape, n: wide_resnet28_10(n, _image(shape)[0]),
    "vit_tiny": lambda shape, n: vit_tiny(n, image_size=_image(shape)[1], in_channels=shape[0]),
}


def names() -> list[str]:
    """Names of the networks that :func:`build` knows.

    >>> names()
    ['mlp', 'table', 'table_one_noise', 'conv_net', 'pooled_conv_net', 'resnet8', ..., 'wide_resnet28_10', 'vit_tiny']
    """
    return list(_BUILDERS)


def find(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The function of (input shape, number of outputs) that builds a network; ``module:function`` names one of yours.

    >>> find("mlp")((1, 8, 8), 10)[1].in_features
    64
    """
    if ":" in name:
        return imported("model", name)
    if name not in _BUILDERS:
        raise ValueError(unknown("model", name, _BUILDERS))
    return _BUILDERS[name]


def build(name: str, input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    """The network called ``name`` for inputs of a shape and a number of outputs.

    >>> type(build("resnet18", (3, 32, 32), 100)).__name__
    'Sequential'
    """
    return find(name)(input_shape, n_outputs)


def _image(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 3:
        raise ValueError(f"this network reads images (channels, height, width), the data have shape {shape}: use mlp")
    return shape
