"""How many weights are active, as numbers and as a table."""

import math
import warnings
from collections import Counter
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from gossamer._text.terminal import align
from gossamer.kernels import dispatch
from gossamer.layers.delta import DeltaWeight
from gossamer.layers.modules import SparseModule
from gossamer.layers.swap import EXCLUDED, FROZEN, plain_weights, why_left_alone
from gossamer.layers.weight import SparseWeight, sparse_weights

# The share of weights left alone, neither excluded nor frozen, from which on a conversion warns.
WORTH_A_WARNING = 0.05


def active_parameters(model: nn.Module) -> int:
    """Number of active weights of the converted layers, s; a Gaussian one stores a mean and a std.

    Example:
        >>> import gossamer
        >>> active_parameters(gossamer.bayesianize(nn.Linear(100, 10), density=0.05))
        50
    """
    return sum(weight.support.n_active for weight in sparse_weights(model).values())


def density(model: nn.Module) -> float:
    """Active weights over all weights of the network, s / d; those that were not converted are all active.

    In an adapted network (:func:`gossamer.adapt`) the active ones are those that may change.

    Weights are parameters with at least two dimensions that belong to no normalisation layer: biases, scales and shifts
    are not counted.

    Example:
        >>> import gossamer
        >>> density(gossamer.bayesianize(nn.Linear(100, 10), density=0.05))
        0.05
    """
    active, total = weights_of(model)
    return active / total if total else math.nan


def weights_of(model: nn.Module) -> tuple[int, int]:
    """Active weights and all weights of the network, as :func:`density` counts them."""
    plain = [parameter for _, _, parameter in plain_weights(model)]
    active = sum(parameter.numel() for parameter in plain if not _is_base(model, parameter))
    total = sum(parameter.numel() for parameter in plain) + sum(w.support.size for w in sparse_weights(model).values())
    return active + active_parameters(model), total


def _is_base(model: nn.Module, parameter: nn.Parameter) -> bool:
    """Whether it belongs to what an adapted network does not change."""
    return not parameter.requires_grad and any(isinstance(w, DeltaWeight) for w in sparse_weights(model).values())


def warn_of_the_rest(model: nn.Module) -> None:
    """Warn if much of a network stays dense although it was neither excluded nor frozen."""
    left: Counter[str] = Counter()
    n_left = 0
    for _, module, parameter in plain_weights(model):
        n_left += parameter.numel()
        reason = why_left_alone(module) or ""
        if reason not in (EXCLUDED, FROZEN) and parameter.requires_grad:
            left[f"{type(module).__name__} ({reason})"] += parameter.numel()
    total = n_left + sum(weight.support.size for weight in sparse_weights(model).values())
    if left.total() > WORTH_A_WARNING * total:
        rest = "; ".join(f"{count / total:.1%} in {kind}" for kind, count in left.most_common())
        warnings.warn(
            f"{1 - n_left / total:.1%} of the weights of this model were converted, the others stay dense and "
            f"deterministic: {rest}. gossamer.summary(model) lists them; exclude them to say that this is meant",
            stacklevel=4,
        )


@dataclass(frozen=True)
class SummaryRow:
    """One weight or one module left alone."""

    layer: str
    kind: str
    shape: tuple[int, ...]
    active: int
    total: int
    n_bytes: int
    note: str = ""
    product: str = ""  # "sparse", or "dense" where the weight is formed: many are active, or the layer needs it whole
    n_dense: int = 0  # of the entries of a module left alone, those that are weights

    @property
    def density(self) -> float:
        """Share of the entries that are active."""
        return self.active / self.total if self.total else math.nan


@dataclass(frozen=True)
class Summary:
    """The rows of :func:`summary`, which are shown as a table."""

    rows: tuple[SummaryRow, ...]

    @property
    def total(self) -> SummaryRow:
        """The weights of the whole network (biases, scales and shifts are not counted), and the bytes of everything."""
        sparse = [row for row in self.rows if not row.note]
        active = sum(row.active for row in sparse) + sum(row.n_dense for row in self.rows if row.active)
        size = sum(row.total for row in sparse) + sum(row.n_dense for row in self.rows)
        return SummaryRow("total", "", (), active, size, sum(row.n_bytes for row in self.rows))

    def __repr__(self) -> str:
        head = ("layer", "kind", "shape", "active / total", "density", "bytes", "product", "left alone because")
        text = align([head, *map(_cells, self.rows), _cells(self.total)], right={3, 4, 5})
        rule = "-" * max(map(len, text))
        return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])


def summary(model: nn.Module) -> Summary:
    """What was converted, how much of it is active, how it is multiplied, and why the rest was left alone.

    ``print`` shows the table.

    Example:
        >>> import gossamer
        >>> net = gossamer.bayesianize(nn.Sequential(nn.Linear(20, 10), nn.LayerNorm(10)), density=0.1)
        >>> gossamer.summary(net)
        layer  kind       shape     active / total  density  bytes  product  left alone because
        ---------------------------------------------------------------------------------------------------------------
        0      Linear     (10, 20)        20 / 200    10.0%    336  sparse
        0      bias       (10,)            10 / 10   100.0%     40           a bias is not sparse
        1      LayerNorm  (20,)            20 / 20   100.0%     80           no rule for LayerNorm: stays deterministic
        ---------------------------------------------------------------------------------------------------------------
        total                             20 / 200    10.0%    456
    """
    modules: dict[int, SparseModule] = {}
    for module in model.modules():
        if isinstance(module, SparseModule):
            for weight in module.named_weights().values():
                modules.setdefault(id(weight), module)
    rows = [_weight_row(name, weight, modules[id(weight)]) for name, weight in sparse_weights(model).items()]
    rows += _rest_rows(model)
    order = {name: i for i, (name, _) in enumerate(model.named_modules())}
    rows.sort(key=lambda row: order.get(row.layer, order.get(row.layer.rpartition(".")[0], 0)))
    return Summary(tuple(rows))


def _weight_row(name: str, weight: SparseWeight, module: SparseModule) -> SummaryRow:
    support, kind = weight.support, type(module.template).__name__
    n_bytes = sum(tensor.nbytes for tensor in (*weight.parameters(), *weight.buffers()))
    product = "dense"
    if module.map is not None:
        product = dispatch.way(weight.mean, support.position, support.shape, module.map)
    return SummaryRow(name, kind, support.shape, support.n_active, support.size, n_bytes, product=product)


def _rest_rows(model: nn.Module) -> list[SummaryRow]:
    rows = []
    dense: Counter[str] = Counter()
    for name, _, parameter in plain_weights(model):
        dense[name] += parameter.numel()
    for name, module in model.named_modules():
        parameters = list(module.parameters(recurse=False))
        if isinstance(module, SparseWeight) or not parameters:
            continue
        parameters = [parameter for parameter in parameters if not is_lazy(parameter)]  # those have no size yet
        count = sum(parameter.numel() for parameter in parameters)
        n_bytes = sum(parameter.nbytes for parameter in parameters)
        if isinstance(module, SparseModule):
            kind, note = "bias", "a bias is not sparse"
        else:
            kind, note = type(module).__name__, why_left_alone(module) or "not there when the model was converted"
        shape = tuple(parameters[0].shape) if len(parameters) == 1 else (count,)
        active = sum(parameter.numel() for parameter in parameters if not _is_base(model, parameter))
        rows.append(SummaryRow(name, kind, shape, active, count, n_bytes, note, n_dense=dense[name]))
    return rows


def _cells(row: SummaryRow) -> tuple[str, ...]:
    share = f"{row.density:.1%}" if row.total else ""
    numbers = (f"{row.active:,} / {row.total:,}", share, f"{row.n_bytes:,}")
    return row.layer, row.kind, str(row.shape or ""), *numbers, row.product, row.note
