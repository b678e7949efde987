"""DPF, dynamic pruning with feedback (Lin et al., ICLR 2020): dense weights, trained by gradients of their pruned copy.

    w ← w - lr · ∇L(m ⊙ w)

The mask m keeps the largest weights of the network and is chosen anew every few steps. The gradient is taken at the
pruned point m ⊙ w, and moves all weights: one that was cut too early grows until it is chosen again. The sparsity after
step t is s_t = s (1 - (1 - t/t₁)³).
"""

from collections.abc import Sequence
from functools import partial

from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.methods._parts import by_sgd, update_period_for
from gossamer.schedules import cubic, step_of
from gossamer.sparsity import Prune
from gossamer.sparsity.convert import sparsify
from gossamer.sparsity.exchange import Scope
from gossamer.types import Method, Rule, Task

__all__ = ["dpf"]


def dpf(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    until: float = 0.75,
    update_period: int | None = None,
    scope: Scope = "global",
) -> Method:
    """DPF: dense weights during training, of which the network uses a share that falls to ``density``.

    At ``until`` the mask is final. What it cuts can then never return, so it leaves the storage there.

    Args:
        density: Share of the weights that stay in the end.
        lr: Learning rate at the start of a cosine; 0.2.
        momentum: Nesterov momentum of SGD.
        weight_decay: Weight decay of SGD, of the weights that are cut as well.
        until: Share of the training at which the density is reached and the mask is final; the authors' is their second
            drop of the learning rate, at 0.75.
        update_period: Steps between two choices of the mask; ``None`` is 16, or a fiftieth of a training shorter than
            800 steps.
        scope: ``"global"`` compares the weights of all layers, as in the paper; ``"layer"`` gives every layer the same
            density.
    """

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        can_leave = world_size() == 1  # DDP cannot follow weights that leave: with several ranks they stay, at zero
        return [
            Prune(
                model,
                optimizer,
                target_density=cubic(1.0, density, 0, step_of(until, steps, "until")),
                criterion="mean_square",  # of one weight: its size
                groups="weight",
                feedback=until if can_leave else True,
                scope=scope,
                total_steps=steps,
                update_period=update_period_for(steps, update_period, usual=16),
                until=until if can_leave else None,
            )
        ]

    return by_sgd(
        steps,
        lr,
        momentum,
        weight_decay,
        usual=0.2,
        nesterov=True,
        prepare=partial(sparsify, density=1.0, keep_dense=(), init="pretrained"),
        rules=rules,
        share_for_numbers=0.015,  # the default is twice that of SGD
    )
