"""Passes of drawn networks that form nothing that is not active: one structure, and values for each draw.

A draw needs no network of its own. The layers of a twin of the network know the positions of its active entries, and
for a pass they hold the values of one draw or of several, over which ``torch.vmap`` maps all but the sparse layers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.layers import SparseModule, SparseWeight, replica
from gossamer.layers.fixed import FixedWeight
from gossamer.layers.structure import Identity
from gossamer.posterior.draw import unwrapped

# Numbers in the largest output of a layer. With more, outputs leave the caches and a draw at a time is as fast.
MOST_AT_ONCE = 2**20

_kept: weakref.WeakKeyDictionary[nn.Module, tuple[Identity, DrawnPasses]] = weakref.WeakKeyDictionary()
_one_at_a_time = threading.Lock()


@contextlib.contextmanager
def drawn_passes(model: nn.Module) -> Iterator[DrawnPasses]:
    """The passes of a network; of one that was asked for before and has not changed since, the same, if nobody uses it.

    They share its tensors, so they follow what training does to these.
    """
    model = unwrapped(model)
    now = Identity(model)
    with _one_at_a_time:
        before, passes = _kept.pop(model, (None, None))
    if passes is None or before != now:
        passes = DrawnPasses(model)
    try:
        yield passes
    finally:
        passes.hold([])
        with _one_at_a_time:
            _kept[model] = now, passes


class DrawnPasses(nn.Module):
    """A network in evaluation mode with the structure of ``model``, and with draws in place of its weights.

    Args:
        model: A converted network.
        share: Share its other parameters and its buffers.

    Example:
        >>> import gossamer
        >>> passes = DrawnPasses(gossamer.bayesianize(nn.Linear(10, 5), density=0.2))
        >>> [part(torch.randn(3, 10)).shape for part, _ in passes.draws(7, examples=3)]
        [torch.Size([1, 3, 5]), torch.Size([6, 3, 5])]
    """

    def __init__(self, model: nn.Module, *, share: bool = True) -> None:
        super().__init__()
        self.weights = [module for module in model.modules() if isinstance(module, SparseWeight)]
        self.fixed = [FixedWeight(weight) for weight in self.weights]
        stand_ins = dict(zip(map(id, self.weights), self.fixed, strict=True))
        self.network = replica(model, stand_ins, share=share).eval()
        sparse = [module for module in self.network.modules() if isinstance(module, SparseModule)]
        self.together = bool(self.fixed) and all(module.takes_draws for module in sparse)
        self.values: list[Tensor] = []
        self.largest = 0.0  # numbers in the largest output of a layer for one example, once a pass has shown it

    def draws(
        self, n: int, examples: int, generator: torch.Generator | None = None
    ) -> Iterator[tuple[nn.Module, list[int]]]:
        """This module with the next draws, again and again, and that each of these counts once."""
        self._check()
        self.largest = 0.0  # the first draw is always alone, so that the same call gives the same bits
        stds = [None if weight.std is None else weight.std.detach() for weight in self.weights]
        pairs = list(zip(self.weights, stds, strict=True))
        while n:
            count = min(n, self._most(examples))
            drawn = [[weight.sample(generator, std).detach() for weight, std in pairs] for _ in range(count)]
            self.hold([torch.stack(rows) for rows in zip(*drawn, strict=True)], count)
            yield self, [1] * count
            n -= count

    def at_mean(self) -> nn.Module:
        """This module with the means."""
        self._check()
        return self.hold([weight.expected().detach().unsqueeze(0) for weight in self.weights])

    def hold(self, values: list[Tensor], count: int = 1) -> nn.Module:
        """This module with these values, ``(draws, n_active)`` of each weight; without any it holds none."""
        self.values, self.count = values, count
        for i, fixed in enumerate(self.fixed):
            fixed.hold(values[i][0] if values else torch.empty(0))
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of all draws, ``(draws, batch, …)``."""
        if self.count > 1 and self.together:
            try:
                return torch.vmap(lambda rows: self._pass(rows, args, kwargs), randomness="different")(self.values)
            except Exception as error:  # of any kind: what the network computes with may refuse mapped tensors
                self.together = False
                outputs = self._one_by_one(args, kwargs)  # in which errors of the network itself show up
                logging.getLogger("gossamer").info("draws are computed one by one, as %s", error)
                return outputs
        return self._one_by_one(args, kwargs)

    def _one_by_one(self, args: Any, kwargs: Any) -> Any:
        outputs = [self._pass([rows[i] for rows in self.values], args, kwargs) for i in range(self.count)]
        if not all(isinstance(output, Tensor) for output in outputs):
            return outputs[0]
        return torch.stack(outputs) if len(outputs) > 1 else outputs[0].unsqueeze(0)

    def _pass(self, values: list[Tensor], args: Any, kwargs: Any) -> Any:
        for fixed, row in zip(self.fixed, values, strict=True):
            if fixed.mean is not row:
                fixed.hold(row)
        output = self.network(*args, **kwargs)
        if not self.largest:
            examples = max(1, len(next(iter((*args, *kwargs.values())))))
            self.largest = max((fixed.n_outputs for fixed in self.fixed), default=0) / examples
        return output

    def _most(self, examples: int) -> int:
        """How many draws to compute together: one until it is known how large the outputs of layers are."""
        if not (self.together and self.largest):
            return 1
        return max(1, int(MOST_AT_ONCE / (self.largest * max(1, examples))))

    def _check(self) -> None:
        for weight in self.weights:
            weight.support.check_average()
