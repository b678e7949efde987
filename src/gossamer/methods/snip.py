"""SNIP (Lee, Ajanthan and Torr, ICLR 2019): the network is pruned once, before training, by one batch.

The sensitivity of the loss to a connection is |g · w|, with the gradient g at the initial weights w. Those of the whole
network with the largest stay; they are trained by SGD, and nothing moves any more.

One departure: what stays of a layer is scaled to the norm that the layer had, so that signals keep their size, as in
every fresh network of :func:`gossamer.sparsify`. Without it the first hundreds of steps at 5 % hardly learn.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.layers import SparseWeight, sparse_weights
from gossamer.methods._parts import all_active, by_sgd, with_options_of
from gossamer.methods.sgd import sgd
from gossamer.sparsity.gradients import buffers_kept
from gossamer.sparsity.moves import remove
from gossamer.sparsity.selection import Segments
from gossamer.types import Method, Split, Task

__all__ = ["snip"]


@with_options_of(sgd, "optimizer")
def snip(task: Task, steps: int, *, density: float = 0.05, prune_batch: int = 128, **training: Any) -> Method:
    """SNIP: the weights to which the loss of a first batch is most sensitive, trained by SGD.

    Args:
        density: Share of active weights.
        prune_batch: Training examples, drawn at random, that decide which weights stay.
    """

    def prepare(model: nn.Module) -> nn.Module:
        model = all_active(model)
        rows = torch.randperm(len(task.train[1]))[:prune_batch]
        keep_sensitive(model, task, (task.train[0][rows], task.train[1][rows]), density)
        return model

    return by_sgd(steps, **training, prepare=prepare)


def keep_sensitive(model: nn.Module, task: Task, batch: Split, density: float) -> None:
    """Keep ``density`` of the weights, those with the largest |g · w| and at least one per layer, with its norm."""
    weights = list(sparse_weights(model).values())
    for weight in weights:  # with positions stored from the start, the state of another choice can be loaded
        weight.support.explicit(weight.mean.device)
    scores = sensitivities(model, weights, task, batch)
    entries = Segments([len(score) for score in scores], scores[0].device)
    kept = entries.top_mask_of_all(torch.cat(scores), round(density * entries.total))
    for weight, mask in zip(weights, kept.split(entries.lengths), strict=True):
        before = weight.mean.detach().norm()
        remove(weight, mask)
        after = weight.mean.detach().norm()
        weight.mean.data *= torch.where(after > 0, before / after, 1.0)


def sensitivities(model: nn.Module, weights: list[SparseWeight], task: Task, batch: Split) -> list[Tensor]:
    """|g · w| of the active entries of each weight, for the mean loss of a batch as the task stores it."""
    x, y = batch
    with buffers_kept(model):
        loss = task.likelihood.loss(model.train()(task.transform(task.augment(x))), y)
        grads = torch.autograd.grad(loss, [weight.mean for weight in weights])
    return [(grad * weight.mean.detach()).abs() for grad, weight in zip(grads, weights, strict=True)]
