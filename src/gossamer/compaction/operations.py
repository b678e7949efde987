"""What the operations of a traced network do to channels: the few kinds that compaction understands."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from gossamer.compaction.calls import averages_pixels, drops_out, flattens, n_pixel_dims, only_counts_rows, pools

__all__ = ["Kind", "Operation", "operations"]

Kind = Literal["input", "mix", "norm", "pointwise", "pass", "pool", "average", "flatten", "add", "output", "opaque"]

POINTWISE_MODULES: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
    nn.Threshold,
)
POINTWISE_FUNCTIONS: tuple[Any, ...] = (
    F.celu,
    F.elu,
    F.gelu,
    F.hardsigmoid,
    F.hardswish,
    F.hardtanh,
    F.leaky_relu,
    F.logsigmoid,
    F.mish,
    F.relu,
    F.relu6,
    F.selu,
    F.silu,
    F.softplus,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
)
POINTWISE_METHODS = ("relu", "sigmoid", "tanh")
PASSES: tuple[type[nn.Module], ...] = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
POOLS: tuple[type[nn.Module], ...] = (
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
)
ADDS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add)


class Operation(NamedTuple):
    """A node of the traced network and what it does to channels."""

    name: str
    kind: Kind
    inputs: tuple[str, ...]  # names of the nodes whose tensors it reads
    module: nn.Module | None = None
    module_name: str = ""
    apply: Callable[[Tensor], Tensor] | None = None  # of a pointwise operation
    reason: str = ""  # of an opaque one


def operations(model: nn.Module) -> list[Operation]:
    """The operations of ``model`` in the order in which they run; raises what the tracer raises.

    Example:
        >>> [item.kind for item in operations(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU(), nn.Softmax(1)))]
        ['input', 'flatten', 'mix', 'pointwise', 'opaque', 'output']
    """
    graph = fx.Tracer().trace(model)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    modules, n_dims = dict(model.named_modules()), n_pixel_dims(model)
    return [_operation(node, modules, calls, n_dims) for node in graph.nodes]


def _operation(node: fx.Node, modules: dict[str, nn.Module], calls: Counter[Any], n_dims: int | None) -> Operation:
    inputs = tuple(item.name for item in node.all_input_nodes)
    made = Operation(node.name, "opaque", inputs, reason=f"{_describe(node, modules)} is not understood")
    if node.op == "placeholder":
        return made._replace(kind="input")
    if node.op == "output":
        return made._replace(kind="output")
    if _overwrites_what_others_read(node, modules):
        return made._replace(reason=f"{_describe(node, modules)} works in place on a tensor that is read elsewhere")
    if node.op == "call_module":
        module, name = modules[str(node.target)], str(node.target)
        made = made._replace(module=module, module_name=name)
        why = _not_plain(module, calls[node.target])
        return made._replace(reason=f"{name} ({type(module).__name__}) {why}") if why else _of_module(made, module)
    return _of_call(made, node, n_dims)


def _of_call(made: Operation, node: fx.Node, n_dims: int | None) -> Operation:
    if flattens(node):  # the number of rows may be one of its inputs
        return made._replace(kind="flatten", inputs=made.inputs[:1])
    if only_counts_rows(node):
        return made._replace(inputs=())
    if _is_addition(node):
        terms = (item for item in node.args if isinstance(item, fx.Node))
        return made._replace(kind="add", inputs=tuple(item.name for item in terms))
    if len(made.inputs) != 1:
        return made
    if node.target in (POINTWISE_FUNCTIONS if node.op == "call_function" else POINTWISE_METHODS):
        return made._replace(kind="pointwise", apply=_applied(node))
    kind: Kind = "pass" if drops_out(node) else "pool" if pools(node) else "opaque"
    return made._replace(kind="average" if averages_pixels(node, n_dims) else kind)


def _of_module(made: Operation, module: nn.Module) -> Operation:
    kind = type(module)
    if kind is nn.Linear or (isinstance(module, _ConvNd) and kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        if getattr(module, "groups", 1) == 1:
            return made._replace(kind="mix")
        return made._replace(reason=f"{made.module_name} is a convolution in groups")
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and isinstance(module, _BatchNorm):
        has_statistics = module.running_mean is not None
        return (
            made._replace(kind="norm")
            if has_statistics
            else made._replace(reason=f"{made.module_name} has no statistics")
        )
    if kind in POINTWISE_MODULES:
        return made._replace(kind="pointwise", apply=lambda x: module(x.clone()))
    if kind in PASSES:
        return made._replace(kind="pass")
    if kind in POOLS and not getattr(module, "return_indices", False):
        return made._replace(kind="pool")
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return made._replace(kind="flatten")
    return made


def _not_plain(module: nn.Module, n_calls: int) -> str:
    """Why a module cannot be taken by its type alone."""
    if n_calls > 1:
        return "is used in several places"
    if module._forward_hooks or module._forward_pre_hooks:
        return "has hooks"
    return ""


def _overwrites_what_others_read(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    in_place = bool(getattr(module, "inplace", False) or node.kwargs.get("inplace")) or node.target is operator.iadd
    return in_place and len(node.all_input_nodes[0].users) > 1


def _applied(node: fx.Node) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        function: Any = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
        result: Tensor = function(x.clone(), *node.args[1:], **node.kwargs)
        return result

    return apply


def _is_addition(node: fx.Node) -> bool:
    is_add = (node.op == "call_function" and node.target in ADDS) or (node.op, node.target) == ("call_method", "add")
    return is_add and len(node.args) == 2 and all(isinstance(item, fx.Node) for item in node.args) and not node.kwargs


def _describe(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    if node.op == "call_module":
        return f"{node.target} ({type(modules[str(node.target)]).__name__})"
    return getattr(node.target, "__name__", str(node.target))
