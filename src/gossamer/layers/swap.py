"""Find the modules of any network that can be made sparse, and put sparse ones in their place."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from gossamer._text.names import suggestion
from gossamer.layers.attention import SparseAttention
from gossamer.layers.modules import (
    DenseWeight,
    SparseConv,
    SparseConv1D,
    SparseConvTranspose,
    SparseEmbedding,
    SparseLinear,
    SparseModule,
)
from gossamer.layers.recurrent import SparseRecurrent
from gossamer.layers.structure import rewire
from gossamer.layers.weight import SparseWeight

SPARSE_MODULES: tuple[type[SparseModule], ...] = (
    SparseLinear,
    SparseConv,
    SparseConvTranspose,
    SparseEmbedding,
    SparseAttention,
    SparseRecurrent,
)
RULES = {plain: sparse for sparse in SPARSE_MODULES for plain in sparse.replaces}

# What a subclass may define and still compute what its base class does.
HARMLESS = {"__init__", "__repr__", "__constants__", "extra_repr", "reset_parameters", "_reset_parameters"}

RECOMPUTED = ("_g", "_orig")  # how the hooks of torch.nn.utils call the true parameter
EXCLUDED, FROZEN, NOT_WANTED = "excluded by the caller", "frozen (requires_grad=False)", "not a target"
NOTE = "gossamer_note"  # the attribute in which a module remembers why it was not converted


class Found(NamedTuple):
    """A module that will be converted."""

    name: str
    module: nn.Module
    rule: type[SparseModule]
    weights: list[DenseWeight]

    def weight_names(self) -> list[str]:
        """Names of its weights in the whole network, as :func:`gossamer.layers.weight.sparse_weights` gives them."""
        own = [weight.name.removesuffix("weight").rstrip("._") for weight in self.weights]
        return [f"{self.name}.{name}".strip(".") for name in own]


Wanted = Callable[[str, nn.Module, type[SparseModule]], bool]
"""Whether the module of this name is to be replaced by a sparse one of this kind."""


def find(model: nn.Module, exclude: Sequence[str | type[nn.Module]] = (), wanted: Wanted | None = None) -> list[Found]:
    """The modules to convert, each once, in the order of ``named_modules``; an error if there are none."""
    for item in exclude:
        if not isinstance(item, str | type):
            raise TypeError(f"exclude takes names and types of modules, got an instance of {type(item).__name__}")
    for module in model.modules():
        module.__dict__.pop(NOTE, None)  # left by an earlier call, which may have excluded other modules
    named = list(model.named_modules(remove_duplicate=False))
    matched = match_names([name for name, _ in named], [item for item in exclude if isinstance(item, str)], "exclude")
    excluded = {id(module) for name, module in named if name in matched}
    kinds = tuple(item for item in exclude if isinstance(item, type))
    found: list[Found] = []
    inside: list[str] = []  # prefixes of modules that are dealt with, including what is inside them
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        if id(module) in excluded or (kinds and isinstance(module, kinds)):
            _leave(module, EXCLUDED)
            inside.append(name + ".")
        elif (rule := rule_of(module)) is not None:
            inside.append(name + ".")
            reason = why_left_alone(module)
            if reason is None and wanted is not None and not wanted(name, module, rule):
                _leave(module, NOT_WANTED)
            elif reason is None:
                _check_forward(name, module)
                found.append(Found(name, module, rule, rule.dense_weights(module)))
            else:
                _leave(module, reason)
    found = _without_half_tied(model, found)
    if not found:
        raise ValueError(_nothing_to_convert(model))
    return found


def _nothing_to_convert(model: nn.Module) -> str:
    parts = [module for module in model.modules() if list(module.parameters(recurse=False))]
    found = "; ".join(sorted({why_left_alone(part) or "" for part in parts} - {""})) or "it has no parameters"
    return (
        "nothing in this model can be converted. Gossamer converts Linear, Conv, ConvTranspose, Embedding, "
        f"MultiheadAttention and RNN/GRU/LSTM layers. In this model: {found}"
    )


def _without_half_tied(model: nn.Module, found: list[Found]) -> list[Found]:
    """Drop layers that share a weight with one that is left alone: converting only one of them would untie them."""
    converted = {id(module) for item in found for module in item.module.modules()}
    left = [module for module in model.modules() if id(module) not in converted]
    dense = {id(parameter) for module in left for parameter in module._parameters.values()}
    half_tied = [item for item in found if any(id(weight.tensor) in dense for weight in item.weights)]
    for item in half_tied:
        _leave(item.module, "its weight is tied to that of a module left alone")
    # Each of these is now left alone itself, and other layers may be tied to it.
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
    """Why a plain module is not converted; ``None`` if it can be."""
    note = getattr(module, NOTE, None)
    if isinstance(note, str):
        return note
    kind, rule, base = type(module).__name__, rule_of(module), _base(type(module))
    if rule is None and base is None:
        return f"no rule for {kind}: stays deterministic"
    parameters = dict(module.named_parameters())
    if any(is_lazy(parameter) for parameter in parameters.values()):
        return "its shape is not known yet: run one batch through the model first"
    recomputed = [name for name in parameters if name.endswith(RECOMPUTED) or "parametrizations." in name]
    if recomputed:
        part = "bias" if all("bias" in name for name in recomputed) else "weight"
        return f"its {part} is recomputed at each call (weight_norm, spectral_norm, pruning): remove that first"
    if rule is None:
        assert base is not None
        return f"{kind} is a subclass of {base.__name__} and may compute something else"
    weights = rule.dense_weights(module)
    if not all(weight.tensor.requires_grad for weight in weights):
        return FROZEN
    if not all(weight.tensor.is_floating_point() for weight in weights):
        return "its weight is not real"
    if any(weight.tensor.numel() == weight.frozen[1] - weight.frozen[0] for weight in weights):
        return "its weight has no entry that could be active"
    return rule.refusal(module)


def rule_of(module: nn.Module) -> type[SparseModule] | None:
    """The sparse module that takes the place of ``module``; ``None`` where there is none.

    A subclass is converted as its base class if it overrides nothing that computes, and GPT-2's linear layer is known
    by its name, as transformers is not imported.
    """
    kind = type(module)
    if kind in RULES:
        return RULES[kind]
    if kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers."):
        return SparseConv1D
    base = _base(kind)
    return RULES[base] if base is not None and _computes_as(kind, base) else None


def rule_like(module: nn.Module) -> type[SparseModule] | None:
    """The sparse module that takes the place of ``module``, or of its base class if it may compute something else."""
    base = _base(type(module))
    return rule_of(module) or (None if base is None else RULES[base])


def _base(kind: type) -> type[nn.Module] | None:
    return next((part for part in kind.__mro__ if part in RULES), None)


def _computes_as(kind: type, base: type) -> bool:
    if kind is NonDynamicallyQuantizableLinear:  # torch's attention reads its weight, and does not call it
        return False
    own = {name for part in kind.__mro__[: kind.__mro__.index(base)] for name in vars(part)}
    ours = {name for name in own if hasattr(base, name) or name in ("weight", "bias")}
    return ours - HARMLESS <= set(dir(object)) | {"__module__", "__annotations__", "__abstractmethods__"}


def plain_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """The weights that stay dense, each once, with their module and its name.

    A weight is a parameter with at least two dimensions that belongs to no normalisation layer and to no converted
    module: biases, scales and shifts are not counted.
    """
    seen: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, SparseModule | SparseWeight) or "Norm" in type(module).__name__:
            continue
        for parameter in module.parameters(recurse=False):
            if not is_lazy(parameter) and parameter.dim() > 1 and id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, module, parameter


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
    replacement: dict[int, nn.Module] = {}
    for item in found:
        sparse = {dense.name: weights[id(dense.tensor)] for dense in item.weights}
        replacement[id(item.module)] = item.rule(item.module, sparse)  # type: ignore[call-arg]
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
