"""Chooses the kernel of a product: a sparse one, whose cost follows the active entries, or the dense reference.

The sparse kernel of embeddings is a lookup, that of linear layers and convolutions native code. Where that is not
built, the reference serves.

Before an update of the subspace :func:`watch` exposes the dense gradient of a weight. For y = W x + b + noise it is the
map's weight gradient of dL/dy and x, whichever kernel computed y, so a node of the autograd graph around the product
can form it.

σ from the curvature of the loss and the running means of its estimates, whose equations are in
:mod:`gossamer.layers.curvature`, take one native pass where torch takes a dozen.
"""

import contextlib
import logging
import math
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.kernels import library, lookup, native, reference
from gossamer.kernels.reference import ConvMap, EmbeddingMap, Function, LinearMap, Placement, WeightMap

Kernel = Literal["auto", "sparse", "dense"]

Sink = Callable[[Tensor, Tensor, WeightMap], object]
"""Called with dL/dy, x and the map in a backward pass; may form the dense gradient a few rows at a time."""

# Densities up to which the sparse kernel was measured to win (make bench). With only a few examples a linear layer
# spends its time reading weights, and the sparse kernel has to read indices as well.
MOST_DENSE = 0.35
MOST_DENSE_OF_FEW = 0.2
MOST_DENSE_NOISY = 0.5  # with noise of the outputs a dense layer has two products
FEW = 8
# Active entries per output channel up to which a convolution of several images is faster by the sparse kernel, even
# where all are active: dense ones were made for many channels.
FEW_TAPS = 32
MOST_ESTIMATE = 1e30  # an estimate of a curvature: a mean of larger ones could not be told from infinity
LEAST_LOOKUP = 2**18  # entries of a table; for a smaller one, forming it is faster than searching for its rows

_setting: ContextVar[Kernel] = ContextVar("kernel", default="auto")
_last_set: Kernel = "auto"  # the same for torch.compile, which can watch a global but not read a context variable
_warned = False


class _Block(contextlib.AbstractContextManager[None]):
    """Ends what :func:`use` began, if it is used as a block."""

    def __init__(self, kernel: Kernel) -> None:
        global _last_set
        self.before: Token[Kernel] = _setting.set(kernel)
        _last_set = kernel

    def __exit__(self, *_: object) -> None:
        global _last_set
        _setting.reset(self.before)
        _last_set = _setting.get()


def use(kernel: Kernel) -> contextlib.AbstractContextManager[None]:
    """Choose the kernel of all sparse weights from here on, or within a ``with`` block.

    The choice holds in the thread that makes it; other threads keep theirs. A compiled network is compiled again where
    it changes.

    Args:
        kernel: ``"auto"`` chooses by device, density, shape and batch, ``"sparse"`` takes the sparse kernel wherever it
            can compute the product, ``"dense"`` never.

    Example:
        >>> with use("dense"):
        ...     in_use()
        'dense'
        >>> in_use()
        'auto'
    """
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel must be one of {', '.join(map(repr, get_args(Kernel)))}; got {kernel!r}")
    return _Block(kernel)


def in_use() -> Kernel:
    """The setting that :func:`use` made."""
    return _setting.get()


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b`` by the kernel in use; see :func:`gossamer.kernels.reference.product`."""
    y: Tensor = kernel_of(x, *where).product(x, mean, bias, *where)
    return y


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw by the kernel in use; see :func:`gossamer.kernels.reference.noisy_product`."""
    y: Tensor = kernel_of(x, *where, is_noisy=True).noisy_product(x, mean, std, bias, *where, floor=floor)
    return y


def way(weight: Tensor, *where: *Placement) -> str:
    """How a batch of many examples is multiplied where ``weight`` is: ``"sparse"``, or ``"dense"``."""
    return "dense" if _choice(weight.is_cpu, False, where) is reference else "sparse"


def kernel_of(x: Tensor, *where: *Placement, is_noisy: bool = False) -> Any:
    """The kernel to call; a sparse one passes what it cannot compute on to the reference."""
    _, shape, weight_map = where
    # Not while exporting: a program for batches of any size must not be chosen by the size of one.
    few = False
    if not torch.compiler.is_exporting():
        if isinstance(weight_map, LinearMap):
            few = x.numel() < FEW * shape[1]
        elif isinstance(weight_map, ConvMap):
            few = is_noisy or len(x) < FEW  # noise of dense layers is torch's, whatever they are run by
    return _choice(x.is_cpu, few, where, MOST_DENSE_NOISY if is_noisy else MOST_DENSE)


def _choice(is_cpu: bool, few: bool, where: Placement, most: float = MOST_DENSE) -> Any:
    position, shape, weight_map = where
    embeds = isinstance(weight_map, EmbeddingMap)
    setting = _last_set if torch.compiler.is_compiling() else _setting.get()
    if setting == "dense" or not (is_cpu or embeds):
        return reference
    size = math.prod(shape)
    n_active = size if position is None else len(position)
    is_plain_conv = isinstance(weight_map, ConvMap) and weight_map.groups == 1 and not weight_map.transposed
    is_free = not few and not torch.compiler.is_exporting()
    has_few_taps = is_plain_conv and is_free and n_active <= FEW_TAPS * shape[0]
    if position is None and not has_few_taps:
        return reference
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():  # ONNX has no operators of ours
        return reference
    if not (library.LIBRARY or embeds):
        _warn_once()
        return reference
    sparse = lookup if embeds else native
    if setting == "sparse" or has_few_taps:
        return sparse
    if n_active > most * size or (embeds and size < LEAST_LOOKUP):
        return reference
    return reference if few and isinstance(weight_map, LinearMap) and n_active > MOST_DENSE_OF_FEW * size else sparse


def _warn_once() -> None:
    global _warned
    if not _warned and not torch.compiler.is_compiling():
        _warned = True
        logging.getLogger("gossamer").warning(
            "gossamer's native kernels are not built: sparse layers take the time of dense ones (to build them, "
            "pip install gossamer where there is a C++ compiler, or python setup.py build_ext --inplace)"
        )


def watch(y: Tensor, x: Tensor, weight_map: WeightMap, probe: Tensor | None, sink: Sink | None = None) -> Tensor:
    """``y`` itself; in its backward pass the ``sink`` is called, or the ``probe`` receives the whole dense gradient.

    A ``probe`` is a leaf of zeros in the shape of the weight. It also serves where Python cannot be called in the
    middle of a backward pass: in a compiled graph and under torch.func.
    """
    if probe is None and sink is None:
        return y
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        if probe is None or torch.compiler.is_exporting():  # an exported program only predicts
            return y
    elif sink is not None and y.requires_grad:
        watched: Tensor = _CallSink.apply(y, x, weight_map, sink)
        return watched
    elif probe is None or sink is not None:
        return y
    watched = _Probe.apply(y, x, probe, weight_map)
    return watched


class _Probe(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, x: Tensor, probe: Tensor, weight_map: WeightMap) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x, probe, ctx.weight_map = inputs
        ctx.save_for_backward(x)
        ctx.shape = probe.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return grads[0], None, ctx.weight_map.weight_gradient(grads[0], x, ctx.shape), None


class _CallSink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, weight_map: WeightMap, sink: Sink) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight_map, ctx.sink = weight_map, sink
        ctx.mark_dirty(y)  # a view could not be overwritten in place by what follows, and a hook would then be lost
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.sink(grads[0], x, ctx.weight_map)
        return grads[0], None, None, None


def may_read(*vectors: Tensor) -> bool:
    """Whether native code may read these now: they are plain float32 on a CPU, and nothing traces or maps it."""
    if not library.LIBRARY or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    plain = all(
        v.dtype is torch.float32 and v.is_cpu and type(v) in (Tensor, nn.Parameter) and v.is_contiguous()
        for v in vectors
    )
    return plain and not torch._C._len_torch_dispatch_stack()


def std_of_means(
    curvature: Tensor, square: Tensor, shrinkage: Tensor, variance: float | Tensor, damping: float | Tensor
) -> Tensor:
    """σ = √(variance / (h + δ)), with h from the running means."""
    means = curvature, square, shrinkage
    if isinstance(variance, Tensor) or not _may_read(*means):
        return (variance / (shrunk_curvature(*means) + damping)).sqrt_()
    return _filled("std_of_curvature", means, variance, damping)


def shrunk_curvature(curvature: Tensor, square: Tensor, shrinkage: Tensor) -> Tensor:
    """H = cv + w (h̄ - cv), but not below a tenth of cv: ``(n,), (n,), (4,) or (4, n) -> (n,)``."""
    if _may_read(curvature, square, shrinkage):
        return _filled("shrunk_curvature", (curvature, square, shrinkage))
    factor, share, least, _ = shrinkage.unbind()
    return torch.maximum(torch.lerp(factor * square, curvature, share), least * square)


def _may_read(curvature: Tensor, square: Tensor, shrinkage: Tensor) -> bool:
    fit = curvature.shape == square.shape and shrinkage.shape == (4,)
    return fit and may_read(curvature, square, shrinkage)


def _filled(name: str, means: tuple[Tensor, ...], *numbers: Any) -> Tensor:
    found = torch.empty_like(means[0])
    library.LIBRARY[name](found.numel(), *(one.data_ptr() for one in means), *numbers, found.data_ptr())
    return found


def move_means(curvature: Tensor, square: Tensor, estimate: Tensor, grad: Tensor, rate: float | Tensor) -> None:
    """Move the running means, in place: h̄ to h̄ + ``rate`` · (ĥ - h̄), and v to v + ``rate`` · (g² - v).

    h̄ is unbiased, and may be negative for a time. What is not finite, or next to it, does not count.
    """
    vectors = curvature, square, estimate, grad
    if isinstance(rate, float) and len({one.shape for one in vectors}) == 1 and may_read(*vectors):
        library.LIBRARY["move_means"](curvature.numel(), *(one.data_ptr() for one in vectors), rate, MOST_ESTIMATE)
        return
    new = grad.to(square).square()
    counts = estimate.abs() + new < MOST_ESTIMATE  # false for NaN, too
    curvature.lerp_(torch.where(counts, estimate, curvature), rate)
    square.lerp_(torch.where(counts, new, square), rate)
