"""The operations of a traced network, by what they do to channels."""

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from gossamer.layers.modules import Masked

Kind = Literal[
    "input", "mix", "norm", "mask", "pointwise", "pass", "pool", "average", "flatten", "add", "output", "opaque"
]  # fmt: skip

POINTWISE_MODULES: tuple[type[nn.Module], ...] = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh,
    nn.Tanhshrink, nn.Threshold,
)  # fmt: skip
POINTWISE_FUNCTIONS: tuple[Any, ...] = (
    F.celu, F.elu, F.gelu, F.hardsigmoid, F.hardswish, F.hardtanh, F.leaky_relu, F.logsigmoid, F.mish, F.relu,
    F.relu6, F.selu, F.silu, F.softplus, torch.relu, torch.sigmoid, torch.tanh,
)  # fmt: skip
POINTWISE_METHODS = ("relu", "sigmoid", "tanh")
PASSES: tuple[type[nn.Module], ...] = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
POOLS: tuple[type[nn.Module], ...] = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.AdaptiveMaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
)  # fmt: skip
ADDS: tuple[Any, ...] = (operator.add, operator.iadd, torch.add)
MAX_POOLS: tuple[Any, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVERAGE_POOLS: tuple[Any, ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
ADAPTIVE_POOLS: tuple[Any, ...] = (
    F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.adaptive_max_pool1d, F.adaptive_max_pool2d,
    F.adaptive_max_pool3d,
)  # fmt: skip
DROPOUTS: tuple[Any, ...] = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)


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
    """The operations of ``model`` in the order in which they run; raises what the tracer raises."""
    graph = _Tracer().trace(model)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    modules, n_dims = dict(model.named_modules()), n_pixel_dims(model)
    return [_operation(node, modules, calls, n_dims) for node in graph.nodes]


class _Tracer(fx.Tracer):
    """Enters what torch's tracer enters, but not masked activations."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Masked) or super().is_leaf_module(m, module_qualified_name)


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
        if calls[node.target] > 1:
            return made._replace(reason=f"{name} ({type(module).__name__}) is used in several places")
        if module._forward_hooks or module._forward_pre_hooks:
            return made._replace(reason=f"{name} ({type(module).__name__}) has hooks")
        return _of_module(made, module)
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
    kind: Kind = "pass" if node.target in DROPOUTS else "pool" if pools(node) else "opaque"
    return made._replace(kind="average" if averages_pixels(node, n_dims) else kind)


def _of_module(made: Operation, module: nn.Module) -> Operation:
    kind = type(module)
    if kind is nn.Linear or (isinstance(module, _ConvNd) and kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        if getattr(module, "groups", 1) == 1:
            return made._replace(kind="mix")
        return made._replace(reason=f"{made.module_name} is a convolution in groups")
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and isinstance(module, _BatchNorm):
        if module.running_mean is None:
            return made._replace(reason=f"{made.module_name} has no statistics")
        return made._replace(kind="norm")
    if isinstance(module, Masked) and type(module.activation) in POINTWISE_MODULES:
        return made._replace(kind="mask")
    if kind in POINTWISE_MODULES:
        return made._replace(kind="pointwise", apply=lambda x: module(x.clone()))
    if kind in PASSES:
        return made._replace(kind="pass")
    if kind in POOLS and not getattr(module, "return_indices", False):
        return made._replace(kind="pool")
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return made._replace(kind="flatten")
    return made


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


def n_pixel_dims(model: nn.Module) -> int | None:
    """Number of pixel dimensions in ``model``, by its convolutions; ``None`` if they differ or there are none."""
    kinds: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
    found = {kinds[type(module)] for module in model.modules() if type(module) in kinds}
    return found.pop() if len(found) == 1 else None


def pools(node: fx.Node) -> bool:
    """Whether it pools pixels, channel by channel; averages with padding, which change constants, are left out."""
    if node.target in MAX_POOLS or node.target in ADAPTIVE_POOLS:
        return not node.kwargs.get("return_indices") and not any(item is True for item in node.args)
    return node.target in AVERAGE_POOLS and len(node.args) <= 3 and set(node.kwargs) <= {"kernel_size", "stride"}


def averages_pixels(node: fx.Node, n_dims: int | None) -> bool:
    """Whether it is the mean over all pixels, which leaves one number per channel: ``x.mean((2, 3))``."""
    if n_dims is None or node.target not in (torch.mean, "mean") or not set(node.kwargs) <= {"dim"}:
        return False
    dims = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
    chosen = dims if isinstance(dims, list | tuple) else (dims,)
    if not all(isinstance(dim, int) for dim in chosen):
        return False
    return {int(dim) % (n_dims + 2) for dim in chosen} == set(range(2, n_dims + 2))


def flattens(node: fx.Node) -> bool:
    """Whether it makes a row of each example: ``torch.flatten(x, 1)``, ``x.view(x.size(0), -1)``."""
    if node.target in ("view", "reshape"):
        shape = node.args[1:]
        return len(shape) == 2 and _is(shape[1], -1) and isinstance(shape[0], fx.Node) and _is_row_count(shape[0])
    is_call = node.target in (torch.flatten, "flatten") and len(node.all_input_nodes) == 1
    rest = (*node.args[1:], node.kwargs.get("start_dim"), node.kwargs.get("end_dim"))
    return is_call and [item for item in rest if item is not None] in ([1], [1, -1])


def only_counts_rows(node: fx.Node) -> bool:
    """Whether it only asks for the number of examples, and so reads no channel."""
    if node.target is getattr and node.args[1:] == ("shape",):
        return all(_is_row_count(user) for user in node.users)
    return _is_row_count(node)


def _is_row_count(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "size" and _is(node.args[1] if len(node.args) == 2 else node.kwargs.get("dim"), 0)
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    return node.args[0].target is getattr and _is(node.args[1], 0)


def _is(item: Any, number: int) -> bool:
    return isinstance(item, int) and item == number
