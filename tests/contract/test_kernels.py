"""One table of maps, one list of kernels: every kernel must be the same function of its inputs, gradients included.

The yardstick is torch's own dense function in float64. Rounding is judged against the sum of the absolute values of
the terms that were added up: the reference evaluated at the absolute values of all inputs is exactly that sum.

A new kernel is a row in ``KERNELS``, a new map a row in ``CASES``.
"""

import math
import zlib
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels import ConvMap, EmbeddingMap, LinearMap, WeightMap, lookup, native, reference, watch
from gossamer.kernels.reference import VARIANCE_FLOOR

KERNELS = [pytest.param(kernel, id=kernel.__name__.rpartition(".")[2]) for kernel in (reference, lookup, native)]


class Case(NamedTuple):
    name: str
    map: WeightMap
    weight: tuple[int, ...]
    x: tuple[int, ...]  # of one example
    dense: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    n_bias: int = 0
    n_words: int = 0  # inputs are indices below this
    differentiates: bool = True  # false where torch defines a gradient that is not the derivative

    @property
    def size(self) -> int:
        return math.prod(self.weight)


def linear(name, weight, x, rows=None):
    part = slice(None) if rows is None else slice(*rows)
    return Case(
        name,
        LinearMap(rows),
        weight,
        x,
        lambda x, w, b: F.linear(x, w[part], None if b is None else b[part]),
        n_bias=weight[0],
    )


def conv(name, weight, x, stride=1, padding=0, dilation=1, groups=1):
    dims = len(x) - 1
    full = [value if isinstance(value, tuple) else (value,) * dims for value in (stride, padding, dilation)]
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]
    return Case(
        name,
        ConvMap(*full, groups),
        weight,
        x,
        lambda x, w, b: function(x, w, b, *full, groups),
        n_bias=weight[0],
    )


def transposed(name, weight, x, stride=1, padding=0, dilation=1, groups=1, output_padding=0):
    dims = len(x) - 1
    options = (stride, padding, output_padding, dilation)
    stride, padding, output_padding, dilation = (
        value if isinstance(value, tuple) else (value,) * dims for value in options
    )
    function = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[dims]
    return Case(
        name,
        ConvMap(stride, padding, dilation, groups, transposed=True, output_padding=output_padding),
        weight,
        x,
        lambda x, w, b: function(x, w, b, stride, padding, output_padding, groups, dilation),
        n_bias=weight[1] * groups,
    )


def embedding(name, weight, x, padding_idx=None, scale_grad_by_freq=False):
    return Case(
        name,
        EmbeddingMap(weight[0], -1 if padding_idx is None else padding_idx, scale_grad_by_freq),
        weight,
        x,
        lambda x, w, b: F.embedding(x, w, padding_idx, scale_grad_by_freq=scale_grad_by_freq),
        n_words=weight[0],
        differentiates=padding_idx is None and not scale_grad_by_freq,
    )


CASES = [
    linear("linear", (5, 4), (4,)),
    linear("linear_of_sequences", (3, 4), (2, 3, 4)),
    linear("linear_first_rows", (6, 3), (3,), rows=(0, 2)),
    linear("linear_middle_rows", (6, 3), (2, 3), rows=(2, 5)),
    conv("conv1d", (3, 2, 3), (2, 6)),
    conv("conv1d_strided_padded_dilated", (4, 1, 3), (2, 9), stride=2, padding=2, dilation=2, groups=2),
    conv("conv2d", (3, 2, 3, 3), (2, 4, 4), padding=1),
    conv("conv2d_uneven", (2, 2, 2, 3), (2, 5, 6), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
    conv("conv2d_depthwise", (4, 1, 2, 2), (4, 3, 3), stride=2, padding=1, groups=4),
    conv("conv2d_pointwise", (3, 4, 1, 1), (4, 2, 3)),
    conv("conv3d", (2, 1, 2, 2, 2), (2, 3, 3, 3), stride=(1, 2, 1), padding=1, groups=2),
    transposed("transposed1d", (2, 3, 3), (2, 4), stride=2, padding=1, output_padding=1),
    transposed("transposed2d", (2, 2, 2, 3), (2, 3, 2), stride=(2, 3), padding=(0, 1), output_padding=(1, 2)),
    transposed("transposed2d_groups", (4, 1, 2, 2), (4, 2, 3), dilation=2, groups=2),
    transposed("transposed3d", (1, 2, 2, 2, 1), (1, 2, 2, 2), stride=(2, 1, 3), output_padding=(1, 0, 2)),
    embedding("embedding", (6, 3), (4,)),
    embedding("embedding_padded", (5, 2), (3, 2), padding_idx=1),
    embedding("embedding_by_frequency", (4, 3), (5,), scale_grad_by_freq=True),
]

kernels = pytest.mark.parametrize("kernel", KERNELS)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
float_cases = pytest.mark.parametrize("case", [case for case in CASES if not case.n_words], ids=lambda case: case.name)
some_cases = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("linear", "conv2d", "embedding")], ids=lambda case: case.name
)


class Inputs(NamedTuple):
    x: Tensor
    mean: Tensor
    std: Tensor
    bias: Tensor | None
    position: Tensor | None


def draw_inputs(case: Case, seed: int, batch: int = 3, dtype=torch.float64, density: float | None = 0.4) -> Inputs:
    """Random inputs; for an input in half precision the parameters are float32, as in mixed-precision training."""
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()) + seed)
    kept = dtype if dtype.itemsize >= 4 else torch.float32

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if case.n_words:
        x = torch.randint(case.n_words, (batch, *case.x), generator=generator)
    else:
        x = normal(batch, *case.x).to(dtype)
    n_active = case.size if density is None else max(1, round(density * case.size))
    position = None
    if density is not None:
        position = torch.randperm(case.size, generator=generator)[:n_active].sort().values.int()
        if isinstance(case.map, EmbeddingMap):  # the padding row has no active entry, ever
            position = position[position // case.weight[1] != case.map.padding_idx]
            n_active = len(position)
    mean = normal(n_active).to(kept)
    std = normal(n_active).exp().mul(0.3).to(kept)
    bias = normal(case.n_bias).to(kept) if case.n_bias else None
    return Inputs(x, mean, std, bias, position)


class Results(NamedTuple):
    """Moments, and the gradients of ⟨mean, g⟩ + ⟨variance, h⟩; the last is that of the dense weight of means."""

    mean: Tensor
    variance: Tensor
    grad_x: Tensor | None
    grad_mean: Tensor
    grad_std: Tensor
    grad_bias: Tensor | None
    grad_dense: Tensor


def cotangents(case: Case, inputs: Inputs, seed: int) -> tuple[Tensor, Tensor]:
    shape = case.dense(*to_float64(inputs)[:1], torch.zeros(case.weight, dtype=torch.float64), None).shape
    generator = torch.Generator().manual_seed(seed)
    g, h = torch.randn((2, *shape), generator=generator, dtype=torch.float64)
    return g, h


def to_float64(inputs: Inputs) -> Inputs:
    return Inputs(*(t.detach().to(torch.float64, copy=True) if is_float(t) else t for t in inputs))


def is_float(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_floating_point()


def by_dense_reference(case: Case, inputs: Inputs, g: Tensor, h: Tensor) -> Results:
    """What plain torch computes in float64 with dense tensors of means and stds."""
    x, mean, std, bias, position = to_float64(inputs)
    where = torch.arange(case.size) if position is None else position.long()
    weight = torch.zeros(case.size, dtype=torch.float64).index_put((where,), mean).view(case.weight).requires_grad_()
    spread = torch.zeros(case.size, dtype=torch.float64).index_put((where,), std).view(case.weight).requires_grad_()
    leaves = {"weight": weight, "spread": spread}
    if bias is not None:
        leaves["bias"] = bias.requires_grad_()
    if x.is_floating_point():
        leaves["x"] = x.requires_grad_()
    m = case.dense(x, weight, bias)
    v = case.dense(x * x if x.is_floating_point() else x, spread * spread, None)
    loss = (m * g.double()).sum() + (v * h.double()).sum()
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    return Results(
        m.detach(),
        v.detach(),
        grads.get("x"),
        grads["weight"].flatten()[where],
        grads["spread"].flatten()[where],
        grads.get("bias"),
        grads["weight"],
    )


def by_kernel(kernel, case: Case, inputs: Inputs, g: Tensor, h: Tensor) -> Results:
    x, mean, std, bias = (
        None if t is None else t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs[:4]
    )
    probe = torch.zeros((), dtype=mean.dtype).expand(case.weight).requires_grad_()
    m, v = kernel.moments(x, mean, std, bias, inputs.position, case.weight, case.map)
    m = watch(m, x, case.map, probe)
    torch.autograd.backward((m, v), (g.to(m.dtype), h.to(v.dtype)))
    return Results(m.detach(), v.detach(), x.grad, mean.grad, std.grad, None if bias is None else bias.grad, probe.grad)


def assert_agree(actual: Results, expected: Results, terms: Results, dtype: torch.dtype, n_terms: int) -> None:
    """Within the bound for sums of ``n_terms`` rounded products; ``terms`` are the sums of their absolute values."""
    info = torch.finfo(dtype)
    for name, got, want, size in zip(Results._fields, actual, expected, terms, strict=True):
        assert (got is None) == (want is None), name
        if got is not None:
            assert got.shape == want.shape, name
            bound = (n_terms + 8) * info.eps * size + info.tiny * info.eps
            assert bool(((got.double() - want).abs() <= bound).all()), name


def absolute(case: Case, inputs: Inputs, g: Tensor, h: Tensor) -> Results:
    inputs = Inputs(*(t.abs() if is_float(t) else t for t in inputs))
    return by_dense_reference(case, inputs, g.abs(), h.abs())


def check_moments(kernel, case: Case, inputs: Inputs, seed: int, dtype: torch.dtype) -> None:
    g, h = (t.to(dtype) for t in cotangents(case, inputs, seed))
    rounded = inputs._replace(mean=inputs.mean.to(dtype), bias=None if inputs.bias is None else inputs.bias.to(dtype))
    if dtype == torch.bfloat16:
        rounded = rounded._replace(std=inputs.std.to(dtype))
    expected = by_dense_reference(case, rounded, g, h)
    terms = absolute(case, rounded, g, h)
    # Everything that is ever added up: a weight's entries for an output, the outputs for a weight's gradient.
    n_terms = case.size + expected.mean.numel()
    assert_agree(by_kernel(kernel, case, inputs, g, h), expected, terms, dtype, n_terms)


@pytest.mark.parametrize("density", [0.4, None], ids=["sparse", "dense"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@cases
@kernels
def test_moments_and_their_gradients_match_the_dense_reference(kernel, case, dtype, density):
    for seed in range(3):
        check_moments(kernel, case, draw_inputs(case, seed, dtype=dtype, density=density), seed, dtype)


@pytest.mark.parametrize("density", [0.4, None], ids=["sparse", "dense"])
@cases
@kernels
def test_product_and_its_gradients_match_the_dense_reference(kernel, case, density):
    inputs = draw_inputs(case, seed=5, density=density)
    g, _ = cotangents(case, inputs, seed=5)
    expected = by_dense_reference(case, inputs, g, torch.zeros_like(g))
    x, mean, bias = (
        None if t is None else t.clone().requires_grad_(t.is_floating_point())
        for t in (inputs.x, inputs.mean, inputs.bias)
    )
    probe = torch.zeros(case.weight, dtype=mean.dtype, requires_grad=True)
    y = watch(kernel.product(x, mean, bias, inputs.position, case.weight, case.map), x, case.map, probe)
    y.backward(g)
    torch.testing.assert_close(y, expected.mean)
    torch.testing.assert_close(mean.grad, expected.grad_mean)
    torch.testing.assert_close(probe.grad, expected.grad_dense)
    if bias is not None:
        torch.testing.assert_close(bias.grad, expected.grad_bias)
    if x.is_floating_point():
        torch.testing.assert_close(x.grad, expected.grad_x)


@pytest.mark.parametrize("batch", [0, 1, 2, 7, 33])
@cases
@kernels
def test_any_batch_size(kernel, case, batch):
    check_moments(kernel, case, draw_inputs(case, seed=batch, batch=batch), seed=batch, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@float_cases
@kernels
def test_half_precision_inputs(kernel, case, dtype):
    check_moments(kernel, case, draw_inputs(case, seed=2, dtype=dtype), seed=2, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@float_cases
@kernels
def test_the_variance_of_small_stds_does_not_underflow_in_half_precision(kernel, case, dtype):
    """1e-4 squared is below what float16 can hold; a relative error would be 1 if it were lost."""
    inputs = draw_inputs(case, seed=3, dtype=dtype, density=None)
    inputs = inputs._replace(std=torch.full_like(inputs.std, 1e-4))
    g, h = cotangents(case, inputs, seed=3)
    result, expected = by_kernel(kernel, case, inputs, g, h), by_dense_reference(case, inputs, g, h)
    assert result.mean.dtype == dtype
    assert result.variance.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    relative = ((result.variance.double() - expected.variance) / expected.variance.clamp_min(1e-12)).abs()
    # std², x² and the sum are each rounded, the first two times two.
    assert relative.max() < 6 * torch.finfo(result.variance.dtype).eps


@pytest.mark.parametrize("density", [0.4, None], ids=["sparse", "dense"])
@pytest.mark.parametrize("case", [case for case in CASES if case.differentiates], ids=lambda case: case.name)
@kernels
@pytest.mark.parametrize("in_full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["projected", "in_full"])
def test_gradcheck(kernel, case, density, in_full):
    """By default along random directions, which one wrong entry of the Jacobian changes."""
    inputs = draw_inputs(case, seed=7, batch=2, density=density)
    floats = [t.clone().requires_grad_() for t in inputs[:4] if is_float(t)]

    def moments(*floats):
        x, mean, std, bias = unpack(case, inputs, floats)
        return kernel.moments(x, mean, std, bias, inputs.position, case.weight, case.map)

    def product(*floats):
        x, mean, _, bias = unpack(case, inputs, floats)
        return kernel.product(x, mean, bias, inputs.position, case.weight, case.map)

    assert torch.autograd.gradcheck(moments, floats, fast_mode=not in_full)
    assert torch.autograd.gradcheck(product, floats, fast_mode=not in_full)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("linear_middle_rows", "conv2d_uneven")], ids=lambda case: case.name
)
@kernels
def test_gradgradcheck(kernel, case):
    inputs = draw_inputs(case, seed=8, batch=1)
    floats = [t.clone().requires_grad_() for t in inputs[:4] if is_float(t)]
    noise = torch.randn(cotangents(case, inputs, 0)[0].shape, generator=torch.Generator().manual_seed(1)).double()

    def noisy(*floats):
        x, mean, std, bias = unpack(case, inputs, floats)
        m, v = kernel.moments(x, mean, std, bias, inputs.position, case.weight, case.map)
        return reference.perturb(m, v + 0.1, noise)

    assert torch.autograd.gradgradcheck(noisy, floats)


def unpack(case: Case, inputs: Inputs, floats):
    floats = list(floats)
    x = floats.pop(0) if inputs.x.is_floating_point() else inputs.x
    return x, floats[0], floats[1], floats[2] if case.n_bias else None


@cases
@kernels
def test_the_probe_receives_the_dense_gradient_and_changes_nothing(kernel, case):
    inputs = draw_inputs(case, seed=9)
    g, h = cotangents(case, inputs, seed=9)
    with_probe = by_kernel(kernel, case, inputs, g, h)
    expected = by_dense_reference(case, inputs, g, h)
    torch.testing.assert_close(with_probe.grad_dense, expected.grad_dense)
    # The active entries of it are the gradient of the means; to the last bit, if they are taken from a dense one.
    active = with_probe.grad_dense.flatten()[inputs.position.long()]
    torch.testing.assert_close(active, with_probe.grad_mean)
    assert kernel is not reference or torch.equal(active, with_probe.grad_mean)
    off = torch.ones(case.size, dtype=torch.bool).index_fill(0, inputs.position.long(), False)
    assert with_probe.grad_dense.flatten()[off].any()

    mean = inputs.mean.clone().requires_grad_()
    m, v = kernel.moments(inputs.x, mean, inputs.std, inputs.bias, inputs.position, case.weight, case.map)
    (m * g).sum().backward()
    assert torch.equal(m, with_probe.mean)
    assert torch.equal(v, with_probe.variance)
    assert torch.equal(mean.grad, with_probe.grad_mean)


@cases
@kernels
def test_each_gradient_can_be_asked_for_alone(kernel, case):
    inputs = draw_inputs(case, seed=10)
    g, h = cotangents(case, inputs, seed=10)
    together = by_kernel(kernel, case, inputs, g, h)
    wanted = {"x": together.grad_x, "mean": together.grad_mean, "std": together.grad_std, "bias": together.grad_bias}
    for name, expected in wanted.items():
        if expected is None:
            continue
        alone = inputs._replace(**{name: getattr(inputs, name).clone().requires_grad_()})
        m, v = kernel.moments(*alone[:4], inputs.position, case.weight, case.map)
        (grad,) = torch.autograd.grad((m * g).sum() + (v * h).sum(), getattr(alone, name))
        torch.testing.assert_close(grad, expected)


@cases
@kernels
def test_what_comes_out_can_be_overwritten(kernel, case):
    """By an activation in place, and by what watches the pass before an update: no view of anything is returned."""
    inputs = draw_inputs(case, seed=11)
    g, _ = cotangents(case, inputs, seed=11)
    mean = inputs.mean.clone().requires_grad_()
    where = (inputs.position, case.weight, case.map)
    seen = []
    y = kernel.product(inputs.x, mean, inputs.bias, *where)
    y = watch(y, inputs.x, case.map, None, lambda *told: seen.append(told))
    (grad,) = torch.autograd.grad((y.relu_() * g).sum(), mean)
    expected = kernel.product(inputs.x, mean, inputs.bias, *where).relu()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(grad, torch.autograd.grad((expected * g).sum(), mean)[0])
    assert len(seen) == 1
    m, v = kernel.moments(inputs.x, mean, inputs.std, inputs.bias, *where)
    torch.autograd.grad((m.relu_() * g).sum() + v.sqrt_().sum(), mean)


@cases
@kernels
def test_strided_inputs_and_expanded_gradients(kernel, case):
    """A transposed input and the gradient of a plain sum, which is one number seen many times."""
    inputs = draw_inputs(case, seed=11, batch=4)
    every_other = torch.stack([inputs.x, torch.zeros_like(inputs.x)], dim=-1)[..., 0]
    assert not every_other.is_contiguous()
    ones = torch.ones_like(cotangents(case, inputs, 0)[0])
    expected = by_dense_reference(case, inputs, ones, ones)
    mean, std = (t.clone().requires_grad_() for t in (inputs.mean, inputs.std))
    x = every_other.requires_grad_(inputs.x.is_floating_point())
    m, v = kernel.moments(x, mean, std, inputs.bias, inputs.position, case.weight, case.map)
    (m.sum() + v.sum()).backward()
    torch.testing.assert_close(m, expected.mean)
    torch.testing.assert_close(mean.grad, expected.grad_mean)
    torch.testing.assert_close(std.grad, expected.grad_std)
    if x.grad is not None:
        torch.testing.assert_close(x.grad, expected.grad_x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@cases
@kernels
def test_tiny_stds_give_no_noise_and_finite_gradients(kernel, case, dtype):
    inputs = draw_inputs(case, seed=12, dtype=dtype)
    smallest = torch.full_like(inputs.std, torch.finfo(torch.float32).tiny)  # its square is zero in every precision
    check_zero_variance(kernel, case, inputs._replace(std=smallest))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@float_cases
@kernels
def test_zero_inputs_give_no_noise_and_finite_gradients(kernel, case, dtype):
    inputs = draw_inputs(case, seed=12, dtype=dtype)
    check_zero_variance(kernel, case, inputs._replace(x=torch.zeros_like(inputs.x)))


def check_zero_variance(kernel, case: Case, inputs: Inputs) -> None:
    x, mean, std, bias = (None if t is None else t.clone().requires_grad_(t.is_floating_point()) for t in inputs[:4])
    m, v = kernel.moments(x, mean, std, bias, inputs.position, case.weight, case.map)
    assert not v.any()
    noise = torch.randn(m.shape, generator=torch.Generator().manual_seed(0)).to(m.dtype)
    y = reference.perturb(m, v, noise)
    assert torch.equal(y, m)
    y.sum().backward()
    for leaf in (x, mean, std, bias):
        if leaf is not None and leaf.is_floating_point():
            assert leaf.grad.isfinite().all()
    assert not std.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_perturb_is_finite_over_the_whole_range_of_variances(dtype):
    variance = torch.cat([torch.zeros(1), torch.logspace(-44, 38, 83)]).to(dtype).requires_grad_()
    mean = torch.zeros(len(variance), dtype=dtype, requires_grad=True)
    noise = torch.full_like(mean, -2.0)
    y = reference.perturb(mean, variance, noise)
    y.sum().backward()
    counts = variance.detach() > VARIANCE_FLOOR
    root = variance.detach().double().sqrt()
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.detach().double()[counts], -2 * root[counts], rtol=tolerance, atol=0.0)
    torch.testing.assert_close(variance.grad.double()[counts], -1 / root[counts], rtol=tolerance, atol=0.0)
    assert not y.detach()[~counts].any()
    assert not variance.grad[~counts].any()
    assert mean.grad.eq(1).all()


def test_perturb_gradcheck():
    generator = torch.Generator().manual_seed(0)
    mean, noise = torch.randn((2, 6), generator=generator, dtype=torch.float64)
    variance = torch.rand(6, generator=generator, dtype=torch.float64) + 0.1
    leaves = (mean.requires_grad_(), variance.requires_grad_())
    assert torch.autograd.gradcheck(lambda m, v: reference.perturb(m, v, noise), leaves)
    assert torch.autograd.gradgradcheck(lambda m, v: reference.perturb(m, v, noise), leaves)
    assert torch.autograd.gradcheck(lambda m, v: reference.perturb(m, v, noise, floor=1e-8), leaves)


def test_perturb_with_a_floor_is_the_released_formula():
    generator = torch.Generator().manual_seed(0)
    mean, noise = torch.randn((2, 50), generator=generator)
    variance = torch.rand(50, generator=generator)
    variance[:10] = 0
    y = reference.perturb(mean, variance, noise, floor=1e-8)
    torch.testing.assert_close(y, mean + torch.sqrt(variance + 1e-8) * noise, rtol=0, atol=0)
    spread = (y - mean)[:10] / noise[:10]
    torch.testing.assert_close(spread, torch.full((10,), 1e-4), rtol=0.01, atol=0)  # y is rounded near 1
    half = reference.perturb(mean.half(), variance, noise.half(), floor=1e-8)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), y, rtol=4e-3, atol=4e-3)


def test_gather_is_the_adjoint_of_scatter():
    generator = torch.Generator().manual_seed(0)
    position = torch.randperm(24, generator=generator)[:7].sort().values
    values, dense = torch.randn(7, generator=generator), torch.randn(2, 3, 4, generator=generator)
    for where in (position, position.int()):
        scattered = reference.scatter(values, where, (2, 3, 4))
        assert torch.equal(reference.gather(scattered, where), values)
        assert int((scattered != 0).sum()) == 7
        torch.testing.assert_close((scattered * dense).sum(), (values * reference.gather(dense, where)).sum())
        probe = torch.zeros(()).expand(2, 3, 4).requires_grad_()
        leaf = values.clone().requires_grad_()
        probed = reference.scatter(leaf, where, (2, 3, 4), probe)
        assert torch.equal(probed, scattered)
        (probed * dense).sum().backward()
        assert torch.equal(probe.grad, dense)
        assert torch.equal(leaf.grad, reference.gather(dense, where))
    assert torch.equal(reference.scatter(dense.flatten(), None, (2, 3, 4)), dense)
    assert torch.equal(reference.gather(dense, None), dense.flatten())


@some_cases
@kernels
def test_a_map_over_draws_of_the_weight(kernel, case):
    """``torch.vmap`` over several active vectors gives what a loop over them gives."""
    inputs = draw_inputs(case, seed=13)
    several = torch.stack([draw_inputs(case, seed=seed).mean for seed in range(4)])

    def once(mean):
        return kernel.product(inputs.x, mean, inputs.bias, inputs.position, case.weight, case.map)

    torch.testing.assert_close(torch.vmap(once)(several), torch.stack([once(mean) for mean in several]))


@some_cases
@kernels
def test_compiled_in_one_graph(kernel, case):
    inputs = draw_inputs(case, seed=14, dtype=torch.float32)
    mean = inputs.mean.requires_grad_()

    def moments(mean):
        return kernel.moments(inputs.x, mean, inputs.std, inputs.bias, inputs.position, case.weight, case.map)

    torch.compiler.reset()  # each case is compiled afresh, not as a variant of the others
    expected = moments(mean)
    found = torch.compile(moments, backend="aot_eager", fullgraph=True)(mean)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(m.square().sum(), mean) for m, _ in (found, expected)))
