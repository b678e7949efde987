"""FSDP2 for networks with sparse weights: the dense rest is split between ranks, sparse weights are whole on each.

The active entries of a weight are moved as a whole, so that a :class:`gossamer.Subspace` refuses shards of them. They
are few; what fills the memory of a sparse network is what is left dense.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.distributed import average_over_ranks, from_first_rank
from gossamer.layers import Support, sparse_weights

__all__ = ["shard"]


def shard(model: nn.Module, blocks: Iterable[nn.Module] = (), **options: Any) -> nn.Module:
    """Apply ``torch.distributed.fsdp.fully_shard`` to all parameters of ``model`` but those of sparse weights.

    All ranks start from the first one's network. The gradients of sparse weights are averaged over ranks as backward
    reaches them, so every rank must use all of them in every pass. Call it after the conversion and before the
    optimizer is built. Without a ``Subspace``, torch's own ``fully_shard`` may split sparse weights, too.

    Args:
        model: A network converted by :func:`gossamer.bayesianize` or :func:`gossamer.sparsify`.
        blocks: Parts of the network whose parameters are gathered together, such as the layers of a transformer.
        options: Passed to ``fully_shard``: ``mesh``, ``mp_policy``, ``offload_policy``…

    Returns:
        ``model``.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(20, 8), nn.LayerNorm(8), nn.Linear(8, 2)), density=0.2)
        >>> shard(model)
        Traceback (most recent call last):
        RuntimeError: there is no process group: start the program with torchrun and call init_process_group() first
    """
    if not torch.distributed.is_initialized():
        raise RuntimeError(
            "there is no process group: start the program with torchrun and call init_process_group() first"
        )
    from torch.distributed.fsdp import fully_shard

    whole = {parameter for weight in sparse_weights(model).values() for parameter in weight.parameters()}
    _start_alike(model)
    for part in (*blocks, model):
        fully_shard(part, ignored_params=whole, **options)
    for parameter in whole:
        parameter.register_post_accumulate_grad_hook(_average)  # type: ignore[no-untyped-call]
    return model


@torch.no_grad()
def _start_alike(model: nn.Module) -> None:
    positions = {id(part.position): part for part in model.modules() if isinstance(part, Support)}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) in positions:  # a broadcast into it would leave what is cached for it in place
            positions[id(tensor)].set_position(from_first_rank(tensor.clone()))
        else:
            from_first_rank(tensor.data)


def _average(parameter: Tensor) -> None:
    # The part that earlier passes have added is a mean already, and stays the same.
    if parameter.grad is not None:
        average_over_ranks(parameter.grad)
