"""Dense mean-field variational inference: every weight is active, with a mean and a standard deviation.

The dense baseline of SSVI (Li et al., ICLR 2024): the same layers, objective and schedules at density 1.
"""

from typing import Any

from gossamer.methods._parts import with_options_of
from gossamer.methods.ssvi import ssvi
from gossamer.types import Method, Task

__all__ = ["vi"]

OF_SUBSPACES = "removal", "addition", "update_period", "replacement_rate", "until", "regrow_std"


@with_options_of(ssvi, "density", "allocation", "prior", "members", "cycles", *OF_SUBSPACES, weight_decay=5e-4)
def vi(task: Task, steps: int, **options: Any) -> Method:
    """Dense VI: a Gaussian over every weight.

    The options are those of :func:`gossamer.methods.ssvi.ssvi` that mean something without a subspace.
    """
    return ssvi(task, steps, density=1.0, **options)
