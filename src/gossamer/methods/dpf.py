"""DPF, dynamic pruning with feedback (Lin et al., ICLR 2020): dense weights, trained by gradients of their pruned copy.

    w ← w - lr · ∇L(m ⊙ w)

The mask m keeps the largest weights of the network and is chosen anew every few steps. The gradient is taken at the
pruned point m ⊙ w, and moves all weights: one that was cut too early grows until it is chosen again. The sparsity after
step t is s_t = s (1 - (1 - t/t₁)³).
"""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.methods._parts import all_active, by_sgd, update_period_for, with_options_of
from gossamer.methods.magnitude import by_size, magnitude
from gossamer.sparsity import Prune
from gossamer.types import Method, Task

__all__ = ["dpf"]


@with_options_of(magnitude, "warmup", weight_decay=1e-4)
def dpf(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    until: float = 0.75,
    update_period: int | None = None,
    **options: Any,
) -> Method:
    """DPF: dense weights during training, of which the network uses a share that falls to ``density``.

    At ``until`` the mask is final. What it cuts can then never return, so it leaves the storage there. The weight decay
    is that of the weights that are cut as well, and the momentum is Nesterov's.

    Args:
        lr: Learning rate at the start of a cosine; 0.2.
        until: Share of the training at which the density is reached and the mask is final; the authors' is their second
            drop of the learning rate, at 0.75.
        update_period: Steps between two choices of the mask; ``None`` is 16, or a fiftieth of a training shorter than
            800 steps.
    """
    period = update_period_for(steps, update_period, usual=16)
    density, scope = options.pop("density"), options.pop("scope")
    prune = by_size(steps, density, 0.0, until, scope=scope, update_period=period)

    def rules(model: nn.Module, optimizer: Optimizer) -> list[Prune]:
        if world_size() > 1:  # DDP cannot follow weights that leave: with several ranks they stay, at zero
            return [prune(model, optimizer, feedback=True)]
        return [prune(model, optimizer, feedback=until, until=until)]

    # The default rate is twice that of SGD.
    shared: dict[str, Any] = {"usual": 0.2, "nesterov": True, "share_for_numbers": 0.015}
    return by_sgd(steps, lr=lr, **options, **shared, prepare=all_active, rules=rules)
