"""Several networks of one shape side by side, each on data of its own: one product computes a layer of all of them.

A stack of linear layers has one sparse weight, in which each network has a block, so that the rules and the optimizers
that train one network train the stack, entry by entry, with the same code. Inputs that no network reads any more are
left out of the product and out of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.layers import PointWeight, SparseLayer, Support

__all__ = ["Stack", "StackedLinear", "stack"]


class StackedLinear(SparseLayer):
    """``y_r = x_r W_rᵀ + b_r`` for networks r = 1…R: ``(R, batch, columns) -> (R, batch, out)``.

    ``x`` holds the columns that ``read()`` names. One input may serve several networks: with ``(R / n, batch,
    columns)`` each row of it is read by n of them.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        n, (n_out, n_in) = len(layers), layers[0].weight.shape
        template = nn.Linear(n_in, n * n_out, device="meta")
        template.networks = n  # type: ignore[assignment]
        values = torch.cat([layer.weight.detach() for layer in layers])
        weight = PointWeight(Support((n * n_out, n_in)), values.flatten().clone())
        super().__init__(template, {"weight": weight})
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]).unsqueeze(1))
        self.n, self.n_in, self.n_out = n, n_in, n_out
        self._made: tuple[Tensor | None, int] = (None, -1)
        self._read = self._slot = torch.arange(n_in)

    def read(self) -> Tensor:
        """Columns of the input from which some network has an active weight, sorted."""
        position = self.support.position
        version = 0 if position is None else position._version
        if self._made[0] is not position or self._made[1] != version:
            self._made = (position, version)
            self._locate(position)
        return self._read

    def _locate(self, position: Tensor | None) -> None:
        if position is None:
            self._read = torch.arange(self.n_in, device=self.mean.device)
            return
        row, column = position.long() // self.n_in, position.long() % self.n_in
        self._read, place = column.unique(return_inverse=True)
        self._slot = row * len(self._read) + place

    def dense(self) -> Tensor:
        """The weights of the columns that are read, ``(R, out, columns)``."""
        columns = self.read()
        if self.support.position is None:
            return self.mean.view(self.n, self.n_out, self.n_in)
        flat = self.mean.new_zeros(self.n * self.n_out * len(columns))
        return flat.scatter(0, self._slot, self.mean).view(self.n, self.n_out, len(columns))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of every network."""
        weight, bias = self.dense(), self.bias
        assert bias is not None
        if len(x) == self.n:
            return torch.baddbmm(bias, x, weight.transpose(1, 2))
        shared = self.n // len(x)
        y = torch.bmm(x, weight.reshape(len(x), shared * self.n_out, -1).transpose(1, 2))
        # (inputs, batch, networks of each · out) -> (networks, batch, out)
        y = y.view(len(x), -1, shared, self.n_out).transpose(1, 2)
        return y.reshape(self.n, -1, self.n_out) + bias


class Stack(nn.Module):
    """Networks of linear layers with an activation between them, side by side.

    Example:
        >>> from gossamer.models import mlp
        >>> networks = [mlp(4, (3,), 2) for _ in range(5)]
        >>> x = torch.randn(5, 7, 4)
        >>> together = stack(networks)(x)
        >>> together.shape, torch.allclose(together[2], networks[2](x[2]), atol=1e-6)
        (torch.Size([5, 7, 2]), True)
    """

    def __init__(self, layers: Sequence[StackedLinear], activation: nn.Module) -> None:
        super().__init__()
        self.layers, self.activation = nn.ModuleList(layers), activation

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of every network, ``(R, batch, out)``, of the columns that the first layer reads."""
        for number, layer in enumerate(self.layers):
            x = layer(_read(self.activation(x), layer) if number else x)
        return x

    @property
    def first(self) -> StackedLinear:
        """The layer that reads the input."""
        layer = self.layers[0]
        assert isinstance(layer, StackedLinear)
        return layer

    @torch.no_grad()
    def selected(self) -> Tensor:
        """Which variables each network uses, ``(R, variables)``: those that a path of active weights leads on from."""
        layers: list[Any] = list(self.layers)
        reaches = torch.ones(layers[-1].n, layers[-1].n_out, dtype=torch.bool, device=layers[-1].mean.device)
        for layer in reversed(layers):
            active = layer.dense_mean().view(layer.n, layer.n_out, layer.n_in) != 0
            reaches = (active & reaches.unsqueeze(2)).any(1)
        return reaches

    @torch.no_grad()
    def take(self, networks: Tensor) -> Stack:
        """A stack of some of the networks."""
        return stack([self.network(int(number)) for number in networks])

    @torch.no_grad()
    def network(self, number: int) -> nn.Sequential:
        """One of the networks, plain."""
        parts: list[nn.Module] = []
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, StackedLinear)
            assert layer.bias is not None
            plain = nn.Linear(layer.n_in, layer.n_out)
            plain.weight.copy_(layer.dense_mean().view(layer.n, layer.n_out, layer.n_in)[number])
            plain.bias.copy_(layer.bias[number, 0])
            parts += [self.activation, plain] if at else [plain]
        return nn.Sequential(*parts)


def _read(x: Tensor, layer: nn.Module) -> Tensor:
    """The units that a hidden layer still reads, of all that the layer before it computes."""
    assert isinstance(layer, StackedLinear)
    return x if len(columns := layer.read()) == x.shape[2] else x[:, :, columns]


def stack(networks: Sequence[nn.Module]) -> Stack:
    """The networks side by side, each with the weights it has: linear layers, one kind of activation between them.

    Args:
        networks: Multilayer perceptrons of one shape, such as :func:`gossamer.models.mlp` builds.
    """
    linear = [[part for part in network.modules() if isinstance(part, nn.Linear)] for network in networks]
    shapes = {tuple(tuple(layer.weight.shape) for layer in layers) for layers in linear}
    others = [part for part in networks[0].modules() if not isinstance(part, nn.Linear | nn.Sequential | nn.Flatten)]
    if len(shapes) != 1 or len({type(part) for part in others}) > 1:
        raise ValueError("a stack takes networks of one shape: linear layers with one kind of activation between them")
    layers = [StackedLinear(same) for same in zip(*linear, strict=True)]
    return Stack(layers, others[0] if others else nn.Identity())
