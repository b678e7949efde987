"""The losses of a training, step by step, as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["LossCurves"]

WAITING = 100  # losses that are read together: to read one makes a GPU wait, and tensors that stay cost the collector


class LossCurves:
    """Mean loss and mean negative log-likelihood of some members at each step.

    Example:
        >>> curves = LossCurves(members=2)
        >>> curves.add([{"loss": torch.tensor(5.0), "nll": torch.tensor(4.0)}])  # of both members together
        >>> curves.losses, curves.nlls
        ([2.5], [2.0])
    """

    def __init__(self, members: int) -> None:
        self.members = members
        self._read: list[list[float]] = []
        self._waiting: list[Tensor] = []
        self._per_step = 2

    def add(self, values: Sequence[dict[str, Tensor]]) -> None:
        """The losses of a step: one dictionary for each training of one or more members."""
        for value in values:
            self._waiting += value["loss"], value["nll"]
        self._per_step = 2 * len(values)
        if len(self._waiting) >= WAITING:
            self._read_all()

    @property
    def losses(self) -> list[float]:
        """Those of all steps so far."""
        return [loss for loss, _ in self._read_all()]

    @property
    def nlls(self) -> list[float]:
        """The part of the losses that depends on the rows."""
        return [nll for _, nll in self._read_all()]

    def _read_all(self) -> list[list[float]]:
        if self._waiting:
            sums = torch.stack(self._waiting).view(-1, self._per_step // 2, 2).sum(1)
            self._read += (sums / self.members).tolist()
            self._waiting = []
        return self._read
