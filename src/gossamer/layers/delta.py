"""A Gaussian change of a few entries of a pretrained weight, which itself stays as it is.

The weight is W₀ + Δ: W₀, the *base*, is frozen, keeps its own precision and is shared with every copy of the network,
and Δ has s active entries N(μ, σ²) with the prior N(0, s₀²): an entry keeps its pretrained value unless the data say
otherwise. An entry that is not active has exactly that value.
"""

from __future__ import annotations

import zlib
from collections.abc import Container
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from gossamer.kernels import WeightMap
from gossamer.layers.curvature import CurvatureWeight
from gossamer.layers.support import Support, version_of
from gossamer.layers.weight import without_autocast
from gossamer.types import Noise

BASE = "gossamer_base"  # the attribute of an adapted network that names its frozen parameters
SUFFIX = ".checksum"  # of an entry of a state that stands for one of them
OTHER_BASE = (
    "is another pretrained weight than the one that was adapted when this was saved: load that network, in the same "
    "precision"
)


class DeltaWeight(CurvatureWeight):
    """Active entries that are added to a frozen base; their σ follows from the curvature.

    Args:
        support: Where the entries are.
        base: The pretrained weight, in the layout of the layer. It is not copied.
        std: Initial σ of every entry; the means start at zero.
        prior_std: s₀, the standard deviation of the prior around the pretrained value.
        noise: What training passes draw, as in :class:`GaussianWeight`.

    Example:
        >>> base = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> weight = DeltaWeight(Support((2, 2), torch.tensor([1])), base, std=0.1, prior_std=1.0)
        >>> weight.mean.data.fill_(0.5)
        tensor([0.5000])
        >>> weight.dense_mean().tolist(), weight.std.tolist() == [0.10000000149011612]
        ([[1.0, 2.5], [3.0, 4.0]], True)
    """

    warms_states = True
    warmest = 1e-3  # by held-out examples, see examples/turned_digits.py: more noise covers what the network knows
    rest: Rest

    def __init__(
        self, support: Support, base: Tensor, std: float = 1.0, prior_std: float = 1.0, noise: Noise = "local"
    ) -> None:
        # A change may be far smaller than the spacing of bfloat16 at the weight that it is added to.
        wide = torch.promote_types(base.dtype, torch.float32)
        mean = torch.zeros(support.n_active, dtype=wide, device=base.device)
        super().__init__(support, mean, torch.full_like(mean, std), prior_std, noise=noise)
        self.rest = Rest(base.detach())

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        """No change yet of the weight ``like``."""
        return cls(support, like)

    @property
    def base(self) -> Tensor:
        """The pretrained weight."""
        return self.rest.base

    @property
    def dtype(self) -> torch.dtype:
        """That of the dense weight."""
        return self.base.dtype

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The product with the base, which learns nothing, and with the sparse change."""
        x, plain = without_autocast(x)
        with plain:
            frozen = self.rest.product(x, bias, weight_map)
            return frozen + super().multiply(x, None, weight_map).to(frozen.dtype)

    def set_extra_state(self, state: Tensor) -> None:
        super().set_extra_state(state[:-1])

    def get_extra_state(self, *shrinkage: float) -> Tensor:
        fingerprint = torch.tensor([self.rest.fingerprint], dtype=torch.float64)
        return torch.cat([super().get_extra_state(*shrinkage), fingerprint])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        extra = state_dict.get(prefix + "_extra_state")
        if extra is not None and int(extra[-1]) != self.rest.fingerprint:
            raise ValueError(f"{prefix.removesuffix('.')} {OTHER_BASE}")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.rest.check()
        super()._apply(fn, recurse)
        self.rest = Rest(fn(self.base))
        return self


class Rest:
    """What a weight holds beside its active entries: a frozen dense base, in the layout of the layer.

    It is neither parameter nor buffer: nothing trains, averages, broadcasts, copies or saves it.
    """

    def __init__(self, base: Tensor) -> None:
        self.base, self.version = base, version_of(base)

    def check(self) -> None:
        """Raise if someone has written to the base."""
        if not torch.compiler.is_compiling() and version_of(self.base) != self.version:
            raise RuntimeError(
                f"the pretrained weight of shape {tuple(self.base.shape)} was changed after gossamer.adapt, and its "
                "deltas belong to what it was: change or load the network first, then adapt it"
            )

    @cached_property
    def fingerprint(self) -> int:
        """A checksum of the base."""
        return checksum(self.base)

    def product(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The product of an input with the base, with the bias in it."""
        self.check()
        if not x.is_floating_point():
            return weight_map(x, self.base, bias)
        return weight_map(x, self.base.to(x.dtype), None if bias is None else bias.to(x.dtype))

    def plus(self, change: Tensor) -> Tensor:
        """The dense weight."""
        self.check()
        return (self.base + change).to(self.base.dtype)

    def entries(self, support: Support, change: Tensor) -> Tensor:
        """The active entries of the dense weight."""
        flat = self.base.reshape(-1)
        return (flat[support.positions(flat.device)] + change).to(flat.dtype)

    def copy(self) -> Tensor:
        """The base as a tensor to be written into."""
        self.check()
        return self.base.clone(memory_format=torch.contiguous_format)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        return type(self), (self.base,)


def freeze(model: nn.Module, trained: Container[int]) -> None:
    """Freeze all of an adapted network but its changes and the parameters in ``trained``, by ``id``.

    A state then has checksums in place of what is frozen, which belongs to the pretrained network.
    """
    means = {id(module.mean) for module in model.modules() if isinstance(module, DeltaWeight)}
    frozen: dict[str, tuple[Any, Tensor] | None] = {}  # checksums, with what they were computed of
    for name, parameter in model.named_parameters(remove_duplicate=False):
        trains = id(parameter) in means or id(parameter) in trained
        parameter.requires_grad_(trains)
        if not trains:
            frozen[name] = None
    vars(model)[BASE] = frozen
    model.register_state_dict_post_hook(_leave_out)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(_fill_in)  # type: ignore[no-untyped-call]


def _leave_out(model: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    for name in vars(model)[BASE]:
        if state.pop(prefix + name, None) is not None:
            state[prefix + name + SUFFIX] = _checksum_of(model, name)


def _fill_in(model: nn.Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    for name in vars(model)[BASE]:
        expected = state.pop(prefix + name + SUFFIX, None)
        if expected is not None:
            if int(expected) != int(_checksum_of(model, name)):
                raise ValueError(f"{name} {OTHER_BASE}")
            state[prefix + name] = model.get_parameter(name).detach()


def _checksum_of(model: nn.Module, name: str) -> Tensor:
    parameter, known = model.get_parameter(name), vars(model)[BASE]
    now = parameter.data_ptr(), parameter._version
    if known[name] is None or known[name][0] != now:
        known[name] = now, torch.tensor(checksum(parameter))
    found: Tensor = known[name][1]
    return found


def checksum(tensor: Tensor) -> int:
    """CRC-32 of the bytes of a tensor, row by row whatever its layout in memory."""
    data: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return zlib.crc32(data)
