"""Activations with a mask: units and channels that are switched off."""

from torch import Tensor, nn


class Masked(nn.Module):
    """An activation times a mask of its units, m · f(x): what is masked is zero, whatever the input.

    Args:
        activation: f, a function of each element.
        mask: m, zeros and ones, one per unit or channel.
        dim: Where the units are: 1 for channels of images, -1 for features.

    Example:
        >>> import torch
        >>> Masked(nn.ReLU(), torch.tensor([1.0, 0.0, 1.0]))(torch.tensor([[-1.0, 2.0, 3.0]]))
        tensor([[0., 0., 3.]])
    """

    mask: Tensor

    def __init__(self, activation: nn.Module, mask: Tensor, dim: int = -1) -> None:
        super().__init__()
        self.activation, self.dim = activation, dim
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        shape = [1] * x.dim()
        shape[self.dim] = -1
        y: Tensor = self.activation(x)
        return y * self.mask.view(shape).to(y.dtype)

    def extra_repr(self) -> str:
        return f"{int(self.mask.detach().sum())} of {len(self.mask)} on, dim={self.dim}"
