"""Which entries of a dense weight are active, and where they are stored.

A weight of ``size`` entries keeps only ``n_active`` numbers; ``position`` says where they belong. Everything with one
number per active entry (means, raw stds, gradients, optimizer state) is a vector in the order of ``position``.
"""

from __future__ import annotations

import copy
import math
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.reference import gather, scatter

BITS = 23  # of the uniform number of normals_at: (2k + 1) / 2^24 is exact in float32 and never 0 or 1


class Origin:
    """Where a deep copy of a support comes from, and what must be so for its entries to be where it says."""

    def __init__(self, support: weakref.ref[Support], version: int) -> None:
        self.support = support
        self.first = self.checked = version  # of the positions of the copy, when it was made and when last looked at
        self.mixes_after: int | None = None  # the version after which a change mixes entries of different positions

    def note_move(self, version: int) -> None:
        """The original has moved: once positions were copied from it, copying them again goes wrong."""
        if version > self.first and self.mixes_after is None:
            self.mixes_after = version

    def check(self, position: Tensor) -> None:
        """Raise if the positions of the copy changed in another way than by one copy of all that the original holds."""
        version = version_of(position)
        if version == self.checked:
            return
        original = self.support()
        mixed = self.mixes_after is not None and version > self.mixes_after
        if not mixed and self.mixes_after is None and original is not None and original.position is not None:
            mixed = not torch.equal(position, original.position.to(position.device))
        if mixed or not bool((position[1:] > position[:-1]).all()):
            raise RuntimeError(
                "this copy of a network holds averages of entries at different positions (AveragedModel, or another "
                "average that does not know positions): average with gossamer.averaged(model) instead"
            )
        self.checked = version


class Support(nn.Module):
    """Sorted flat positions of the active entries of a weight of shape ``shape``.

    Args:
        shape: Shape of the dense weight.
        position: Sorted flat positions, ``(n_active,)``; ``None`` means that every entry is active.
        frozen: Half-open range of flat positions that can never be active (the padding row of an embedding).
        shares_budget: Whether the number of active entries may move to other weights of the network.

    Example:
        >>> support = Support((2, 3), torch.tensor([1, 5]))
        >>> support.n_active, support.size, support.position.dtype
        (2, 6, torch.int32)
        >>> support.scatter(torch.tensor([10.0, 20.0]))
        tensor([[ 0., 10.,  0.],
                [ 0.,  0., 20.]])
    """

    alike_on_ranks = ("position",)
    position: Tensor | None
    origin: Origin | None = None  # set in a deep copy, until it moves on its own
    _copies: weakref.WeakSet[Support] | None = None

    def __init__(
        self,
        shape: tuple[int, ...],
        position: Tensor | None = None,
        frozen: tuple[int, int] = (0, 0),
        shares_budget: bool = False,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.frozen = frozen
        self.shares_budget = shares_budget
        self.register_buffer("position", None if position is None else position.to(_dtype(self.shape)))

    @property
    def size(self) -> int:
        """Number of entries that may be active."""
        return math.prod(self.shape) - (self.frozen[1] - self.frozen[0])

    @property
    def n_active(self) -> int:
        """Number of active entries."""
        return self.size if self.position is None else len(self.position)

    @property
    def is_dense(self) -> bool:
        """Whether every entry that may be active is: then there is nothing to move."""
        return self.n_active == self.size

    def scatter(self, values: Tensor, probe: Tensor | None = None) -> Tensor:
        """The dense tensor with ``values`` at the active positions and exact zeros elsewhere."""
        return scatter(values, self.position, self.shape, probe)

    def gather(self, dense: Tensor) -> Tensor:
        """The active entries of a dense tensor."""
        return gather(dense, self.position)

    def explicit(self, device: torch.device) -> Tensor:
        """The positions; if every entry was active and none were stored, they are stored from now on."""
        self.position = self.positions(device)
        return self.position

    def positions(self, device: torch.device) -> Tensor:
        """The positions, made for the call where none are stored."""
        if self.position is not None:
            return self.position
        start, stop = self.frozen
        every = torch.arange(math.prod(self.shape), dtype=_dtype(self.shape), device=device)
        return torch.cat([every[:start], every[stop:]])

    def set_position(self, position: Tensor) -> None:
        """Replace the positions; in place where the number of them is the same, so that captured graphs stay valid."""
        if self.position is None:
            raise ValueError("a dense support has no positions to replace")
        if len(position) == len(self.position):
            self.position.copy_(position)
        else:
            self.position = position.to(self.position)
        self.moved()

    def moved(self) -> None:
        """To be called after the positions and what is stored at them have changed together."""
        self.origin = None
        for copied in self._copies or ():
            if copied.origin is not None:
                copied.origin.note_move(version_of(copied.position))

    def check_average(self) -> None:
        """Raise if positions were written into this copy of a network without moving its entries along.

        ``torch.optim.swa_utils.AveragedModel`` does so: it averages the n-th entries of two networks, wherever they
        are, and copies the positions of the last, or averages these too.
        """
        if self.origin is not None and self.position is not None and not torch.compiler.is_compiling():
            self.origin.check(self.position)

    def check(self, position: Tensor) -> None:
        """Raise unless ``position`` is sorted, without repeats, inside the weight and off its frozen range."""
        sorted_inside = bool((position[1:] > position[:-1]).all()) and (
            len(position) == 0 or (int(position[0]) >= 0 and int(position[-1]) < math.prod(self.shape))
        )
        on_frozen = bool(((position >= self.frozen[0]) & (position < self.frozen[1])).any())
        if not sorted_inside or on_frozen:
            raise ValueError(
                f"positions for a weight of shape {self.shape} must be sorted, unique, inside it and off its frozen "
                "range: the state is corrupt or belongs to another network"
            )

    def extra_repr(self) -> str:
        return f"shape={self.shape}, active={self.n_active}/{self.size}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Support:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__getstate__().items()})
        twin.origin = Origin(weakref.ref(self), version_of(twin.position))
        self._copies = self._copies or weakref.WeakSet()
        self._copies.add(twin)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("origin", "_copies")}


def _dtype(shape: tuple[int, ...]) -> torch.dtype:
    # Half the bytes of int64, and enough for any weight below two thousand million entries.
    return torch.int32 if math.prod(shape) <= torch.iinfo(torch.int32).max else torch.int64


def spread(support: Support, values: Tensor, dim: int) -> Tensor:
    """A number for each index along a dimension of the dense weight -> one for each active entry."""
    if support.position is None and support.frozen[0] == support.frozen[1]:
        return values.view(-1, *[1] * (len(support.shape) - dim - 1)).expand(support.shape).flatten()
    step = math.prod(support.shape[dim + 1 :])
    return values[support.explicit(values.device).long() // step % support.shape[dim]]


def leave_broadcast(network: nn.Module) -> None:
    """Take what is alike on all ranks out of what ``DistributedDataParallel`` sends before each pass."""
    for wrapper in network.modules():
        if isinstance(wrapper, nn.parallel.DistributedDataParallel):
            wrapper.parameters_to_ignore |= alike_on_ranks(wrapper.module)
            # Otherwise DDP finds out in a pass that nothing is left to send, and fails.
            wrapper._assign_modules_buffers()  # type: ignore[no-untyped-call]


def alike_on_ranks(network: nn.Module) -> set[str]:
    """Names of the buffers that are alike on all ranks without being sent.

    Positions change at updates only, which all ranks make alike from averaged gradients and the first rank's choices,
    and curvatures follow from averaged estimates. Other buffers, such as statistics of batch normalisation, are not.
    """
    alike = [(name, getattr(part, "alike_on_ranks", ())) for name, part in network.named_modules()]
    return {f"{name}.{buffer}".lstrip(".") for name, buffers in alike for buffer in buffers}


def version_of(position: Tensor | None) -> int:
    """How often the positions were written to; inference tensors do not count."""
    return 0 if position is None or position.is_inference() else position._version


def normals_at(position: Tensor, seed: int) -> Tensor:
    """Standard normal numbers at flat positions, in float32: the quantiles of the outputs of SplitMix64.

    They are a function of a seed and a position: nothing is stored, and nothing has to be moved along.
    """
    x = position.long() * _signed(0x9E3779B97F4A7C15) + _signed(seed * 0xD1342543DE82EF95)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    uniform = (2 * _shifted(x ^ _shifted(x, 31), 64 - BITS) + 1).float() / 2 ** (BITS + 1)
    normals: Tensor = torch.special.ndtri(uniform)
    return normals


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A shift of unsigned numbers, which torch lacks."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The 64-bit integer with the same bits."""
    return (number + 2**63) % 2**64 - 2**63
