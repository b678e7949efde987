"""MultiSWAG (Wilson and Izmailov, NeurIPS 2020): a mixture of SWAG posteriors from other seeds.

    q(θ) = Σ_k N(θ; θ̄_k, Σ_k)/K,   each as in :mod:`gossamer.methods.swag`

A deep ensemble with the covariance around each member. The length of the training is that of all members together.
"""

from typing import Any

from gossamer.methods._parts import with_options_of
from gossamer.methods.ensemble import ensemble
from gossamer.methods.swag import swag
from gossamer.types import Method, Task

__all__ = ["multiswag"]


@with_options_of(swag)
def multiswag(task: Task, steps: int, *, members: int = 3, **options: Any) -> Method:
    """MultiSWAG: an ensemble of Gaussians, each fitted to the path of SGD.

    The other options are those of :func:`gossamer.methods.swag.swag`.

    Args:
        steps: Length of the training of all members together; each has an equal share, and its shares are of that.
        members: K, how many Gaussians.
    """
    return ensemble(task, steps, member="swag", members=members, member_options=options)
