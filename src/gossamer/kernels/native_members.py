"""Small networks side by side: their training steps (``members.h``) and what fixed ones answer (``perceptrons.h``)."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels import library
from gossamer.kernels.library import no_memory

MANY = 2**21  # active entries times rows: above it, threads are worth their start


@dataclass(frozen=True)
class MemberShape:
    """Multilayer perceptrons of one shape, and how the targets of a row are laid out.

    Attributes:
        members: How many networks.
        widths: Units of each layer, from the inputs on.
        biases: Where the biases of each layer start among the parameters of a member that are no weights.
        others: How many of these a member has.
        noise: Where the raw noise stds start among them; ``None`` if the noise is the second half of the outputs.
        has_classes: Whether outputs are logits and targets classes; otherwise both are numbers.
        columns: How many the targets have: those of numbers, or one for the class; one more for the weights of rows, if
            any; and with ``folded`` one for the number of the member that ignores a row.
        folded: Whether members ignore rows.
        reach: How far a target may be from its mean, as for :class:`gossamer.likelihoods.Gaussian`.
    """

    members: int
    widths: tuple[int, ...]
    biases: tuple[int, ...]
    others: int
    noise: int | None
    has_classes: bool
    columns: int
    folded: bool = False
    reach: float = math.inf

    @property
    def targets(self) -> int:
        """Numbers that are predicted for a row, or one class."""
        if self.has_classes:
            return 1
        return self.widths[-1] if self.noise is not None else self.widths[-1] // 2

    @property
    def numbers(self) -> list[int]:
        """As the library reads it."""
        folds = self.members if self.folded else 0
        noise = -1 if self.noise is None else self.noise
        head = [self.members, len(self.biases), int(self.has_classes), self.targets, self.columns, folds, noise]
        return [*head, self.others, *self.widths, *self.biases]


class Trained(NamedTuple):
    """Parameters in one flat vector, their gradient, and the state of Adam."""

    values: Tensor
    grad: Tensor
    step: Tensor
    first: Tensor
    second: Tensor


class NativeMembers:
    """Networks side by side, which take steps by Adam on the vectors they were made of.

    Args:
        shape: The networks, and the layout of the targets.
        lengths: Active entries of each weight, member by member.
        prior_std: The prior of each weight.
        groups: Means and raw stds of the active entries, then all other parameters, member by member.
    """

    def __init__(
        self, shape: MemberShape, lengths: Sequence[int], prior_std: Sequence[float], groups: Sequence[Trained]
    ) -> None:
        self.address: int | None = None
        self.free = library.LIBRARY["members_free"]
        n_active = sum(lengths)
        sizes = (n_active, n_active, shape.members * shape.others)
        for group, size in zip(groups, sizes, strict=True):
            for vector in group:
                plain = vector.dtype is torch.float32 and vector.is_cpu and vector.is_contiguous()
                if not plain or vector.numel() != (1 if vector is group.step else size):
                    raise ValueError(f"what is trained must be float32 vectors of {size} on the CPU, without gaps")
        self.shape, self.lengths, self.groups = shape, list(lengths), list(groups)  # the groups must live as long
        self.n_active = n_active
        buffers = [vector.data_ptr() for group in groups for vector in group]
        self.address = library.LIBRARY["members"](
            _list(ctypes.c_int32, shape.numbers),
            _list(ctypes.c_int64, lengths),
            _list(ctypes.c_float, prior_std),
            _list(ctypes.c_void_p, buffers),
            shape.reach,
        )
        if not self.address:
            raise no_memory(f"{shape.members} networks with {n_active} active weights")
        self._options = (ctypes.c_double * (5 * len(self.groups)))()
        self._is_placed, self._n_rows = False, 0

    def __del__(self) -> None:
        if self.address:
            self.free(self.address)

    def place(self, positions: Sequence[Tensor | None]) -> None:
        """Follow values, or positions of the active entries, that were changed from outside; ``None`` means all."""
        listed = [position for position in positions if position is not None]
        dtype = listed[0].dtype if listed else torch.int64
        sizes = [
            length if position is None else len(position)
            for position, length in zip(positions, self.lengths, strict=True)
        ]
        fit = all(position.dtype is dtype and position.is_cpu and position.is_contiguous() for position in listed)
        if dtype not in (torch.int32, torch.int64) or not fit or sizes != self.lengths:
            raise ValueError("positions must be vectors of int32 or of int64 on the CPU, as long as the active entries")
        full = [self.shape.widths[i] * self.shape.widths[i + 1] for i in range(len(self.shape.biases))]
        if any(p is None and self.lengths[i] != full[i % len(full)] for i, p in enumerate(positions)):
            raise ValueError("a weight without positions must have all its entries active")
        addresses = [None if position is None else position.data_ptr() for position in positions]
        failed = library.LIBRARY["members_place"](self.address, _list(ctypes.c_void_p, addresses), dtype is torch.int64)
        self._is_placed = not failed
        if failed == 1:
            raise no_memory(f"the positions of {self.n_active} active weights")
        if failed:
            raise ValueError("the positions of a weight are not sorted, or lie outside of it")

    def gradients(self, x: Tensor, y: Tensor, scale: float, seed: int, *, noisy: bool = True) -> Tensor:
        """Gradients of a batch, into those of the groups; returns its negative log-likelihood and ``scale`` · KL.

        ``x`` is ``(rows, inputs)`` and ``y`` ``(rows, columns)``, both float32, or the classes ``(rows,)`` as int64.
        """
        rows, whole = len(x), y.dtype is torch.int64
        shapes = (rows, self.shape.widths[0]), (rows,) if whole else (rows, self.shape.columns)
        fit = x.dtype is torch.float32 and (x.shape, y.shape) == shapes and x.is_cpu and y.is_cpu
        if (
            not fit
            or not rows
            or not (self.shape.has_classes and self.shape.columns == 1 if whole else y.dtype is torch.float32)
        ):
            raise ValueError(
                f"expected float32 inputs and targets of shapes {shapes} on the CPU, or classes as int64; got "
                f"{x.dtype} of {tuple(x.shape)} on {x.device} and {y.dtype} of {tuple(y.shape)} on {y.device}"
            )
        if not self._is_placed:
            raise ValueError("networks have no positions yet: call place() first")
        x, y, losses, self._n_rows = x.contiguous(), y.contiguous(), torch.empty(2), rows
        threads = torch.get_num_threads() if self.n_active * rows > MANY else 1
        batch, noise = (x.data_ptr(), rows, y.data_ptr(), whole), (seed & 0xFFFFFFFFFFFFFFFF, noisy)
        if library.LIBRARY["members_gradients"](self.address, *batch, *noise, scale, losses.data_ptr(), threads):
            raise no_memory(f"the pass of {rows} rows")
        return losses

    def dense_gradient(self, number: int) -> Tensor:
        """The gradient of all means of a weight in the last pass, active or not, ``(out, in)``."""
        if not 0 <= number < len(self.lengths) or not self._n_rows:
            raise ValueError(f"there is no gradient of weight {number} of {len(self.lengths)}, {self._n_rows} rows")
        layer = number % len(self.shape.biases)
        grad = torch.empty(self.shape.widths[layer + 1], self.shape.widths[layer])
        library.LIBRARY["members_dense"](self.address, number, grad.data_ptr())
        return grad

    def adam(self, options: Sequence[dict[str, Any]]) -> None:
        """One step of ``torch.optim.Adam`` with the options of each group."""
        numbers = [(g["lr"], *g["betas"], g["eps"], g["weight_decay"]) for g in options]
        self._options[:] = [number for group in numbers for number in group]
        library.LIBRARY["members_adam"](self.address, self._options)


class Perceptrons:
    """Fixed networks of one shape with ReLU, in float64; the answer for a row does not depend on the rows beside it.

    ``layers`` are the dense weight ``(networks, out, in)`` and the bias ``(networks, out)`` of each layer.
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.widths = [layers[0][0].shape[2], *(weight.shape[1] for weight, _ in layers)]
        self.n_networks = len(layers[0][0])
        self._kept: list[Tensor] = []  # start, input, value and bias of each layer, which native code reads
        for weight, bias in layers:
            network, output, source = weight.nonzero(as_tuple=True)
            ends = torch.bincount(network * weight.shape[1] + output, minlength=bias.numel()).cumsum(0)
            self._kept += [F.pad(ends, (1, 0)), source, weight[network, output, source].double(), bias.double()]
        self._kept = [tensor.contiguous() for tensor in self._kept]

    def __call__(self, x: Tensor) -> Tensor:
        """``(rows, in) -> (networks, rows, out)``, both float64."""
        x = x.double().cpu().contiguous()
        if x.dim() != 2 or x.shape[1] != self.widths[0]:
            raise ValueError(f"networks of {self.widths[0]} inputs cannot read a table of shape {tuple(x.shape)}")
        y = torch.empty(self.n_networks, len(x), self.widths[-1], dtype=torch.float64)
        threads = torch.get_num_threads() if len(self._kept[2]) * len(x) > MANY else 1
        widths, kept = _list(ctypes.c_int64, self.widths), _list(ctypes.c_void_p, [k.data_ptr() for k in self._kept])
        networks = len(self.widths) - 1, widths, kept, self.n_networks
        if library.LIBRARY["perceptrons"](*networks, x.data_ptr(), len(x), y.data_ptr(), threads):
            raise no_memory(f"the answers of {self.n_networks} networks")
        return y


def _list(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * len(values))(*values)
