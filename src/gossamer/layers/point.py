"""A weight whose active entries are plain numbers: deterministic sparse training (RigL and its relatives)."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer import kernels
from gossamer.kernels import WeightMap
from gossamer.layers.weight import RegrowStd, SparseWeight, without_autocast

__all__ = ["PointWeight"]


class PointWeight(SparseWeight):
    """Active entries without a distribution; ``mean`` is the weight itself.

    Example:
        >>> from gossamer.layers.support import Support
        >>> weight = PointWeight(Support((2, 2), torch.tensor([0, 3])), torch.tensor([1.0, 2.0]))
        >>> weight.dense_mean().tolist(), weight.std
        ([[1.0, 0.0], [0.0, 2.0]], None)
    """

    @property
    def std(self) -> None:
        """No distribution, no σ."""
        return None

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The map applied to ``x`` and this weight."""
        x, plain = without_autocast(x)
        with plain:
            if self.working is not None:
                return self.working.multiply(x, bias, weight_map)
            y = kernels.product(x, self.mean, bias, self.support.position, self.support.shape, weight_map)
            return self.watched(y, x, weight_map)

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        """The weight: there is nothing to draw."""
        return self.mean

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """A new entry starts at zero."""
        return {"mean": self.mean.detach().new_zeros(())}
