"""Trained networks and posteriors in one safetensors file, without pickle.

A file has the numbers and how the network was converted; the code of the network is yours. Active weights only are
stored, their positions as differences in the smallest integers that hold them.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn

from gossamer._text.names import code_name, named_class
from gossamer.files import container
from gossamer.files.container import OTHER_NETWORK
from gossamer.files.schema import Entries
from gossamer.layers import DeltaWeight, SparseModule, SparseWeight, find, replica, sparse_weights
from gossamer.layers.delta import freeze
from gossamer.posterior import Averaged, FrozenDraws, InLayers, SnapshotPosterior
from gossamer.posterior.draw import BatchNorm, unwrapped
from gossamer.posterior.in_layers import Refreshing
from gossamer.posterior.mixture import pack, unpack
from gossamer.sparsity.convert import convert
from gossamer.types import Posterior, Saved

__all__ = ["load", "save"]

Precision = Literal["float32", "bf16"]
_Kind = TypeVar("_Kind")

KIND = "gossamer network"
FORMAT = 2  # 1: classes by their names without modules
FORMERLY = {  # names of format 1
    name: f"gossamer.{home}:{name}"
    for home, names in {
        "layers": "PointWeight GaussianWeight CurvatureWeight",
        "methods.vd": "LogUniformWeight",
        "methods.bayes_compression": "ScaledWeight",
        "methods.svbnn": "SpikeSlabWeight",
        "methods.sbp": "GatedWeight",
        "posterior": "InLayers SingleNetwork LocalPasses SnapshotPosterior GaussianPosterior SwagPosterior Mixture",
        "methods.mc_dropout": "Dropped",
        "methods.laplace": "LastLayerPosterior",
        "methods.rank1": "FactorPosterior",
    }.items()
    for name in names.split()
}
MOST_EXTRA = 100  # numbers that a weight keeps besides its vectors


def save(
    posterior: Posterior | nn.Module,
    file: Path | str,
    *,
    dtype: Precision | None = None,
    n_draws: int | None = None,
) -> Path:
    """Write a posterior or a network, plain or converted, to one safetensors file; :func:`load` reads it.

    Args:
        posterior: What :func:`gossamer.fit` or :func:`gossamer.lab.load_run` returned, or a network.
        file: Where to; replaced if it exists.
        dtype: Precision of what is stored: ``"bf16"`` takes half the bytes, and three digits remain. ``None`` is that
            of the network.
        n_draws: Store this many drawn networks in place of the distribution: for posteriors of your own, and where
            batch normalisation is refreshed for each draw.

    Example:
        >>> import tempfile, gossamer
        >>> def network():
        ...     return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        >>> model = gossamer.bayesianize(network(), density=0.05)
        >>> file = save(model, Path(tempfile.mkdtemp()) / "digits.safetensors", dtype="bf16")
        >>> again = load(file, network())
        >>> gossamer.layers.active_parameters(again) == gossamer.layers.active_parameters(model)
        True
    """
    if not isinstance(posterior, nn.Module | Posterior):
        raise TypeError(f"save takes a posterior or a network, not a {type(posterior).__name__}; an estimator has save")
    if dtype is not None and dtype not in get_args(Precision):
        raise ValueError(f"dtype must be 'float32', 'bf16' or None; got {dtype!r}")
    posterior = posterior.posterior if isinstance(posterior, FrozenDraws) else posterior
    if n_draws is not None:
        posterior = _fixed(posterior, n_draws)
    content = _of_network(posterior) if isinstance(posterior, nn.Module) else posterior
    container.write(Path(file), KIND, FORMAT, {"content": _in_precision(content, dtype)})
    return Path(file)


def load(file: Path | str, model: nn.Module, *, refresh: Refreshing | None = None) -> Posterior | nn.Module:
    """What :func:`save` was given: a posterior, or a network.

    Args:
        file: The file.
        model: A plain network, built as that of the training was; it is converted in place as the file says. A network
            that is converted in the same way already is good, too.
        refresh: Called with each network that is drawn, such as :class:`gossamer.posterior.Refresh`, where the
            posterior that was saved had one.

    Raises:
        ValueError: For a file that is damaged or does not fit the network. Nothing in a file is executed, and no more
            memory is taken than file and network need.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a network (nn.Module), not a {type(model).__name__}")
    entries = container.read(Path(file), KIND, FORMAT).inside("content")
    if "posterior" not in entries.content:
        return _network(entries, model)
    return _posterior(entries, model, refresh)


def _fixed(posterior: Posterior | nn.Module, n_draws: int) -> Posterior:
    """Drawn networks in place of the distribution."""
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1; got {n_draws}")
    known = InLayers().posterior(posterior) if isinstance(posterior, nn.Module) else posterior
    if not known.by_weights:
        raise ValueError(f"a draw of a {type(known).__name__} is more than its weights: save it without n_draws")
    kept, network = [], known.model
    for network in known.draws(n_draws):
        kept.append(pack(network))
    fixed = SnapshotPosterior(network, kept)
    fixed.temperature = known.temperature
    return fixed


def _of_posterior(posterior: Posterior) -> dict[str, Any]:
    tree = {"posterior": code_name(type(posterior)), **posterior.to_tree()}
    if (model := tree.pop("network", None)) is not None:
        # Whether draws get statistics of batch normalisation of their own.
        tracked = any(isinstance(m, BatchNorm) and m.track_running_stats for m in posterior.model.modules())
        tree["refreshes"] = posterior.refresh is not None and tracked
        tree |= _of_network(model, with_state="states" not in tree)
    return tree if posterior.temperature == 1 else tree | {"temperature": float(posterior.temperature)}


def _of_network(model: nn.Module, *, with_state: bool = True) -> dict[str, Any]:
    """How a network was converted, and its state."""
    model = unwrapped(model)
    model = model.module if isinstance(model, Averaged) else model
    weights = sparse_weights(model)
    kinds = {type(weight) for weight in weights.values()}
    if len(kinds) > 1:
        raise TypeError(
            f"a network with weights of {len(kinds)} kinds cannot be saved as it is: save draws of it, "
            "gossamer.save(model, file, n_draws=20)"
        )
    if weights:
        first = next(iter(weights.values()))
        first.blank(first.support, first.mean)  # as a reader of the file will do: a kind without it is refused now
    layers: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, SparseModule) and not any(name.startswith(f"{layer}.") for layer in layers):
            layers.append(name)
    shares = [name for name, weight in weights.items() if weight.support.shares_budget]
    made = {"layers": layers, "weight": code_name(kinds.pop()) if kinds else "", "shares_budget": shares}
    return {"network": made, **({"states": [pack(model)]} if with_state else {})}


def _in_precision(node: Any, dtype: Precision | None, name: str = "") -> Any:
    """The tree with its numbers in a precision; what a layer keeps beside its tensors stays exact."""
    if isinstance(node, Posterior):
        return _in_precision(_of_posterior(node), dtype)
    if name.endswith("_extra_state"):
        return node
    if isinstance(node, dict):
        return {key: _in_precision(value, dtype, str(key)) for key, value in node.items()}
    if isinstance(node, list):
        return [_in_precision(value, dtype) for value in node]
    is_number = dtype is not None and isinstance(node, Tensor) and node.is_floating_point()
    return node.to(torch.bfloat16 if dtype == "bf16" else torch.float32) if is_number else node


def _posterior(entries: Entries, model: nn.Module, refresh: Refreshing | None) -> Posterior:
    """The posterior that a tree describes, with ``model`` for its network."""
    kind = _class(entries, "posterior", Posterior)  # type: ignore[type-abstract]
    try:
        posterior = kind.from_tree(_Saved(entries, model, refresh))
    except TypeError as error:
        raise entries.error("posterior", f"cannot be loaded: {error}") from error
    if "temperature" in entries.content:
        posterior.temperature = entries.get("temperature", float)
        if not 0 < posterior.temperature < math.inf:
            raise entries.error("temperature", "must be positive")
    return posterior


class _Saved(Saved):
    """A posterior in a file, and the network that it is loaded into."""

    def __init__(self, entries: Entries, model: nn.Module, refresh: Refreshing | None) -> None:
        super().__init__(entries.path, entries.content, entries.name)
        self.model, self.refresh = model, refresh

    def network(self, prepare: Callable[[nn.Module], nn.Module] | None = None) -> nn.Module:
        if self.get("refreshes", bool) and self.refresh is None:
            raise self.error(
                "refreshes", "says that batch normalisation is refreshed for each draw",
                "pass refresh=gossamer.posterior.Refresh(inputs), or save fixed draws, gossamer.save(…, n_draws=20)",
            )  # fmt: skip
        return _network(self, self.model if prepare is None else prepare(self.model))

    def posteriors(self, key: str) -> list[Posterior]:
        return [_posterior(member, replica(self.model), self.refresh) for member in self.each(key)]


def _class(entries: Entries, key: str, base: type[_Kind]) -> type[_Kind]:
    name = entries.get(key, str)
    return named_class(base, FORMERLY.get(name, name), f"{entries.path}: {entries.name}{key}")


def _network(entries: Entries, model: nn.Module) -> nn.Module:
    """The network, converted as the file says, with the last state of the file; all of them are checked."""
    made = entries.inside("network")
    layers = made.get("layers", list[str])
    if layers:
        is_plain = not sparse_weights(model)
        model = _converted(made, layers, model)
        if is_plain and any(isinstance(weight, DeltaWeight) for weight in sparse_weights(model).values()):
            held = {name for state in entries.each("states") for name in state.content}
            freeze(model, {id(one) for name, one in model.named_parameters(remove_duplicate=False) if name in held})
    elif sparse_weights(model):
        raise made.error("layers", "names no layer, but the network that was given is converted", "give the plain one")
    for state in entries.each("states"):
        slots = _slots(model)
        checked = {name: _checked(state, name, slots.get(name)) for name in state.content}
        try:
            model.load_state_dict(checked)
        except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            reason = " ".join(str(error).split())[:300]
            raise entries.error("states", f"do not fit the network: {reason}", OTHER_NETWORK) from error
        for name, values, least in _numbers(model):
            if not bool(values.isfinite().all()) or bool((values < least).any()):
                raise entries.error("states", f"leave {name} with numbers that no training leaves", "save another")
    weights = sparse_weights(model)
    for name in made.get("shares_budget", list[str]):
        if name in weights:
            weights[name].support.shares_budget = True
    return model


def _numbers(model: nn.Module) -> Iterator[tuple[str, Tensor, float]]:
    """All parameters, standard deviations and statistics, and the least that each may be."""
    yield from ((name, values, -math.inf) for name, values in model.named_parameters() if values.is_floating_point())
    for name, weight in sparse_weights(model).items():
        try:
            std = weight.std
        except (ArithmeticError, ValueError):
            std = weight.mean.new_tensor(math.nan)  # of a calibration that has no root, for one
        if std is not None:
            yield f"{name}.std", std, 0.0
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm) and module.running_mean is not None and module.running_var is not None:
            yield f"{name}.running_mean", module.running_mean, -math.inf
            yield f"{name}.running_var", module.running_var, 0.0


def _converted(made: Entries, layers: list[str], model: nn.Module) -> nn.Module:
    kind = _class(made, "weight", SparseWeight)  # type: ignore[type-abstract]
    weights = sparse_weights(model).values()
    if weights:
        if any(type(weight) is not kind for weight in weights):
            raise made.error(
                "weight", f"is {kind.__name__}, but the network that was given has others", "give the plain network"
            )
        return model
    try:
        convertible = [item.name for item in find(model)]
    except ValueError as error:
        raise made.error("layers", f"cannot be converted: {error}", OTHER_NETWORK) from error
    if missing := sorted(set(layers) - set(convertible)):
        raise made.error("layers", f"names {missing[0]!r:.50}, which the network does not have", OTHER_NETWORK)
    others = [name for name in convertible if name not in layers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that stay plain: they were plain before
        return convert(model, lambda dense, support: kind.blank(support, dense.values), exclude=others)


class _Slot(NamedTuple):
    """What an entry of a state may be: of a shape, or a vector of at most so many numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...] | None
    most: int = 0


def _slots(model: nn.Module) -> dict[str, _Slot | None]:
    """By name, what the network can load; ``None`` for what a module keeps by ``get_extra_state`` besides tensors."""
    slots: dict[str, _Slot | None] = {
        name: _Slot(entry.dtype, tuple(entry.shape)) if isinstance(entry, Tensor) else None
        for name, entry in model.state_dict().items()
    }
    for prefix, weight in model.named_modules(remove_duplicate=False):
        if isinstance(weight, SparseWeight):  # another number of its entries may be active
            most = math.prod(weight.support.shape)
            for name in weight.vectors:
                slots[f"{prefix}.{name}"] = _Slot(getattr(weight, name).dtype, None, most)
            slots[f"{prefix}.support.position"] = _Slot(torch.int64, None, most)
            if slots.get(f"{prefix}._extra_state"):  # the same kind had fewer numbers there in earlier versions
                slots[f"{prefix}._extra_state"] = _Slot(torch.float64, None, MOST_EXTRA)
    return slots


def _checked(state: Entries, name: str, slot: _Slot | None) -> Any:
    entry = state.content[name]
    if not isinstance(name, str):
        raise state.error(str(name), "is not a name")
    if isinstance(entry, dict) and "other" in entry:
        if slot is not None:
            raise state.error(name, "must be a tensor", OTHER_NETWORK)
        return entry["other"]
    if slot is None:
        raise state.error(name, "is not in the network", OTHER_NETWORK)
    if isinstance(entry, dict):
        return _unpacked(Entries(state.path, entry, f"{state.name}{name}/"), slot)
    tensor = state.get(name, Tensor)
    _check(state, name, tensor.dtype, tuple(tensor.shape), slot)
    if bool(tensor.isnan().any()):
        raise state.error(name, "has entries that are no numbers (NaN)")
    return tensor


def _unpacked(packed: Entries, slot: _Slot) -> Tensor:
    """A tensor that was stored without its zeros."""
    shape, position, value = packed.get("shape", list), packed.get("position", Tensor), packed.get("value", Tensor)
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise packed.error("shape", "must be whole numbers")
    _check(packed, "value", value.dtype, tuple(shape), slot)
    if position.dtype not in (torch.int32, torch.int64) or position.dim() != 1 or position.shape != value.shape:
        raise packed.error("position", "must be one whole number per value")
    if len(position) and not 0 <= int(position.min()) <= int(position.max()) < math.prod(shape):
        raise packed.error("position", "is outside the tensor")
    tensor: Tensor = unpack({"": packed.content})[""]
    return tensor


def _check(entries: Entries, name: str, dtype: torch.dtype, shape: tuple[int, ...], slot: _Slot) -> None:
    fits = dtype.is_floating_point if slot.dtype.is_floating_point else dtype == slot.dtype
    if slot.shape is None and not slot.dtype.is_floating_point:  # positions have the smallest of two types
        fits = dtype in (torch.int32, torch.int64)
    if not fits:
        raise entries.error(name, f"has the type {dtype}, the network {slot.dtype}", OTHER_NETWORK)
    if shape != slot.shape and (slot.shape is not None or len(shape) != 1 or shape[0] > slot.most):
        wanted = f"a vector of at most {slot.most}" if slot.shape is None else str(slot.shape)
        raise entries.error(name, f"has the shape {shape!s:.50}, the network {wanted}", OTHER_NETWORK)
