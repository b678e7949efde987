"""Passes of drawn networks that form nothing that is not active: one structure, and values for each draw.

A draw needs no network of its own. The layers of a twin of the network know the positions of its active entries, and
for a pass they hold the values of one draw or of several, over which ``torch.vmap`` maps all but the sparse layers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch

from gossamer.layers import GaussianWeight, SparseModule, SparseWeight, replica
from gossamer.layers.fixed import FixedWeight
from gossamer.layers.structure import Identity
from gossamer.posterior.draw import unwrapped
from gossamer.types import answer, identity

# Numbers in the largest output of a layer, of all draws and examples: with more, outputs leave the caches.
MOST_AT_ONCE = 2**19

NOTHING = torch.empty(0)
Source = tuple[Callable[..., object], Callable[[Tensor], Tensor]]

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
        sources = [_source(weight) for weight in self.weights]
        for part in self._parts(n, examples):
            count = part.stop - part.start
            self.hold(self._sampled(sources, count, generator), count)
            yield self, [1] * count

    def given(self, values: list[Tensor], examples: int) -> Iterator[tuple[nn.Module, list[int]]]:
        """This module with some of these values, ``(draws, n_active)`` of each weight, until all had their turn."""
        for part in self._parts(len(values[0]), examples):
            yield self.hold([rows[part] for rows in values], part.stop - part.start), [1] * (part.stop - part.start)
        self.hold([])

    def sampled(self, n: int, generator: torch.Generator | None = None) -> list[Tensor]:
        """``n`` draws, ``(n, n_active)`` of each weight."""
        self._check()
        return self._sampled([_source(weight) for weight in self.weights], n, generator)

    def _sampled(self, sources: list[Source], n: int, generator: torch.Generator | None) -> list[Tensor]:
        tables = [weight.mean.detach().new_empty(n, weight.support.n_active) for weight in self.weights]
        for rows in zip(*(table.unbind(0) for table in tables), strict=True):  # draw by draw, as networks are drawn
            for (fill, _), row in zip(sources, rows, strict=True):
                fill(row, generator)
        return [finish(table) for (_, finish), table in zip(sources, tables, strict=True)]

    def _parts(self, n: int, examples: int) -> Iterator[slice]:
        """Draws to compute together. The first is always alone, so that the same call gives the same bits."""
        self.largest, start = 0.0, 0
        while start < n:
            stop = min(n, start + self._together(examples))
            yield slice(start, stop)
            start = stop

    def at_mean(self) -> nn.Module:
        """This module with the means."""
        self._check()
        return self.hold([weight.expected().detach().unsqueeze(0) for weight in self.weights])

    def hold(self, values: list[Tensor], count: int = 1) -> nn.Module:
        """This module with these values, ``(draws, n_active)`` of each weight; without any it holds none."""
        self.values, self.count = values, count
        self.rows: list[tuple[Tensor, ...]] = list(zip(*(rows.unbind(0) for rows in values), strict=True))
        for i, fixed in enumerate(self.fixed):
            fixed.hold(self.rows[0][i] if values else NOTHING)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of all draws, ``(draws, batch, …)``."""
        if self.count == 1 or not self.together:
            return self._one_by_one(args, kwargs)
        try:
            return _mapped(partial(self._pass, args=args, kwargs=kwargs), self.values)
        except Exception as error:  # of any kind: what the network computes with may refuse mapped tensors
            self.together = False
            alone = self._one_by_one(args, kwargs)  # in which errors of the network itself show up
            logging.getLogger("gossamer").info("draws are computed one by one, as %s", error)
            return alone

    def _one_by_one(self, args: Any, kwargs: Any) -> Any:
        outputs = [self._pass(rows, args, kwargs) for rows in self.rows or [()]]
        if not all(isinstance(output, Tensor) for output in outputs):
            return outputs[0]
        return torch.stack(outputs) if len(outputs) > 1 else outputs[0].unsqueeze(0)

    def _pass(self, values: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        for fixed, row in zip(self.fixed, values, strict=True):
            if fixed.mean is not row:
                fixed.hold(row)
        output = answer(self.network(*args, **kwargs))
        if not (self.largest or torch.compiler.is_exporting()):
            examples = max(1, len(next(iter((*args, *kwargs.values())))))
            self.largest = max((fixed.n_outputs for fixed in self.fixed), default=0) / examples
        return output

    def _together(self, examples: int) -> int:
        """How many draws to compute together: one until it is known how large the outputs of layers are."""
        if torch.compiler.is_exporting() or not (self.together and self.largest):
            return 1
        return max(1, int(MOST_AT_ONCE / (self.largest * max(1, examples))))

    def _check(self) -> None:
        for weight in self.weights:
            weight.support.check_average()


def _mapped(run: Callable[..., Any], values: list[Tensor]) -> Any:
    """The outputs for each draw; an error where an operation knows no batches, which torch would take one by one."""
    before = _functorch._is_vmap_fallback_enabled()  # type: ignore[attr-defined]
    _functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
    try:
        return torch.vmap(run, randomness="different")(values)
    finally:
        _functorch._set_vmap_fallback_enabled(before)  # type: ignore[attr-defined]


def _source(weight: SparseWeight) -> Source:
    """What fills the row of a draw, one draw after the other, and what then makes values of all rows at once."""
    std, mean = weight.std, weight.mean.detach()
    if std is None or type(weight).sample is not GaussianWeight.sample:
        return lambda row, generator: row.copy_(weight.sample(generator, std)), identity
    own = std.detach()

    def fill(row: Tensor, generator: torch.Generator | None) -> None:
        if generator is None or generator.device == row.device:
            row.normal_(generator=generator)
        else:
            row.copy_(torch.randn(row.shape, generator=generator, device=generator.device, dtype=row.dtype))

    return fill, lambda noise: torch.addcmul(mean, own, noise)
