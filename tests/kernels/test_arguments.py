"""Native code trusts its arguments, so every wrong one must stop in Python: it raises, or the value is right."""

import itertools

import pytest
import torch
from torch import nn

import gossamer
from gossamer.kernels import ConvMap, LinearMap, library, native, reference

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")

ERRORS = (ValueError, RuntimeError, TypeError, NotImplementedError, AttributeError)  # the last one: None for a tensor


def _arguments(kind):
    """What the two operators take, for a linear layer with 6 inputs and 5 outputs or a convolution."""
    generator = torch.Generator().manual_seed(0)
    if kind == "linear":
        shape, x_shape, weight_map = (5, 6), (3, 6, 1, 1, 1), LinearMap()
        numbers = native.geometry(torch.zeros(3, 6), shape, weight_map)
    else:
        shape, x_shape, weight_map = (4, 2, 3, 3), (3, 4, 5, 6), ConvMap((2, 1), (1, 0), (1, 1), 2)
        numbers = native.geometry(torch.zeros(x_shape), shape, weight_map)
    size = torch.Size(shape).numel()
    position = torch.randperm(size, generator=generator)[: size // 2].sort().values.int()
    n = len(position)
    forward = {
        "x": torch.randn(x_shape, generator=generator),
        "mean": torch.randn(n, generator=generator),
        "std": torch.rand(n, generator=generator),
        "bias": torch.randn(shape[0], generator=generator),
        "position": position,
        "seed": None,
        "numbers": list(numbers),
        "floor": 0.0,
        "keep": True,
    }
    out = (3, numbers[2], *numbers[6:9])
    backward = {
        "x": forward["x"],
        "dy": torch.randn(out, generator=generator),
        "dv": torch.randn(out, generator=generator),
        "is_factor": False,
        "mean": forward["mean"],
        "std": forward["std"],
        "position": position,
        "numbers": list(numbers),
        "for_input": True,
    }
    return {"forward": forward, "backward": backward}


def _with_gaps(t):
    return torch.stack([t, torch.zeros_like(t)], -1)[..., 0]


TENSOR_CHANGES = {
    "short": lambda t: t[:-1],
    "one entry": lambda t: t[:1],
    "empty": lambda t: t[:0],
    "long": lambda t: torch.cat([t, t]),
    "bfloat16": lambda t: t.bfloat16(),
    "float16": lambda t: t.half(),
    "float64": lambda t: t.double(),
    "int64": lambda t: t.long(),
    "complex": lambda t: t.to(torch.complex64),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "with gaps": _with_gaps,
    "scalar": lambda t: t.flatten()[0],
    "another dimension": lambda t: t[None],
    "flat": lambda t: t.flatten(),
    "expanded": lambda t: t.flatten()[:1].expand(t.numel()).view(t.shape) if t.is_floating_point() else t.flip(0),
    "missing": lambda t: None,
}
NUMBER_CHANGES = [0, -1, 2, 3, 7, 1000, 2**31 - 1, 2**31, -(2**31), 2**40]

TENSORS = [
    (operator, name, change)
    for operator, names in (
        ("forward", ("x", "mean", "std", "bias", "position", "seed")),
        ("backward", ("x", "dy", "dv", "mean", "std", "position")),
    )
    for name, change in itertools.product(names, TENSOR_CHANGES)
]


def _expected(operator, arguments):
    """The same by torch, in float64; raises where torch finds the arguments wrong."""
    numbers = arguments["numbers"]
    groups, n_in, n_out = numbers[:3]
    stride, padding, dilation = (tuple(numbers[i : i + 3]) for i in (12, 15, 18))
    weight_map = ConvMap(stride, padding, dilation, groups)
    shape = (n_out, n_in // groups, *numbers[9:12])
    x = arguments["x"].double().requires_grad_()
    mean, std, bias = (
        None if (t := arguments.get(name)) is None else t.double().flatten().requires_grad_()
        for name in ("mean", "std", "bias")
    )
    dense = reference.scatter(mean, arguments["position"].long(), shape)
    space = x.reshape(-1, n_in, *numbers[3:6])
    m = weight_map(space, dense, bias)
    v = None
    if std is not None:
        v = weight_map(space * space, reference.scatter(std * std, arguments["position"].long(), shape))
    if operator == "forward":
        return [m] if v is None else [m, v]
    outputs, grads = [m], [arguments["dy"].double().view_as(m)]
    if v is not None:
        outputs, grads = [m, v], [*grads, arguments["dv"].double().view_as(m)]
    return torch.autograd.grad(outputs, [t for t in (x, mean, std) if t is not None], grads)


def _raises_or_is_right(operator, arguments):
    run = getattr(torch.ops.gossamer, operator)
    try:
        with torch.no_grad():
            results = run(*arguments.values())
    except ERRORS as error:
        return str(error)
    if arguments.get("seed") is not None:
        return None  # a valid seed of another form
    expected = _expected(operator, arguments)
    for got, want in zip([t for t in results if t.numel()], expected, strict=False):
        tolerance = 1e-4 if got.dtype == torch.float32 else 0.1
        torch.testing.assert_close(got.double().flatten(), want.flatten(), rtol=tolerance, atol=tolerance)
    return None


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize(("operator", "name", "change"), TENSORS)
def test_a_wrong_tensor_raises_or_the_value_is_right(kind, operator, name, change):
    arguments = _arguments(kind)[operator]
    if arguments[name] is None:
        arguments[name] = torch.tensor([5])
    arguments[name] = TENSOR_CHANGES[change](arguments[name])
    message = _raises_or_is_right(operator, arguments)
    assert message is None or len(message) > 15


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("operator", ["forward", "backward"])
@pytest.mark.parametrize("at", range(23))
def test_a_wrong_number_raises_or_the_value_is_right(kind, operator, at):
    for value in NUMBER_CHANGES:
        arguments = _arguments(kind)[operator]
        arguments["numbers"][at] = value
        _raises_or_is_right(operator, arguments)


@pytest.mark.parametrize("operator", ["forward", "backward"])
@pytest.mark.parametrize("numbers", [[], [1] * 22, [1] * 24, [0] * 23, [2**31 - 1] * 23], ids=str)
def test_wrong_lists_of_numbers_raise(operator, numbers):
    arguments = _arguments("conv")[operator]
    arguments["numbers"] = numbers
    with pytest.raises(ERRORS):
        getattr(torch.ops.gossamer, operator)(*arguments.values())


@pytest.mark.parametrize("kernel", [native, reference], ids=["native", "reference"])
@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("n", [0, 1, 7, 9, 50])
def test_a_vector_of_another_length_than_its_positions_is_named(kernel, name, n):
    x, position = torch.randn(3, 6), torch.arange(0, 24, 3)
    vectors = {"mean": torch.ones(8), "std": torch.ones(8)} | {name: torch.ones(n)}
    with pytest.raises(ValueError, match=f"has {n} entries but 8 positions are active"):
        kernel.moments(x, *vectors.values(), None, position, (5, 6), LinearMap())


def _layer(std="gradient"):
    layer = gossamer.bayesianize(nn.Linear(40, 30), density=0.1, std=std)
    return layer, torch.randn(4, 40)


def test_functional_call_with_a_short_mean_is_an_error():
    layer, x = _layer()
    parameters = dict(layer.named_parameters())
    with pytest.raises(ValueError, match="mean has 5 entries but 120 positions are active"):
        torch.func.functional_call(layer, parameters | {"weight.mean": torch.zeros(5, requires_grad=True)}, (x,))
    with pytest.raises(ValueError, match="bias has 3 entries but there are 30 outputs"):
        torch.func.functional_call(layer, parameters | {"bias": torch.zeros(3)}, (x,))


def test_a_model_on_another_device_than_its_input_is_an_error():
    layer, x = _layer()
    with pytest.raises((ValueError, RuntimeError), match="device"):
        layer.to("meta")(x)


@pytest.mark.parametrize("name", ["weight.mean", "weight.curvature", "weight.raw_std", "bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_a_state_assigned_in_another_precision_computes_the_same(name, dtype):
    layer, x = _layer("curvature" if name == "weight.curvature" else "gradient")
    layer.weight.noisy = False
    before = layer(x)
    state = layer.state_dict()
    layer.load_state_dict(state | {name: state[name].to(dtype)}, assign=True)
    torch.testing.assert_close(layer(x), before, rtol=0.02, atol=0.02)
    layer.weight.noisy = True
    assert layer(x).isfinite().all()
    layer(x).sum().backward()


def test_batched_gradients_are_those_of_the_reference():
    layer, x = _layer()
    layer.weight.noisy = False
    with pytest.raises(RuntimeError, match="no vectorized gradients"):
        torch.autograd.functional.jacobian(layer, x[:1], vectorize=True)
    with gossamer.kernels.use("dense"):
        found = torch.autograd.functional.jacobian(layer, x[:1], vectorize=True)
    torch.testing.assert_close(found[0, :, 0], layer.dense_mean())


@pytest.mark.parametrize("freed", ["x", "mean", "std", "position"])
def test_a_tensor_whose_memory_was_freed_is_an_error(freed):
    position = torch.arange(0, 60, 3)
    tensors = {"x": torch.randn(4, 10), "mean": torch.randn(20), "std": torch.rand(20), "position": position}
    tensors[freed].untyped_storage().resize_(0)
    where = tensors.pop("position"), (6, 10), LinearMap()
    with pytest.raises(RuntimeError, match=r"memory of a tensor of shape .* was freed"):
        native.moments(*tensors.values(), None, *where)


def test_a_lazy_negative_has_its_sign_in_the_passes_of_draws():
    """They call native code without torch's dispatcher, which would have written the negative down."""
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 3)), density=0.05)
    x = torch.randn(64, 200)
    lazy = torch._neg_view(x)
    assert lazy.is_neg()
    found, expected = (
        gossamer.predict(model, inputs, n_draws=4, generator=torch.Generator().manual_seed(1)).outputs
        for inputs in (lazy, -x)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_lazy_negative_has_its_sign():
    """Of the input, of the means and of the gradient."""
    where = torch.arange(0, 60, 3), (6, 10), LinearMap()
    x, mean = torch.randn(4, 10, requires_grad=True), torch.randn(20, requires_grad=True)
    grad = torch.randn(4, 6)
    lazy = [torch._neg_view(tensor) for tensor in (x, mean, grad)]
    assert all(tensor.is_neg() for tensor in lazy)
    y = native.product(lazy[0], lazy[1], None, *where)
    torch.testing.assert_close(y, reference.product(x, mean, None, *where))
    given = torch.autograd.grad(y, (x, mean), lazy[2])
    expected = torch.autograd.grad(reference.product(-x, -mean, None, *where), (x, mean), -grad)
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other)
