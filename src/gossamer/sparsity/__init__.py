"""Which weights are active: criteria, allocations, the subspace that moves by them, and pruning of groups."""

from gossamer.sparsity import allocation, criteria, groups
from gossamer.sparsity.pruning import Cut, Prune
from gossamer.sparsity.redistribution import Redistribution
from gossamer.sparsity.spike_slab import SpikeSlabDecay, soft_threshold
from gossamer.sparsity.subspace import Subspace

__all__ = [
    "Cut",
    "Prune",
    "Redistribution",
    "SpikeSlabDecay",
    "Subspace",
    "allocation",
    "criteria",
    "groups",
    "soft_threshold",
]
