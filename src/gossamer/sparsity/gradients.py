"""Dense gradients of sparse weights: asked for before a backward pass, gathered after it, the same on every rank.

A weight with one gradient per step needs no dense tensor: a :class:`Shortlist` looks through the gradient a few rows at
a time. It finds the set of a top-k of the whole, ties by position included, and keeps only the best entries so far and
the scores of the active ones, since it is not known yet which of those will be removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gossamer.distributed import on_any_rank
from gossamer.kernels import WeightMap
from gossamer.layers import SparseWeight
from gossamer.layers.passes import GradientSum
from gossamer.sparsity.selection import Best, works_together

Weights = Mapping[str, SparseWeight]
Grads = dict[str, Tensor]

WHOLE = 1 << 27  # dense entries of the gradients that a GPU holds together: half a gigabyte in float32
LEAST = 1 << 17  # entries of the gradient that are formed at a time: with fewer, the calls cost more than the memory
SHARE = 64  # of a large weight, this part of its gradient is formed at a time


class GradientCollector:
    """Gathers the gradients of the backward passes before an update: in pieces where a weight has one per step."""

    def __init__(self, weights: Weights, all_weights: Iterable[SparseWeight], *, at_mean: bool) -> None:
        self.weights, self.all_weights, self.at_mean = weights, list(all_weights), at_mean
        self.single: set[str] = set()  # weights that were seen to have one gradient per step
        self.shortlists: dict[str, Shortlist] = {}
        self.watched: dict[str, Passes] = {}
        self.follows = True  # the single passes, as long as a loop may clear gradients without a word
        self.armed: list[Passes] = []
        self._gathered: Grads | None = None  # of a step that the optimizer has made

    def watch(self, weights: Weights) -> None:
        """Find out in the coming step which weights have one gradient: theirs can be looked through in pieces."""
        for name, weight in weights.items():
            if weight.dense_copy is None:
                weight.sink = self.watched[name] = Passes(weight, self.follows)
            else:
                self.single.discard(name)

    def end_watch(self) -> None:
        """Note what was seen since :meth:`watch`."""
        for name, passes in self.watched.items():
            (self.single.add if passes.single else self.single.discard)(name)
            self.weights[name].sink = None
        self.watched = {}

    def arm(self, weights: Weights, rate: float, *, in_pieces: bool) -> None:
        """Ask the coming backward passes for dense gradients; they add up, as ``.grad`` does."""
        self._train_at_mean(self.at_mean)
        self.shortlists = {
            name: Shortlist(weight, int(rate * weight.support.n_active), self.follows)
            for name, weight in weights.items()
            if in_pieces and name in self.single
        }
        for name, weight in weights.items():
            weight.arm(self.shortlists.get(name))
            if weight.dense_copy is None:  # otherwise its gradient is always that of the last pass
                passes = self.shortlists.get(name) or Passes(weight, self.follows)
                passes.attach()
                self.armed.append(passes)

    def zero_grad(self) -> None:
        """Forget the passes so far: their gradients are cleared, here and before every step from now on."""
        self.follows = False
        for passes in (*self.armed, *self.watched.values()):
            passes.clear()

    def optimizer_stepped(self) -> None:
        """Take the gradient that the optimizer has just used; passes from here to the update are not part of it."""
        if any(passes.has_gathered for passes in self.armed):
            self._gathered = self.disarm()

    def disarm(self) -> Grads:
        """The dense gradients of the weights that took part, apart from those on shortlists."""
        gathered, self._gathered = self._gathered, None
        if gathered is not None:
            return gathered
        self._train_at_mean(False)
        for passes in self.armed:
            passes.detach()
        self.armed = []
        return collect(self.weights)

    def take_shortlists(self) -> dict[str, Shortlist]:
        """The shortlists of the weights that took part."""
        taken, self.shortlists = {name: one for name, one in self.shortlists.items() if one.any}, {}
        return taken

    def are_sums(self, shortlists: Mapping[str, Shortlist], grads: Grads, rate: float) -> bool:
        """Whether some shortlist is not enough to tell the best entries; the next gradient of its weight is whole."""
        short = {
            name
            for name, shortlist in shortlists.items()
            if not shortlist.single or name in grads or int(rate * shortlist.support.n_active) > shortlist.n_wanted
        }
        self.single -= short
        return bool(short)

    def reset(self, single: Iterable[str]) -> None:
        """Forget what was asked for and gathered; ``single`` as in a checkpoint."""
        self.end_watch()
        self.single = set(single)
        self.disarm()

    def _train_at_mean(self, at_mean: bool) -> None:
        for weight in self.all_weights:
            weight.trains_at_mean = at_mean


def collect(weights: Weights) -> Grads:
    """The dense gradients of the weights that took part in a backward pass; nothing else holds them any more."""
    grads: Grads = {}
    for name, weight in weights.items():
        probe, grad = weight.probe, weight.disarm()
        if probe is not None:
            probe.grad = None  # a loss that is kept keeps its graph, and with it the probe
        if grad is not None:
            grads[name] = grad
    return grads


def mean_absolute(model: nn.Module, weights: Weights, loss: Callable[[], Tensor], n_draws: int) -> Grads:
    """The mean of |gradient| over ``n_draws`` evaluations of the loss (SSVI, third addition criterion).

    Neither ``.grad`` nor the buffers change: these passes are not training, and BatchNorm forgets them.
    """
    total: Grads = {}
    if not weights:
        return total
    with torch.enable_grad(), buffers_kept(model):
        for _ in range(n_draws):
            for weight in weights.values():
                weight.arm()
            probes = [weight.probe for weight in weights.values() if weight.probe is not None]
            grads = torch.autograd.grad(loss(), probes, allow_unused=True)
            for name, grad in zip(weights, grads, strict=True):
                if grad is not None:
                    total[name] = total.get(name, 0) + grad.abs() / n_draws
    collect(weights)
    return total


def complete(grads: Grads, weights: Weights) -> Grads:
    """A weight that only some ranks used counts as used, with a gradient of zero on the others."""
    used = on_any_rank([name in grads for name in weights], next((w.mean.device for w in weights.values()), None))
    for (name, weight), is_used in zip(weights.items(), used, strict=True):
        if is_used and name not in grads:
            grads[name] = weight.mean.detach().new_zeros(weight.support.shape)
    return grads


def fit_whole(weights: Weights) -> bool:
    """Whether these weights are on a GPU, and their dense gradients few enough to be there together."""
    on_gpu = bool(weights) and all(works_together(weight.mean.device) for weight in weights.values())
    return on_gpu and sum(weight.support.size for weight in weights.values()) <= WHOLE


class Passes:
    """Follows the backward passes whose sum ``weight.mean.grad`` holds, so that the dense gradient is that of the same.

    A pass that does not reach ``mean`` (``torch.autograd.grad`` of the input) does not count. As a sink this only
    counts how often each row of the weight took part. With ``follows`` false, whoever clears ``mean.grad`` calls
    :meth:`clear` as well.
    """

    def __init__(self, weight: SparseWeight, follows: bool = True) -> None:
        self.weight, self.shape = weight, weight.support.shape
        self.count = torch.zeros(self.shape[0], dtype=torch.uint8)
        self._sum = GradientSum(weight.mean, self.clear) if follows else None
        self._probe: Tensor | None = None
        self._is_over = False

    def attach(self) -> None:
        """Follow the passes that reach the mean or the probe, also where no sink is called."""
        self._probe = self.weight.probe
        if self._sum is not None:
            self._sum.attach(self._probe)

    def detach(self) -> None:
        """Follow no further pass."""
        if self._sum is not None:
            self._sum.detach()
        self._is_over = True

    def clear(self) -> None:
        """Drop what earlier passes left behind."""
        self.count.zero_()
        if self._probe is not None:
            self._probe.grad = None

    def __call__(self, grad: Tensor, x: Tensor, weight_map: WeightMap) -> bool:
        """Count the rows that take part in this product; whether it counts at all."""
        if self._is_over or not self._reaches_mean():
            return False
        if self._sum is not None:
            self._sum.entered(grad)
        for low, high in weight_map.row_ranges(self.shape, self.shape[0]):
            self.count[low:high].add_(1).clamp_(max=2)
        return True

    @property
    def any(self) -> bool:
        """Whether there was a gradient."""
        return bool(self.count.any())

    @property
    def single(self) -> bool:
        """Whether there was one, and no row had a second: no accumulation, no weight that a network uses twice."""
        return int(self.count.max()) == 1

    @property
    def has_gathered(self) -> bool:
        """Whether there is a gradient, here or in the probe that was there at :meth:`attach`."""
        probe = self._probe
        return self.any or (probe is not None and self.weight.probe is probe and probe.grad is not None)

    def _reaches_mean(self) -> bool:
        """Whether the pass under way adds to ``mean.grad``."""
        if torch._C._current_graph_task_id() < 0:
            return True
        if not self.weight.mean.requires_grad:  # frozen since
            return False
        node = torch.autograd.graph.get_gradient_edge(self.weight.mean).node
        try:
            return bool(torch._C._will_engine_execute_node(node))
        except RuntimeError:  # autograd.grad of the mean itself, for a loop that sets .grad by hand
            return True


class Shortlist(Passes):
    """A sink that keeps the ``n_wanted`` entries of largest |gradient|, if no row has a second gradient."""

    def __init__(self, weight: SparseWeight, n_wanted: int, follows: bool = True) -> None:
        super().__init__(weight, follows)
        self.found = Best(weight.support, n_wanted)
        self.support, self.n_wanted = weight.support, n_wanted
        self.row_size = math.prod(self.shape[1:])

    def clear(self) -> None:
        """Drop what earlier passes left behind."""
        super().clear()
        self.found.clear()

    @torch.no_grad()
    def __call__(self, grad: Tensor, x: Tensor, weight_map: WeightMap) -> bool:
        """Look through the dense gradient of one product, a few rows at a time."""
        if not super().__call__(grad, x, weight_map):
            return False
        if not self.single:  # the sum of two gradients cannot be told from the best entries of each
            return True
        n_rows = max(LEAST, self.support.size // SHARE) // self.row_size
        for rows in weight_map.row_ranges(self.shape, n_rows):
            part = weight_map.weight_gradient(grad, x, self.shape, rows).flatten().float()
            self.found.consider(rows[0] * self.row_size, part)
        return True

    def whole(self) -> Best:
        """The best entries, with those of rows that took no part in the loss: zeros are candidates like all others."""
        for row in (self.count == 0).nonzero().flatten().tolist():
            self.found.consider(row * self.row_size, self.found.active.new_zeros(self.row_size))
            self.count[row] = 1
        return self.found


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers as they were before, after passes that are not training: BatchNorm forgets them."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before:
                    buffer.copy_(before[name])
