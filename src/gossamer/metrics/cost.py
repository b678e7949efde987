"""What a network costs in multiply-accumulates (MACs), for one example.

A layer with f dense MACs in a forward pass and the density d costs d f with a kernel that skips zeros. Training a
deterministic one takes 3 d f: the output, and the gradients of the input and of the weight. A Gaussian layer trained by
local reparametrisation has two products, of the means and of the variances, so 6 d f. A step that moves the subspace
also forms the dense gradient of the means, (1 − d) f, and so does every step of pruning with feedback, which trains
weights that the network does not use. The cost of a training is that of the densities that its steps had, not of the
last one. One MAC is two FLOPs: tables should say which they show.

Only products with weights, and between queries, keys and values, are counted: no biases, norms or activations.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

# (layer, its inputs by name, its output) -> MACs by the layer's own name of the weight
MacRule = Callable[[Any, dict[str, Any], Any], dict[str, int]]


class LayerCost(NamedTuple):
    """The facts that the cost of one weight depends on."""

    name: str
    kind: str  # for tables: the class of the layer
    dense_macs: float  # f, of one forward pass of one example without sparsity
    density: float = 1.0  # d
    bayesian: bool = False  # trained by local reparametrisation
    formed: float = 0.0  # share of the entries that no product uses, but whose gradient is formed


def inference_macs(layers: Iterable[LayerCost]) -> float:
    """MACs of one forward pass of the mean network or of one draw: Σ d f.

    Example:
        >>> inference_macs([LayerCost("stem", "Conv2d", 1000, 1.0), LayerCost("head", "Linear", 2000, 0.05, True)])
        1100.0
    """
    return float(sum(_checked(layer).density * layer.dense_macs for layer in layers))


def training_macs(layers: Iterable[LayerCost]) -> float:
    """MACs of one training step: Σ (c d + formed) f, with c = 6 for Bayesian layers and 3 for the others.

    Densities are averaged over the training.

    Example:
        >>> training_macs([LayerCost("stem", "Conv2d", 1000, 1.0), LayerCost("head", "Linear", 2000, 0.05, True)])
        3600.0
    """
    return sum(
        ((6 if _checked(layer).bayesian else 3) * layer.density + layer.formed) * layer.dense_macs for layer in layers
    )


def dense_macs(model: nn.Module, example: Any) -> dict[str, int]:
    """MACs of a forward pass of a plain network, by weight, as if no weight were zero.

    The products of linear layers, convolutions, attention and recurrent layers are counted; an embedding only looks up
    and has 0. Other products (``F.linear`` with a parameter of the network's own) are not seen. The network runs once
    in evaluation mode and is left unchanged.

    Args:
        model: A plain torch network; of a converted one, a draw.
        example: A batch of one for MACs of one example; a tuple holds several arguments, a dictionary named ones.

    Returns:
        MACs by the name of the layer. Layers with several weights have an entry for each (``rnn.weight_ih_l0``,
        ``attention.in_proj``) and attention one for its two products without a weight (``attention.products``). A
        weight that is used twice is listed once, under its first name.

    Example:
        >>> dense_macs(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 10)), torch.zeros(1, 3, 4, 4))
        {'0': 864, '2': 320}
    """
    with _counting(model) as counts, _evaluating(model):
        if isinstance(example, Mapping):
            model(**example)
        else:
            # A packed sequence is one argument, though its class is a tuple.
            model(*(example if type(example) is tuple else (example,)))
    return counts


@contextlib.contextmanager
def _counting(model: nn.Module) -> Iterator[dict[str, int]]:
    """Hooks on the layers that have a rule; each call adds to the counts."""
    names = {id(parameter): _short(name) for name, parameter in model.named_parameters()}
    counts: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module.__dict__.get("template"), nn.Module):  # as only a converted layer keeps one
                raise ValueError(f"{name or 'model'!r} is a sparse layer: give dense_macs a draw of the network")
            rule = next((rule for kinds, rule in RULES if isinstance(module, kinds)), None)
            if rule is not None:
                keys = {own: names.get(id(attrgetter(own)(module)), _short(f"{name}.{own}")) for own in _owned(module)}
                for key in keys.values():
                    counts.setdefault(key, 0)
                keys["products"] = f"{name}.products".strip(".")
                hook = _hook(rule, keys, counts)
                stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield counts


def _hook(rule: MacRule, keys: dict[str, str], counts: dict[str, int]) -> Callable[..., None]:
    def add(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        order = ("query", "key", "value") if isinstance(module, nn.MultiheadAttention) else ("input",)
        for own, macs in rule(module, {**dict(zip(order, args, strict=False)), **kwargs}, output).items():
            counts[keys[own]] = counts.get(keys[own], 0) + macs

    return add


def _recurrent(module: Any, given: dict[str, Any], output: Any) -> dict[str, int]:
    # .data of a packed sequence are its time steps without the padding.
    n_steps = given["input"].data.numel() // module.input_size
    return {name: n_steps * getattr(module, name).numel() for name in _owned(module)}


def _attention(module: Any, given: dict[str, Any], output: Any) -> dict[str, int]:
    width, query, key = module.embed_dim, given["query"], given["key"]
    n_queries, n_keys = query.numel() // width, key.numel() // module.kdim  # over the whole batch
    batch = 1 if query.dim() == 2 else query.shape[0 if module.batch_first else 1]
    n_attended = n_keys // batch + (module.bias_k is not None) + module.add_zero_attn  # of one example
    parts = {
        "q_proj_weight": n_queries * width**2,
        "k_proj_weight": n_keys * module.kdim * width,
        "v_proj_weight": n_keys * module.vdim * width,
    }
    projections = parts if module.in_proj_weight is None else {"in_proj_weight": sum(parts.values())}
    return {**projections, "out_proj.weight": n_queries * width**2, "products": 2 * n_queries * n_attended * width}


RULES: list[tuple[tuple[type[nn.Module], ...], MacRule]] = [
    ((nn.Linear,), lambda m, given, output: {"weight": output.numel() * m.in_features}),
    ((_ConvTransposeNd,), lambda m, given, _: {"weight": given["input"].numel() // m.in_channels * m.weight.numel()}),
    ((_ConvNd,), lambda m, given, output: {"weight": output.numel() // m.out_channels * m.weight.numel()}),
    ((nn.RNNBase, nn.RNNCellBase), _recurrent),
    ((nn.MultiheadAttention,), _attention),
    ((nn.Embedding, nn.EmbeddingBag), lambda m, given, output: {}),
]


def _owned(module: Any) -> list[str]:
    if isinstance(module, nn.RNNBase):
        return [name for name in module._flat_weights_names if name.startswith("weight")]
    if isinstance(module, nn.RNNCellBase):
        return ["weight_ih", "weight_hh"]
    if isinstance(module, nn.MultiheadAttention):
        parts = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        return [*(part for part in parts if getattr(module, part) is not None), "out_proj.weight"]
    return ["weight"]


def _short(name: str) -> str:
    return f".{name}".removesuffix(".weight").removesuffix("_weight").strip(".")


def _checked(layer: LayerCost) -> LayerCost:
    if not 0 <= layer.density <= 1:
        raise ValueError(f"the density of {layer.name!r} must be in [0, 1]; got {layer.density}")
    return layer


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients and without torch's fused transformer, which calls no layer."""
    modes = {module: module.training for module in model.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, training in modes.items():
            module.training = training
