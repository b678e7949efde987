"""Trained networks and posteriors in one safetensors file, without pickle.

A file has the numbers and how the network was converted; the code of the network is yours. Active weights only are
stored, their positions as differences in the smallest integers that hold them.
"""

from __future__ import annotations

import importlib
import math
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from gossamer.convert import convert
from gossamer.files import container
from gossamer.files.schema import Entries
from gossamer.layers import SparseModule, SparseWeight, find, replica, sparse_weights
from gossamer.methods.laplace import LastLayerPosterior
from gossamer.methods.mc_dropout import with_dropout
from gossamer.methods.rank1 import FactorPosterior, Rank1, with_factors
from gossamer.posterior import (
    Averaged,
    Dropped,
    GaussianPosterior,
    InLayers,
    LocalPasses,
    Mixture,
    SingleNetwork,
    SnapshotPosterior,
    SwagPosterior,
)
from gossamer.posterior.batchnorm import BatchNorm
from gossamer.posterior.draw import unwrapped
from gossamer.posterior.dropout import dropout_layers
from gossamer.posterior.in_layers import Refreshing
from gossamer.posterior.snapshots import pack, unpack
from gossamer.types import Posterior

__all__ = ["load", "save"]

Precision = Literal["float32", "bf16"]

KIND = "gossamer network"
FORMAT = 1
HOMES = {  # kind of weight -> where its class is: a file cannot name any other code
    "PointWeight": "gossamer.layers",
    "GaussianWeight": "gossamer.layers",
    "CurvatureWeight": "gossamer.layers",
    "LogUniformWeight": "gossamer.methods.vd",
    "ScaledWeight": "gossamer.methods.bayes_compression",
    "SpikeSlabWeight": "gossamer.methods.svbnn",
    "GatedWeight": "gossamer.methods.sbp",
}
MOST_EXTRA = 100  # numbers that a weight keeps besides its vectors
PLAIN: dict[str, Any] = {"InLayers": InLayers, "SingleNetwork": SingleNetwork, "LocalPasses": LocalPasses}
OTHER_NETWORK = "give gossamer.load the network that was saved, built by the same code with the same sizes"


def save(
    posterior: Posterior | nn.Module,
    file: Path | str,
    *,
    dtype: Precision | None = None,
    n_draws: int | None = None,
) -> Path:
    """Write a posterior or a network, plain or converted, to one safetensors file; :func:`load` reads it.

    Args:
        posterior: What :func:`gossamer.fit` or :func:`gossamer.load_run` returned, or a network.
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
        >>> gossamer.active_parameters(again) == gossamer.active_parameters(model)
        True
    """
    if not isinstance(posterior, nn.Module | Posterior):
        raise TypeError(f"save takes a posterior or a network, not a {type(posterior).__name__}; an estimator has save")
    if dtype is not None and dtype not in get_args(Precision):
        raise ValueError(f"dtype must be 'float32', 'bf16' or None; got {dtype!r}")
    if n_draws is not None:
        posterior = _fixed(posterior, n_draws)
    part = _of_network(posterior) if isinstance(posterior, nn.Module) else _of_posterior(posterior)
    container.write(Path(file), KIND, FORMAT, {"content": _in_precision(part, dtype)})
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
    if isinstance(known, Dropped):
        raise ValueError("a draw of dropout is not a set of weights: save the posterior itself, without n_draws")
    kept, network = [], known.model
    for network in known.draws(n_draws):
        kept.append(pack(network))
    fixed = SnapshotPosterior(network, kept)
    fixed.temperature = known.temperature
    return fixed


def _of_posterior(posterior: Posterior) -> dict[str, Any]:
    """A posterior as a tree for a file."""
    calibrated = {} if posterior.temperature == 1 else {"temperature": float(posterior.temperature)}
    return _distribution_of(posterior) | calibrated


def _distribution_of(posterior: Posterior) -> dict[str, Any]:
    """What a posterior draws from."""
    name = type(posterior).__name__
    if isinstance(posterior, Mixture):
        return {"posterior": name, "members": [_of_posterior(member) for member in posterior.posteriors]}
    parts: dict[str, Any] = {}
    if type(posterior) is SnapshotPosterior:
        parts = {"states": posterior.kept}
    elif type(posterior) is GaussianPosterior:
        parts = {"stds": {name: std * math.sqrt(posterior.width) for name, std in posterior.stds.items()}}
    elif type(posterior) is SwagPosterior:  # the network is at the mean
        parts = {"var": posterior.var, "deviations": posterior.deviations, "scale": float(posterior.scale)}
    elif type(posterior) is LastLayerPosterior:
        parts = {"layer": posterior.layer, "mean": posterior.mean, "spread": posterior.dense_spread()}
    elif type(posterior) is Dropped:
        parts = {"rates": [float(layer.p) for layer in dropout_layers(posterior.model)]}
    elif type(posterior) not in (*PLAIN.values(), FactorPosterior):
        raise TypeError(
            f"a {name} cannot be saved as it is: save draws of it, gossamer.save(posterior, file, n_draws=20)"
        )
    network = _of_network(posterior.model, with_state="states" not in parts)
    return {"posterior": name, "refreshes": _refreshes(posterior), **network, **parts}


def _of_network(model: nn.Module, *, with_state: bool = True) -> dict[str, Any]:
    """How a network was converted, and its state."""
    model = unwrapped(model)
    model = model.module if isinstance(model, Averaged) else model
    weights = sparse_weights(model)
    kinds = {type(weight).__name__ for weight in weights.values()}
    if len(kinds) > 1 or not kinds <= set(HOMES):
        raise TypeError(
            f"networks with weights of the kinds {', '.join(sorted(kinds))} cannot be saved as they are: save draws of "
            "it, gossamer.save(model, file, n_draws=20)"
        )
    layers: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, SparseModule) and not any(name.startswith(f"{layer}.") for layer in layers):
            layers.append(name)
    shares = [name for name, weight in weights.items() if weight.support.shares_budget]
    made = {"layers": layers, "weight": kinds.pop() if kinds else "", "shares_budget": shares}
    return {"network": made, **({"states": [pack(model)]} if with_state else {})}


def _in_precision(node: Any, dtype: Precision | None, name: str = "") -> Any:
    """The tree with its numbers in a precision; what a layer keeps beside its tensors stays exact."""
    if dtype is None or name.endswith("_extra_state"):
        return node
    if isinstance(node, dict):
        return {key: _in_precision(value, dtype, str(key)) for key, value in node.items()}
    if isinstance(node, list):
        return [_in_precision(value, dtype) for value in node]
    is_number = isinstance(node, Tensor) and node.is_floating_point()
    return node.to(torch.bfloat16 if dtype == "bf16" else torch.float32) if is_number else node


def _refreshes(posterior: Posterior) -> bool:
    """Whether draws get statistics of batch normalisation of their own."""
    tracked = any(isinstance(m, BatchNorm) and m.track_running_stats for m in posterior.model.modules())
    return posterior.refresh is not None and tracked


def _posterior(entries: Entries, model: nn.Module, refresh: Refreshing | None) -> Posterior:
    """The posterior that a tree describes, with ``model`` for its network."""
    posterior = _distribution(entries, model, refresh)
    if "temperature" in entries.content:
        posterior.temperature = entries.get("temperature", float)
        if not 0 < posterior.temperature < math.inf:
            raise entries.error("temperature", "must be positive")
    return posterior


def _distribution(entries: Entries, model: nn.Module, refresh: Refreshing | None) -> Posterior:
    """What the posterior of a tree draws from."""
    name = entries.get("posterior", str)
    if name == "Mixture":
        members = entries.each("members")
        return Mixture([_posterior(member, replica(model), refresh) for member in members])
    if entries.get("refreshes", bool) and refresh is None:
        raise entries.error(
            "refreshes", "says that batch normalisation is refreshed for each draw",
            "pass refresh=gossamer.posterior.Refresh(inputs), or save fixed draws, gossamer.save(…, n_draws=20)",
        )  # fmt: skip
    if name == "Dropped":
        return Dropped(_network(entries, _with_rates(entries, model)), refresh=refresh)
    if name == "FactorPosterior":
        return FactorPosterior(_network(entries, _with_members(entries, model)))
    model = _network(entries, model)
    if name in PLAIN:
        posterior: Posterior = PLAIN[name](model, refresh=refresh)
        return posterior
    if name == "SnapshotPosterior":
        return SnapshotPosterior(model, [part.content for part in entries.each("states")], refresh)
    if name == "GaussianPosterior":
        parameters = dict(model.named_parameters())
        stds = entries.inside("stds")
        return GaussianPosterior(model, {key: _like(stds, key, parameters.get(key)) for key in stds.content}, refresh)
    if name == "SwagPosterior":
        mean = parameters_to_vector(model.parameters()).detach()
        var, deviations = _like(entries, "var", mean), _like(entries, "deviations", mean, rows=True)
        if entries.get("scale", float) < 0 or bool((var < 0).any()):
            raise entries.error("scale", "and var must not be negative")
        return SwagPosterior(model, mean, var, deviations, entries.get("scale", float), refresh)
    if name == "LastLayerPosterior":
        return _last_layer(entries, model)
    raise entries.error("posterior", f"is {name!r:.30}, which this version does not know", "upgrade gossamer")


def _network(entries: Entries, model: nn.Module) -> nn.Module:
    """The network, converted as the file says, with the last state of the file; all of them are checked."""
    made = entries.inside("network")
    layers, kind = made.get("layers", list[str]), made.get("weight", str)
    if layers:
        model = _converted(made, layers, kind, model)
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
    weights = sparse_weights(model)
    for name in made.get("shares_budget", list[str]):
        if name in weights:
            weights[name].support.shares_budget = True
    return model


def _converted(made: Entries, layers: list[str], kind: str, model: nn.Module) -> nn.Module:
    if kind not in HOMES:
        raise made.error(
            "weight", f"is {kind!r:.30}, a kind of weight that this version does not know", "upgrade gossamer"
        )
    weights = sparse_weights(model).values()
    if weights:
        if any(type(weight).__name__ != kind for weight in weights):
            raise made.error(
                "weight", f"is {kind}, but the network that was given has others", "give the plain network"
            )
        return model
    weight_class: type[SparseWeight] = getattr(importlib.import_module(HOMES[kind]), kind)
    try:
        convertible = [item.name for item in find(model)]
    except ValueError as error:
        raise made.error("layers", f"cannot be converted: {error}", OTHER_NETWORK) from error
    if missing := sorted(set(layers) - set(convertible)):
        raise made.error("layers", f"names {missing[0]!r:.50}, which the network does not have", OTHER_NETWORK)
    others = [name for name in convertible if name not in layers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that stay plain: they were plain before
        return convert(model, lambda dense, support: weight_class.blank(support, dense.values), exclude=others)


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
    """An entry of a state as the network loads it."""
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
    return tensor


def _unpacked(packed: Entries, slot: _Slot) -> Tensor:
    """A tensor that was stored without its zeros."""
    shape, position, value = packed.get("shape", list), packed.get("position", Tensor), packed.get("value", Tensor)
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise packed.error("shape", "must be whole numbers")
    _check(packed, "value", value.dtype, tuple(shape), slot)
    whole = position.dtype in (torch.int32, torch.int64)
    if not whole or position.dim() != 1 or position.shape != value.shape:
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


def _like(entries: Entries, key: str, like: Tensor | None, *, rows: bool = False) -> Tensor:
    """A tensor of the shape of ``like``, or with several rows of that shape."""
    if like is None:
        raise entries.error(key, "is not a parameter of the network", OTHER_NETWORK)
    tensor = entries.get(key, Tensor)
    shape = tensor.shape[1:] if rows else tensor.shape
    if shape != like.shape or (rows and not tensor.dim()) or not tensor.is_floating_point():
        raise entries.error(key, f"has the shape {tuple(tensor.shape)}, the network {tuple(like.shape)}", OTHER_NETWORK)
    return tensor.to(like)


def _last_layer(entries: Entries, model: nn.Module) -> LastLayerPosterior:
    layer = entries.get("layer", str)
    if layer not in dict(model.named_modules()):
        raise entries.error("layer", f"is {layer!r:.50}, which the network does not have", OTHER_NETWORK)
    mean = _like(entries, "mean", parameters_to_vector(model.get_submodule(layer).parameters()).detach())
    spread = _like(entries, "spread", mean, rows=entries.get("spread", Tensor).dim() == 2)
    if spread.dim() == 2 and len(spread) != len(mean):
        raise entries.error("spread", "must be a vector or a square matrix")
    return LastLayerPosterior(model, layer, mean, spread)


def _with_rates(entries: Entries, model: nn.Module) -> nn.Module:
    """The network with dropout at the rates of the file."""
    rates = entries.get("rates", list)
    try:
        model = with_dropout(model)
    except ValueError as error:
        raise entries.error("rates", f"cannot be set: {error}", OTHER_NETWORK) from error
    layers = dropout_layers(model)
    if len(rates) != len(layers) or not all(isinstance(rate, float) and 0 <= rate <= 1 for rate in rates):
        raise entries.error("rates", f"must be {len(layers)} numbers from 0 to 1", OTHER_NETWORK)
    for layer, rate in zip(layers, rates, strict=True):
        layer.p = rate
    return model


def _with_members(entries: Entries, model: nn.Module) -> nn.Module:
    """The network with factors for as many members as the file has."""
    if any(isinstance(module, Rank1) for module in model.modules()):
        return model
    tensors = {name: value for name, value in entries.each("states")[0].content.items() if isinstance(value, Tensor)}
    members = {len(value) for name, value in tensors.items() if str(name).endswith("input.mean") and value.dim() == 2}
    # As many numbers as the network will have: a file cannot ask for more memory than it fills.
    sizes = sum(sum(m.weight.shape[:2]) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    if len(members) != 1 or 0 in members or max(members) * sizes > sum(map(torch.numel, tensors.values())):
        raise entries.error("states", "must have factors of the same number of members for each layer", OTHER_NETWORK)
    try:
        return with_factors(model, members.pop())
    except ValueError as error:
        raise entries.error("states", f"cannot be loaded: {error}", OTHER_NETWORK) from error
