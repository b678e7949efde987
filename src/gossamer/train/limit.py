"""How high a learning rate the loss of a training bears, where its method has one rate for all weights.

A step of SGD or of a sampler is as long as the gradient, and the loss is in nats: that of numbers with noise σ is 1/σ²
times as steep as their squared error, and a thousand correlated inputs make it steeper still. Default rates were chosen
on images, whose cross-entropy is never steep. Gradient descent converges for rates below half the inverse of the local
Lipschitz constant of the gradient, which the gradients at two points tell (Malitsky and Mishchenko, ICML 2020, eq. 5):

    l ≤ ½ ‖w' - w‖ / ‖∇L(w') - ∇L(w)‖

Here w' goes from w along the gradient, and then along the differences themselves: a power iteration, after which the
quotient is ½/λ with the largest curvature λ.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.distributed import OwnNoise, average_over_ranks
from gossamer.layers import sparse_weights
from gossamer.sparsity.gradients import buffers_kept

__all__ = ["RateLimit"]

ROUNDS = 4  # λ is then within a quarter of that after eight, on digits, sun1 and small tables
EARLY, OFTEN, SELDOM = 100, 10, 100  # a sparse network becomes ten times as steep in its first dozens of steps
REACH = 1e-3  # ‖w' - w‖ over ‖w‖: far above the rounding of a gradient, and still one slope of most units


@dataclass
class RateLimit:
    """The rates of a training as its loss bears them: a share of its method's, and none above a highest one.

    The share follows from the first look, so that a schedule keeps its shape. Later looks, at losses that have become
    steeper, only bring the highest rate down. So the step size of a sampler settles, and never depends on where it is:
    what it samples stays the same.

    Example:
        >>> limit, layer = RateLimit(), nn.Linear(1, 1, bias=False)
        >>> limit.look(layer, lambda: 4 * layer.weight.square().sum(), highest=0.5)
        >>> round(limit.lowered(0.5), 4), round(limit.lowered(0.25), 5)
        (0.0625, 0.03125)
    """

    share: float = 1.0
    most: float = math.inf

    def lowered(self, rate: float) -> float:
        """The rate instead of one of the method's."""
        return min(self.share * rate, self.most)

    def look(self, model: nn.Module, loss: Callable[[], Tensor], highest: float = 0.0) -> None:
        """Lower the rates to what a loss bears; at the first look ``highest`` is the method's highest rate."""
        with buffers_kept(model), _plainly(model):
            own = curvature_of(loss, model.parameters())
        device = next(model.parameters()).device
        curvature = float(average_over_ranks(torch.tensor([own], device=device)))  # shares of a batch may differ
        if not 0 < curvature < math.inf:  # a network that is dead, or a training that has diverged, which is told later
            return
        self.most = min(self.most, 0.5 / curvature)
        if highest > 0:
            self.share = min(1.0, self.most / highest)


def is_due(step: int) -> bool:
    """Whether the limit looks at the loss before a step, counted from 1: each look costs as much as five steps."""
    return (step - 1) % (OFTEN if step <= EARLY else SELDOM) == 0


def curvature_of(loss: Callable[[], Tensor], parameters: Iterable[nn.Parameter]) -> float:
    """λ, about the largest curvature of a loss in its parameters, which stay as they are.

    Every evaluation has the same noise, and the random state is left as it was.
    """
    trained: list[Tensor] = [parameter for parameter in parameters if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in trained]
    first = direction = _gradients(loss, trained)
    length, curvature = REACH * float(torch.nn.utils.get_total_norm(before)), 0.0
    for _ in range(ROUNDS):
        size = float(torch.nn.utils.get_total_norm(direction))
        if not size * length > 0:
            break
        try:
            with torch.no_grad():
                torch._foreach_add_(trained, torch._foreach_mul(direction, length / size))
            direction = list(torch._foreach_sub(_gradients(loss, trained), first))
        finally:
            with torch.no_grad():
                torch._foreach_copy_(trained, before)
        curvature = float(torch.nn.utils.get_total_norm(direction)) / length
    return curvature


def _gradients(loss: Callable[[], Tensor], parameters: list[Tensor]) -> list[Tensor]:
    with OwnNoise(0, parameters[0].device):
        grads = torch.autograd.grad(loss(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, grads, strict=True)]


@contextmanager
def _plainly(model: nn.Module) -> Iterator[None]:
    """Passes compute with the parameters themselves, not with copies, and no rule collects their gradients."""
    weights = list(sparse_weights(model).values())
    held = [(weight.probe, weight.sink, weight.dense_copy) for weight in weights]
    try:
        for weight in weights:
            weight.probe = weight.sink = weight.dense_copy = None
        yield
    finally:
        for weight, (probe, sink, copy) in zip(weights, held, strict=True):
            weight.probe, weight.sink, weight.dense_copy = probe, sink, copy
