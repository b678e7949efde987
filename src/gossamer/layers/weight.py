"""A weight tensor of which only the active entries are stored: what all kinds of sparse weight share.

``mean`` and whatever else a kind of weight learns are vectors of length ``support.n_active``. A layer asks its weight
for the product with an input and never sees a dense tensor.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from gossamer import kernels
from gossamer.kernels import WeightMap
from gossamer.layers.support import Support
from gossamer.layers.tensor_view import TensorView, read
from gossamer.types import Mode, Noise, WeightStats

if TYPE_CHECKING:
    from gossamer.layers.fixed import DenseCopy

REFERENCE_FLOOR = 1e-8  # inside the square root of the released code: a noise of 1e-4 on every output


class Pass(NamedTuple):
    """What a weight computes with in the pass at hand: decided once, when its layer is called.

    ``values`` are the means or a draw of the active entries. With ``std`` the outputs have noise of their own.
    """

    values: Tensor
    std: Tensor | None = None


RegrowStd = Literal["mean", "mean_raw"] | float
"""How σ of a new entry is set: the mean std of its layer, the mean raw std (as in the released code), or a number."""


class SparseWeight(TensorView):
    """Active entries of a weight tensor. ``mean`` is μ, or the weight itself for a kind without a distribution.

    The last six attributes are set from outside for some passes, and not copied: :class:`gossamer.Subspace` sets
    ``probe`` and ``sink`` for the backward pass before an update.
    """

    vectors: ClassVar[tuple[str, ...]] = ("mean",)  # parameters and buffers with one number per active entry
    warms_states: ClassVar[bool] = False  # whether new entries have average optimizer states, instead of none
    warmest: ClassVar[float] = math.inf  # temperature that Curvature chooses by itself
    noises_outputs: ClassVar[bool] = False  # whether a pass may draw noise of the outputs instead of weights
    noise: Noise = "local"  # of the two, what training passes draw: "local" is noise of the outputs
    mode: Mode = "default"  # "reference" keeps the released code's floor inside the square root of a variance
    calibration = 1.0  # factor of the variances, fitted after training (gossamer.calibrate)

    def __init__(self, support: Support, mean: Tensor) -> None:
        super().__init__()
        self.support = support
        self.mean = nn.Parameter(mean)
        # Of the instance, not defaults of the class: torch.compile would compile again at their first change.
        self.probe: Tensor | None = None  # zeros in the dense shape that receive the dense gradient
        self.sink: kernels.Sink | None = None  # takes the dense gradient piece by piece instead
        self.dense_copy: DenseCopy | None = None  # to compute with
        self.noisy = True  # false while every pass must use the means
        self.trains_at_mean = False  # true while training passes must, and evaluations must not
        self.keeps_number = False  # true while a subspace trains it that moves no entries to other layers

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        """A weight of this kind with any numbers, in the type and on the device of ``like``: to load a state into."""
        raise TypeError(
            f"a {cls.__name__} cannot be saved as it is: give it the class method blank(support, like), or save draws, "
            "gossamer.save(…, n_draws=20)"
        )

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        support: Any = self._modules["support"]  # read from here, as a module is slow to find its attributes
        x, plain = without_autocast(x)
        where = (support.position, support.shape, weight_map)
        floor = REFERENCE_FLOOR if self.mode == "reference" else None
        with plain:
            if self.dense_copy is not None and (self.training or self.noise == "local"):
                return self.dense_copy.multiply(x, bias, weight_map, noisy=self.is_noisy, floor=floor)
            values, std = self.this_pass()
            if std is None:
                y = kernels.product(x, values, bias, *where)
            else:
                y = kernels.noisy_product(x, values, std, bias, *where, floor=floor)
            if self.probe is None and self.sink is None:
                return y
            return kernels.watch(y, x, weight_map, self.probe, self.sink)

    def this_pass(self, *, drawn: bool = False) -> Pass:
        support: Any = self._modules["support"]
        if support.origin is not None:
            support.check_average()
        if not self.is_noisy:
            return Pass(self.expected())
        if drawn or not self.noises_outputs or (self.training and self.noise == "weights"):
            return Pass(self.sample())
        return Pass(self.mean, self.learnt_std(self.width))

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        """One draw of the active vector, differentiable; ``std`` saves its computation where many are drawn."""

    @abstractmethod
    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """Value of a newly active entry for each of ``vectors``, given which of the active entries are kept."""

    def stored(self) -> dict[str, Tensor]:
        """What predictions need of its state, by name and without the support: files hold this of a trained network."""
        return {name: entry for name, entry in self.state_dict().items() if not name.startswith("support.")}

    @property
    def is_noisy(self) -> bool:
        return self.noisy and not (self.trains_at_mean and self.training and torch.is_grad_enabled())

    @property
    def width(self) -> float:
        """Factor of the variances in the pass at hand: what is trained must not depend on a calibration."""
        return 1.0 if self.training and torch.is_grad_enabled() else self.calibration

    def arm(self, sink: kernels.Sink | None = None) -> None:
        """Collect the dense gradient in the next backward passes, by way of the ``sink`` wherever it can be called."""
        self.sink = sink
        # An expanded zero: a leaf of the dense shape that takes the memory of one number.
        zero = torch.zeros((), dtype=self.mean.dtype, device=self.mean.device)
        self.probe = zero.expand(self.support.shape).requires_grad_()

    def disarm(self) -> Tensor | None:
        """Return the dense gradient since :meth:`arm` and forget it; ``None`` if there was no backward pass."""
        grad = None if self.probe is None else self.probe.grad
        if self.probe is not None and self.dense_copy is not None:
            grad = self.dense_copy.mean.grad
        self.probe = self.sink = None
        return grad

    def __getattr__(self, name: str) -> Any:
        # What the module holds first and directly: every pass asks for several of them.
        for kind in ("_parameters", "_buffers", "_modules"):
            held = self.__dict__.get(kind, ())
            if name in held:
                return held[name]
        return read(self, name)

    def __getstate__(self) -> dict[str, Any]:
        passing = {"probe": None, "sink": None, "dense_copy": None, "noisy": True, "trains_at_mean": False}
        passing["keeps_number"] = False
        return self.__dict__ | passing

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.probe is not None:
            self.arm(self.sink)  # in the new precision, on the new device
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Another network of the same shape has its active entries elsewhere, and another number of them where a budget
        # moves between layers: the vectors take the length of what is loaded.
        position = state_dict.get(prefix + "support.position")
        if position is not None:
            self.support.explicit(self.mean.device)  # a network that was cut may be loaded into one that was not
            self.support.check(position)
            if len(position) != self.support.n_active and self.keeps_number:
                args[-1].append(
                    f"{prefix[:-1]} of the state has {len(position):,} active weights, that of the network in training "
                    f"{self.support.n_active:,}: convert it with the density of the state, and build its optimizer anew"
                )
                return
            if len(position) != self.support.n_active:
                resize(self, len(position))
        elif self.support.position is not None and len(state_dict.get(prefix + "mean", ())) == self.support.size:
            resize(self, self.support.size)  # and one that was not cut into one that was
            self.support.position = None
        super()._load_from_state_dict(state_dict, prefix, *args)
        if position is not None:
            self.support.origin = None  # positions and entries of one network


def mean_among(values: Tensor, among: Tensor) -> Tensor:
    """The mean of the marked values, without indexing, which would wait for the GPU."""
    return torch.where(among, values, 0).sum() / among.sum()


def stats_of(weight: SparseWeight) -> WeightStats:
    """What a criterion sees, detached."""
    std = weight.learnt_std()
    return WeightStats(mean=weight.mean.detach(), std=None if std is None else std.detach())


def resize(weight: SparseWeight, n_active: int) -> None:
    """Give every vector the length ``n_active`` (contents undefined); the parameters stay the same objects."""
    assert weight.support.position is not None
    for name in weight.vectors:
        vector = getattr(weight, name)
        vector.data = vector.data.new_zeros(n_active)
        vector.grad = None
    weight.support.position = weight.support.position.new_zeros(n_active)


class PointWeight(SparseWeight):
    """Active entries without a distribution; ``mean`` is the weight itself.

    Example:
        >>> weight = PointWeight(Support((2, 2), torch.tensor([0, 3])), torch.tensor([1.0, 2.0]))
        >>> weight.dense_mean().tolist(), weight.std
        ([[1.0, 0.0], [0.0, 2.0]], None)
    """

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        return cls(support, like.new_zeros(support.n_active))

    @property
    def std(self) -> None:
        return None

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        return self.mean

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        return {"mean": self.mean.detach().new_zeros(())}


def sparse_weights(model: nn.Module) -> dict[str, SparseWeight]:
    """Every sparse weight of ``model`` once, by the name of its layer; tied weights count once.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(torch.nn.Sequential(torch.nn.Linear(8, 4)), density=0.5)
        >>> list(sparse_weights(model))
        ['0']
    """
    found: dict[str, SparseWeight] = {}
    for name, module in model.named_modules():
        if isinstance(module, SparseWeight):
            # torch.compile and DDP wrap a model under names of their own.
            parts = [part for part in name.split(".") if part not in ("_orig_mod", "_forward_module")]
            found[".".join(parts[:-1] if parts[-1:] == ["weight"] else parts)] = module
    return found


def without_autocast(x: Tensor) -> tuple[Tensor, contextlib.AbstractContextManager[Any]]:
    """``x`` in the precision autocast asks for, and a context without autocast: kernels choose their own precisions."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, contextlib.nullcontext()
    follows = x.is_floating_point() and x.dtype != torch.float64  # as everywhere in torch
    cast = x.to(torch.get_autocast_dtype(device)) if follows else x
    return cast, torch.autocast(device, enabled=False)
