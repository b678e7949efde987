"""How exact the native kernel is: against float64 for drawn shapes, in long sums, and with bfloat16 activations.

An error is judged entry by entry relative to the sum of the absolute values of the terms, which is what the reference
gives for the absolute values of all inputs. In long sums it is judged by norms too: relative to the result's.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.kernels import ConvMap, LinearMap, library, native, reference

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")

NAMES = ("mean", "variance", "x", "means", "stds", "bias")
PATTERNS = {"empty": 0.0, "one": None, "sparse": 0.1, "half": 0.5, "full": 1.0}


def draw(shape, x_shape, pattern, seed, positive=False):
    """Input, means, stds, bias, positions; half of the rows of a pattern that is neither empty nor full are empty."""
    generator = torch.Generator().manual_seed(seed)
    size, rows = math.prod(shape), shape[0]
    chosen = torch.rand(size, generator=generator)
    active = chosen == chosen.max() if pattern == "one" else chosen < PATTERNS[pattern]
    if pattern in ("sparse", "half") and rows > 1:
        active.view(rows, -1)[torch.randperm(rows, generator=generator)[: rows // 2]] = False
    position = active.nonzero().flatten().int()
    random = torch.rand if positive else torch.randn
    x, mean, bias = (random(n, generator=generator) for n in (x_shape, len(position), rows))
    return x, mean, torch.rand(len(position), generator=generator) + 0.1, bias, position


def results(kernel, leaves, g, h, where, dtype=torch.float32):
    x, *others = leaves
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = [x.to(dtype, copy=True), *(t.to(wide, copy=True) for t in others)]
    leaves = [t.requires_grad_() for t in leaves]
    m, v = kernel.moments(*leaves, *where)
    if kernel is native:
        assert "_Native" in str(m.grad_fn), "this went to the reference"
    return [m.detach(), v.detach(), *torch.autograd.grad([m, v], leaves, [g.to(dtype), h.to(dtype)])]


def cotangents(leaves, where, seed, positive=False):
    m = reference.product(leaves[0], leaves[1], None, *where)
    random = torch.rand if positive else torch.randn
    return random((2, *m.shape), generator=torch.Generator().manual_seed(seed + 1))


def check(shape, x_shape, weight_map, pattern, seed=0, positive=False, by_norm=False):
    *leaves, position = draw(shape, x_shape, pattern, seed, positive)
    where = (position, shape, weight_map)
    g, h = cotangents(leaves, where, seed, positive)
    actual = results(native, leaves, g, h, where)
    expected = results(reference, leaves, g, h, where, torch.float64)
    terms = results(reference, [t.abs() for t in leaves], g.abs(), h.abs(), where, torch.float64)
    for name, got, want, size in zip(NAMES, actual, expected, terms, strict=True):
        error = got - want
        assert (error.abs() <= 1e-6 * size + 1e-30).all(), (name, float((error.abs() / size).nan_to_num().max()))
        assert not by_norm or error.norm() <= 1e-6 * want.norm(), (name, float(error.norm() / want.norm()))


batches = st.one_of(st.sampled_from([1, 8, 33, 127]), st.integers(2, 7))
patterns = st.sampled_from(list(PATTERNS))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_linear_layers_of_every_shape(data):
    n_out, n_in = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 90))
    first = data.draw(st.integers(0, n_out - 1))
    rows = data.draw(st.sampled_from([None, (first, data.draw(st.integers(first + 1, n_out)))]))
    x_shape = (data.draw(batches), n_in)
    check((n_out, n_in), x_shape, LinearMap(rows), data.draw(patterns), data.draw(st.integers(0, 99)))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_convolutions_of_every_shape(data):
    draw = data.draw
    dims = draw(st.integers(1, 3))

    def each(least, most):
        return tuple(draw(st.integers(least, most)) for _ in range(dims))

    kernel, stride, dilation, padding = each(1, 4), each(1, 3), each(1, 2), each(0, 4)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    extent = tuple(max(1, r - 2 * p) + e for r, p, e in zip(reach, padding, each(0, 9), strict=True))
    groups = draw(st.integers(1, 3))
    batch = draw(batches if math.prod(extent) < 100 else st.integers(1, 9))
    shape = (groups * draw(st.integers(1, 4)), draw(st.integers(1, 4)), *kernel)
    x_shape = (batch, groups * shape[1], *extent)
    weight_map = ConvMap(stride, padding, dilation, groups)
    check(shape, x_shape, weight_map, draw(patterns), draw(st.integers(0, 99)))


@pytest.mark.parametrize("positive", [False, True], ids=["signed", "positive"])
@pytest.mark.parametrize(
    ("shape", "x_shape", "weight_map", "pattern"),
    [
        ((8, 9000), (33, 9000), LinearMap(), "full"),  # 9000 terms an output
        ((9000, 8), (33, 8), LinearMap(), "full"),  # and an input's gradient
        ((20, 20), (20000, 20), LinearMap(), "half"),  # 20000 terms a weight
        ((3, 3, 3, 3), (1, 3, 200, 200), ConvMap((1, 1), (1, 1), (1, 1)), "half"),  # 40000, of one image
        ((3, 3, 3, 3), (127, 3, 32, 32), ConvMap((1, 1), (1, 1), (1, 1)), "half"),  # 130000
    ],
)
def test_long_sums_lose_no_digits(shape, x_shape, weight_map, pattern, positive):
    check(shape, x_shape, weight_map, pattern, positive=positive, by_norm=True)


@pytest.mark.parametrize(
    ("shape", "x_shape", "weight_map"),
    [
        ((5, 4), (3, 4), LinearMap()),
        ((6, 4), (3, 4), LinearMap((2, 5))),
        ((4, 2, 3, 2), (2, 4, 5, 4), ConvMap((2, 1), (1, 0), (1, 2), groups=2)),
    ],
)
def test_gradcheck(shape, x_shape, weight_map):
    """The moments are at most quadratic in each number, so central differences with large steps are exact."""
    *leaves, position = draw(shape, x_shape, "half", 3)
    for leaf in leaves:
        leaf.requires_grad_()

    def moments(*leaves):
        return native.moments(*leaves, position, shape, weight_map)

    options = {"eps": 0.25, "atol": 1e-5, "rtol": 1e-4, "nondet_tol": 0.0}
    with pytest.warns(UserWarning, match="double precision"):
        assert torch.autograd.gradcheck(moments, leaves, **options)


# ---------------------------------------------------------------------- bfloat16


@pytest.mark.parametrize(
    ("shape", "x_shape", "weight_map"),
    [
        ((45, 83), (33, 83), LinearMap()),
        ((45, 83), (2, 7, 83), LinearMap((3, 31))),
        ((12, 10, 3, 3), (9, 10, 5, 5), ConvMap((1, 1), (1, 1), (1, 1))),
        ((6, 5, 3, 3), (2, 10, 16, 16), ConvMap((1, 1), (1, 1), (1, 1), groups=2)),
        ((12, 10, 3, 3), (9, 10, 8, 8), ConvMap((2, 2), (1, 1), (1, 1))),
    ],
)
def test_bfloat16_activations_are_rounded_once(shape, x_shape, weight_map):
    """Everything in between is float32: the results are those for the widened input, rounded."""
    *leaves, position = draw(shape, x_shape, "half", 0)
    where = (position, shape, weight_map)
    leaves[0] = leaves[0].bfloat16()
    g, h = (t.bfloat16() for t in cotangents(leaves, where, 0))
    actual = results(native, leaves, g, h, where, torch.bfloat16)
    expected = results(native, leaves, g, h, where)
    by_reference = results(reference, leaves, g, h, where, torch.bfloat16)
    exact = results(reference, leaves, g, h, where, torch.float64)
    for name, got, want, other, truth in zip(NAMES[:5], actual, expected, by_reference, exact, strict=False):
        assert got.dtype == (torch.float32 if name in ("means", "stds") else torch.bfloat16)
        assert torch.equal(got, want.to(got.dtype)), name
        assert (got - truth).norm() <= (other - truth).norm(), name


def test_bfloat16_noise_is_that_of_float32():
    x, mean, std, bias, position = draw((45, 83), (33, 83), "half", 0)
    x, where = x.bfloat16().requires_grad_(), (position, (45, 83), LinearMap())
    torch.manual_seed(0)
    y = native.noisy_product(x, mean, std, bias, *where)
    assert {t.dtype for t in y.grad_fn.saved_tensors if t is not None} == {
        torch.bfloat16,  # no float32 copy of an activation is kept: these are the weights
        torch.float32,
        torch.int64,
    }
    torch.manual_seed(0)
    wide = native.noisy_product(x.float(), mean, std, bias, *where)
    assert torch.equal(y, wide.bfloat16())


def test_what_is_not_finite_stays_so():
    position = torch.arange(4, dtype=torch.int32)
    x = torch.tensor([[float("nan"), 1, 1, 1], [float("inf"), 1, 1, 1], [3e38, 3e38, 1, 1]]).bfloat16()
    y = native.product(x, torch.ones(4), None, position, (1, 4), LinearMap())
    assert y.flatten().tolist()[1:] == [math.inf, math.inf]
    assert math.isnan(y[0])
