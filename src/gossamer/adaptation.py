"""A sparse posterior on a pretrained network: a Gaussian change of a few of its weights, and nothing else.

The network stays as it is, in its own precision. A small share of the entries of the targeted weights gets a change
N(μ, σ²) with the prior N(0, s₀²), and the subspace moves: an entry that is removed has its pretrained value again.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gossamer._text.names import lookup, suggestion
from gossamer.layers import DeltaWeight, DenseWeight, Found, SparseModule, Support, find
from gossamer.layers.delta import freeze
from gossamer.layers.swap import FROZEN, rule_like, why_left_alone
from gossamer.sparsity.allocation import ALLOCATION
from gossamer.sparsity.convert import (
    PRETRAINED_STD,
    check_choice,
    check_density,
    check_model,
    check_positive,
    replace,
    rms,
)
from gossamer.types import Allocation, Noise

Target = str | Callable[[str, nn.Module], bool]
Start = Literal["random", "largest"]
Rest = Literal["point", "posterior"]
Patch = dict[str, tuple[Tensor | None, Tensor]]
"""By the name of a parameter or buffer: flat positions and what to write there; no positions where it is all of it."""

LAYERS = ("linear", "conv", "attention")  # what is adapted unless the caller says otherwise
PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def adapt(
    model: nn.Module,
    density: float = 0.005,
    *,
    targets: Target | Sequence[Target] = LAYERS,
    dense: str | Sequence[str] = ("classifier",),
    rest: Rest = "point",
    prior_std: float | None = None,
    init_std: float | None = None,
    allocation: str | Allocation = "uniform",
    start: Start = "random",
    noise: Noise = "weights",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Freeze a pretrained ``model`` and give a share ``density`` of its targeted weights a change with a distribution.

    The model is changed in place and predicts as before until it is trained; its weights are neither copied nor
    written to. Train it as any converted network, with :func:`gossamer.param_groups`, :class:`gossamer.Curvature` and
    :class:`gossamer.Subspace`. :func:`gossamer.save` then writes the changes alone, and
    ``gossamer.draw(model, at_mean=True)`` is a plain network with the changes merged into it.

    Args:
        model: A plain network, trained before.
        density: Share of the entries of each targeted weight that may change.
        targets: Which layers: kinds (``"linear"``, ``"conv"``, ``"embedding"``, ``"attention"``, ``"recurrent"``),
            names or patterns of names (``"*.query"``), or functions of a name and a module.
        dense: Names or patterns of modules and parameters that train as a whole, such as a new head or ``"*.bias"``.
            All else is frozen.
        rest: ``"posterior"`` gives the weights of layers named by ``dense`` a distribution around their first values;
            ``"point"`` trains them as usual.
        prior_std: s₀; ``None`` takes the root mean square of the pretrained weights of each layer. With
            ``Curvature(weight_decay=…)`` it follows from that.
        init_std: Initial σ of every change; ``None`` takes a twentieth of that root mean square.
        allocation: How the budget is divided among layers, as in :func:`gossamer.bayesianize`.
        start: The first entries: a random choice, or those of the largest weights.
        noise: What a pass in ``train()`` mode draws, as in :func:`gossamer.bayesianize`. One draw of the changes for
            the whole batch is the default, which is exact for words and pixels too, and one product instead of two.
        generator: Random generator for the choice of entries.

    Example:
        >>> import gossamer
        >>> net = nn.Sequential()
        >>> net.body, net.classifier = nn.Linear(100, 50), nn.Linear(50, 3)
        >>> x, before = torch.randn(4, 100), net.body.weight
        >>> net = gossamer.adapt(net, density=0.01)
        >>> gossamer.layers.active_parameters(net), net.body.weight.base.data_ptr() == before.data_ptr()
        (50, True)
        >>> [name for name, parameter in net.named_parameters() if parameter.requires_grad]
        ['body.weight.mean', 'classifier.weight', 'classifier.bias']
    """
    check_model(model)
    check_density(density)
    for name, choice, known in (("rest", rest, Rest), ("start", start, Start), ("noise", noise, Noise)):
        check_choice(name, choice, get_args(known))
    for name, value in (("prior_std", prior_std), ("init_std", init_std)):
        check_positive(name, value)
    _check_precision(model)
    patterns = [dense] if isinstance(dense, str) else list(dense)
    trained = _matching(model, patterns)
    chosen = _chosen(model, [targets] if isinstance(targets, str) or callable(targets) else list(targets))

    def wanted(name: str, module: nn.Module, kind: type[SparseModule]) -> bool:
        whole = all(id(weight.tensor) in trained for weight in kind.dense_weights(module))
        return rest == "posterior" if whole else chosen(name, module, kind)

    _check_targets(model, wanted, targets)
    found = find(model, wanted=wanted)
    whole = {item.name for item in found if all(id(weight.tensor) in trained for weight in item.weights)}
    total = sum(weight.tensor.numel() for item in found if item.name not in whole for weight in item.weights)
    if round(density * total) < 1:
        raise ValueError(
            f"density={density} leaves none of the {total:,} targeted weights to change: take a larger one"
        )
    _name_the_rest(model, wanted, found)

    def delta(dense: DenseWeight, support: Support) -> DeltaWeight:
        scale = rms(dense.values) or 1.0
        std, prior = init_std or PRETRAINED_STD * scale, prior_std or scale
        return DeltaWeight(support, dense.values, std, prior, noise)

    init: Literal["pretrained", "pretrained_random"] = "pretrained" if start == "largest" else "pretrained_random"
    budget = lookup("allocation", allocation, ALLOCATION)
    adapted = replace(model, found, whole, delta, density, budget, init, generator)
    freeze(adapted, trained)
    return adapted


def _check_precision(model: nn.Module) -> None:
    for name, module in model.named_modules():
        of_torch = "quantized" in type(module).__module__
        for part, tensor in module.named_parameters(recurse=False):
            if tensor.dtype not in PRECISIONS or type(tensor.data) is not Tensor or of_torch:
                kind = tensor.dtype if type(tensor.data) is Tensor else type(tensor.data).__name__
                raise ValueError(
                    f"{name}.{part} is quantized or of a kind that cannot be adapted ({kind}): load the network in "
                    "float32, bfloat16 or float16"
                )
        if of_torch:
            raise ValueError(f"{name} is quantized ({type(module).__name__}): adapt the network before it is quantized")


def _matching(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """The parameters, by ``id``, that are called like a pattern or are in a module that is."""
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    matched: set[int] = set()
    for pattern in patterns:
        hits = [part for name, module in modules.items() if fnmatchcase(name, pattern) for part in module.parameters()]
        hits += [parameter for name, parameter in parameters.items() if fnmatchcase(name, pattern)]
        if not hits:
            hint = suggestion(pattern, [*modules, *parameters], n=3)
            raise ValueError(
                f"dense={pattern!r} is no part of this model that has parameters{hint or '; name its new head,'} or "
                "pass dense=() if nothing is to train as a whole"
            )
        matched |= {id(parameter) for parameter in hits}
    return matched


Chosen = Callable[[str, nn.Module, type[SparseModule]], bool]


def _chosen(model: nn.Module, targets: Sequence[Target]) -> Chosen:
    """Whether a layer is one of the ``targets``; a name that nothing has is an error."""
    layers = _layers(model)
    kinds = {kind.kind for kind in _all_kinds(SparseModule)}
    for target in targets:
        if isinstance(target, str) and target not in kinds and not any(fnmatchcase(name, target) for name in layers):
            hint = suggestion(target, [*kinds, *filter(None, layers)], n=3)
            raise ValueError(
                f"targets={target!r} is neither a kind of layer ({', '.join(sorted(kinds))}) nor the name of a layer "
                f"of this model{hint}"
            )

    def chosen(name: str, module: nn.Module, kind: type[SparseModule]) -> bool:
        return any(
            (target == kind.kind or fnmatchcase(name, target)) if isinstance(target, str) else target(name, module)
            for target in targets
        )

    return chosen


def _layers(model: nn.Module) -> dict[str, tuple[nn.Module, type[SparseModule]]]:
    """The layers that are of a kind that can be adapted, whether they themselves can or not."""
    return {name: (module, kind) for name, module in model.named_modules() if (kind := rule_like(module)) is not None}


def _all_kinds(kind: type[SparseModule]) -> Iterator[type[SparseModule]]:
    if "kind" in vars(kind):
        yield kind
    for part in kind.__subclasses__():
        yield from _all_kinds(part)


def _check_targets(model: nn.Module, wanted: Chosen, targets: object) -> None:
    layers = _layers(model)
    chosen = [module for name, (module, kind) in layers.items() if wanted(name, module, kind)]
    if not chosen:
        there = ", ".join(sorted({kind.kind for _, kind in layers.values()})) or "none that can be adapted"
        raise ValueError(f"no layer is a target: targets={targets!r:.100}, and the layers of this model are {there}")
    if all(why_left_alone(module) == FROZEN for module in chosen):
        raise ValueError(
            "all targeted layers are frozen (requires_grad=False): adapt freezes by itself, so call "
            "model.requires_grad_(True) first, or choose other targets"
        )


def _name_the_rest(model: nn.Module, wanted: Chosen, found: Sequence[Found]) -> None:
    """Say once which targeted layers stay as they are."""
    inside = tuple(f"{item.name}." for item in found if item.name)  # of layers that are replaced as a whole
    reasons = {
        name: why_left_alone(module)
        for name, (module, kind) in _layers(model).items()
        if wanted(name, module, kind) and not name.startswith(inside)
    }
    left = "; ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
    if left:
        warnings.warn(f"not adapted although a target: {left}", stacklevel=3)


def patch(model: nn.Module, seed: int | None = None) -> Patch:
    """One draw of an adapted network as what it changes: ``{name: (positions, values)}``; the means without a seed.

    Positions are flat in the parameters of the plain network, and values replace what is there. Parameters that train
    as a whole, and buffers, have no positions. ``patch(model, seed)`` makes of the pretrained network what
    ``gossamer.draw(model, torch.Generator().manual_seed(seed))`` is.

    Example:
        >>> import gossamer
        >>> plain = nn.Linear(100, 10)
        >>> x, before = torch.randn(3, 100), plain.weight.detach().clone()
        >>> net = gossamer.adapt(plain, density=0.01, dense=())
        >>> one = patch(net, seed=7)
        >>> {name: (positions.dtype, values.shape) for name, (positions, values) in one.items()}
        {'weight': (torch.int32, torch.Size([10]))}
        >>> again = nn.Linear(100, 10)
        >>> again.load_state_dict({"weight": before, "bias": net.bias})
        <All keys matched successfully>
        >>> with patched(again, one):
        ...     torch.equal(again(x), gossamer.draw(net, torch.Generator().manual_seed(7))(x))
        True
        >>> torch.equal(again.weight, before)
        True
    """
    weights = [module for module in model.modules() if isinstance(module, DeltaWeight)]
    if not weights:
        raise ValueError("patch takes a network that gossamer.adapt has made; this one has no changes")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    drawn: Patch = {}
    with torch.no_grad():
        changes = {w: w.expected() if generator is None else w.sample(generator, w.std) for w in weights}
        values = {weight: weight.rest.entries(weight.support, change) for weight, change in changes.items()}
        for name, part in _parts(model):
            if isinstance(part, tuple):
                weight, transposed = part
                if weight in values:  # tied weights are one parameter of the plain network
                    drawn[name] = _positions(weight.support, transposed), values.pop(weight)
            else:
                drawn[name] = None, part.detach().clone()
    return drawn


def _positions(support: Support, transposed: bool) -> Tensor:
    """The positions in the weight or in its transpose, in the order of the entries."""
    position = support.positions(torch.device("cpu") if support.position is None else support.position.device)
    n_rows, n_columns = support.shape if transposed else (1, 1)
    return position % n_columns * n_rows + position // n_columns if transposed else position


@contextlib.contextmanager
def patched(model: nn.Module, changes: Patch) -> Iterator[nn.Module]:
    """The pretrained plain network with a :func:`patch` written into it, within a ``with`` block; then as it was."""
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, (positions, values) in changes.items():
        size = None if name not in tensors else tensors[name].numel()
        if (
            size is None
            or (positions is None and values.shape != tensors[name].shape)
            or (positions is not None and len(positions) and int(positions.max()) >= size)
        ):
            raise ValueError(
                f"this patch is for another network: it writes to {name!r}, which this one has not as large"
            )
    kept = {name: _written(tensors[name], positions, values) for name, (positions, values) in changes.items()}
    try:
        yield model
    finally:
        for name, (positions, _) in changes.items():
            _written(tensors[name], positions, kept[name])


def _written(tensor: Tensor, positions: Tensor | None, values: Tensor) -> Tensor:
    """Write into a tensor of any layout; what was there."""
    data = tensor.data  # what is written is undone: nobody need know
    if positions is None:
        before = data.clone()
        data.copy_(values)
        return before
    index = torch.unravel_index(positions.long().to(data.device), data.shape)
    before = data[index]
    data[index] = values.to(data)
    return before


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, tuple[DeltaWeight, bool] | Tensor]]:
    """What a patch changes, by its name in the plain network: weights, and whether they are transposed there."""
    if isinstance(module, SparseModule):
        for name, weight in module.named_weights().items():
            if isinstance(weight, DeltaWeight):
                yield prefix + name, (weight, module.transposes)
        yield from ((prefix + name, one) for name, one in module.named_rest().items() if one.requires_grad)
    else:
        own = module._parameters.items()
        yield from ((prefix + name, one) for name, one in own if one is not None and one.requires_grad)
        for name, child in module.named_children():
            yield from _parts(child, f"{prefix}{name}.")
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, buffer
