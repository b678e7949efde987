"""Who is active: criteria, allocations, and the subspace that moves by them."""

from gossamer.sparsity import allocation, criteria
from gossamer.sparsity.subspace import Subspace

__all__ = ["Subspace", "allocation", "criteria"]
