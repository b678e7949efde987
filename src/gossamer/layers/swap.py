"""Find the modules of any network that can be made sparse, and put sparse ones in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from gossamer.layers.attention import SparseAttention
from gossamer.layers.conv import SparseConv, SparseConvTranspose
from gossamer.layers.modules import DenseWeight, SparseEmbedding, SparseLinear, SparseModule
from gossamer.layers.recurrent import SparseRecurrent
from gossamer.layers.structure import rewire
from gossamer.layers.weight import SparseWeight
from gossamer.names import suggestion

__all__ = ["Found", "find", "match_names", "swap", "why_left_alone"]

SPARSE_MODULES: tuple[type[SparseModule], ...] = (
    SparseLinear,
    SparseConv,
    SparseConvTranspose,
    SparseEmbedding,
    SparseAttention,
    SparseRecurrent,
)
RULES = {plain: sparse for sparse in SPARSE_MODULES for plain in sparse.replaces}

RECOMPUTED = ("weight_g", "weight_v", "weight_orig")  # what the hooks of torch.nn.utils call the true parameter
NOTE = "gossamer_note"  # where a module that could have been converted remembers why it was not


class Found(NamedTuple):
    """A module that will be converted."""

    name: str
    module: nn.Module
    weights: list[DenseWeight]

    def weight_names(self) -> list[str]:
        """Names of its weights in the whole network, as :func:`gossamer.layers.weight.sparse_weights` gives them."""
        own = [weight.name for weight in self.weights]
        if own != ["weight"]:
            own = [name.removesuffix(".weight").removesuffix("_weight") for name in own]
            return [f"{self.name}.{name}".strip(".") for name in own]
        return [self.name]


def find(model: nn.Module, exclude: Sequence[str | type[nn.Module]] = ()) -> list[Found]:
    """The modules to convert, each once, in the order of ``named_modules``."""
    for item in exclude:
        if not isinstance(item, str | type):
            raise TypeError(f"exclude takes names and types of modules, got an instance of {type(item).__name__}")
    for module in model.modules():
        module.__dict__.pop(NOTE, None)  # of an earlier call, which may have excluded something else
    named = list(model.named_modules(remove_duplicate=False))
    matched = match_names([name for name, _ in named], [item for item in exclude if isinstance(item, str)], "exclude")
    excluded = {id(module) for name, module in named if name in matched}
    kinds = tuple(item for item in exclude if isinstance(item, type))
    found: list[Found] = []
    inside: list[str] = []  # prefixes below which nothing is looked at any more
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if id(module) in excluded or (kinds and isinstance(module, kinds)):
            _leave(module, "excluded by the caller")
            inside.append(name + ".")
        elif type(module) in RULES:
            inside.append(name + ".")
            reason = why_left_alone(module)
            if reason is None:
                _check_forward(name, module)
            if reason is None:
                found.append(Found(name, module, RULES[type(module)].dense_weights(module)))
            else:
                _leave(module, reason)
    return _without_half_tied(model, found)


def _without_half_tied(model: nn.Module, found: list[Found]) -> list[Found]:
    """Those whose weights no module uses that is left alone: converting one of two tied weights would part them."""
    converted = {id(module) for item in found for module in item.module.modules()}
    left = [module for module in model.modules() if id(module) not in converted]
    dense = {id(parameter) for module in left for parameter in module._parameters.values()}
    half_tied = [item for item in found if any(id(weight.tensor) in dense for weight in item.weights)]
    for item in half_tied:
        _leave(item.module, "its weight is tied to that of a module left alone")
    # Each of them is now left alone itself, and others may be tied to it.
    return _without_half_tied(model, [item for item in found if item not in half_tied]) if half_tied else found


def _check_forward(name: str, module: nn.Module) -> None:
    if "forward" in vars(module):
        where = f"{name}.forward" if name else "forward"
        raise ValueError(
            f"{where} of this {type(module).__name__} was replaced or wrapped (as accelerate's hooks do) and would "
            f"go on computing with the old weight: convert the model before it is wrapped, or pass exclude={name!r}"
        )


def _leave(module: nn.Module, reason: str) -> None:
    for part in module.modules():
        setattr(part, NOTE, reason)


def why_left_alone(module: nn.Module) -> str | None:
    """Why a plain module is not converted; ``None`` if it can be.

    Example:
        >>> why_left_alone(nn.BatchNorm1d(4))
        'no rule for BatchNorm1d: stays deterministic'
    """
    note = getattr(module, NOTE, None)
    if isinstance(note, str):
        return note
    kind = type(module)
    base = kind if kind in RULES else next((plain for plain in RULES if isinstance(module, plain)), None)
    if base is None:
        return f"no rule for {kind.__name__}: stays deterministic"
    parameters = dict(module.named_parameters())
    if any(is_lazy(parameter) for parameter in parameters.values()):
        return "its shape is not known yet: run one batch through the model first"
    if any(name.endswith(RECOMPUTED) or "parametrizations." in name for name in parameters):
        return "its weight is recomputed at each call (weight_norm, spectral_norm, pruning): remove that first"
    if kind is not base:
        return f"{kind.__name__} is a subclass of {base.__name__} and may compute something else"
    rule = RULES[kind]
    weights = rule.dense_weights(module)
    if not all(weight.tensor.requires_grad for weight in weights):
        return "frozen (requires_grad=False)"
    if not all(weight.tensor.is_floating_point() for weight in weights):
        return "its weight is not real"
    if any(weight.tensor.numel() == weight.frozen[1] - weight.frozen[0] for weight in weights):
        return "its weight has no entry that could be active"
    return rule.refusal(module)


def match_names(names: Sequence[str], patterns: Iterable[str], argument: str) -> set[str]:
    """The names that match any of the patterns; a pattern that matches nothing is an error that names the nearest."""
    matched: set[str] = set()
    for pattern in patterns:
        hits = {name for name in names if fnmatchcase(name, pattern)}
        if not hits:
            hint = suggestion(pattern, filter(None, names), n=3)
            raise ValueError(f"{argument}={pattern!r} matches no layer of this model{hint}")
        matched |= hits
    return matched


def swap(model: nn.Module, found: Sequence[Found], weights: Mapping[int, SparseWeight]) -> nn.Module:
    """Put sparse modules in place of those found; ``weights`` are by the ``id`` of the dense parameter they replace.

    A module or a parameter that is used in two places stays one, and its state is saved once.
    """
    replacement = {
        id(item.module): RULES[type(item.module)].from_dense(
            item.module, {dense.name: weights[id(dense.tensor)] for dense in item.weights}
        )
        for item in found
    }
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # it would hand nested tensors to layers that expect its fused path
    if id(model) in replacement:
        return replacement[id(model)]
    rewire(model, replacement)
    if _aliases(model):
        model.register_state_dict_post_hook(_drop_aliases)  # type: ignore[no-untyped-call]
        model.register_load_state_dict_pre_hook(_restore_aliases)  # type: ignore[no-untyped-call]
    return model


def _aliases(model: nn.Module) -> dict[str, str]:
    """Second and later names of modules with sparse weights -> their first name."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, SparseModule | SparseWeight) and first.setdefault(id(module), name) != name:
            aliases[name] = first[id(module)]
    return aliases


def _drop_aliases(model: nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    for alias in _aliases(model):
        for key in [key for key in state if key.startswith(f"{prefix}{alias}.")]:
            del state[key]


def _restore_aliases(model: nn.Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    for alias, name in _aliases(model).items():
        for key in [key for key in state if key.startswith(f"{prefix}{name}.")]:
            state.setdefault(f"{prefix}{alias}{key[len(prefix) + len(name) :]}", state[key])
