"""Autograd functions that behave as torch's and cost less to call."""

import pytest
import torch
from torch.func import grad, vmap

from gossamer.kernels.reference import Function


class Square(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor):
        return factor * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        return 2 * ctx.factor * x * grads[0], None


def test_values_and_first_and_second_derivatives():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.equal(Square.apply(x, 3.0), 3 * x * x)
    assert torch.autograd.gradcheck(lambda x: Square.apply(x, 3.0), x)
    assert torch.autograd.gradgradcheck(lambda x: Square.apply(x, 3.0), x)


def test_transforms_of_torch():
    x = torch.randn(5)
    torch.testing.assert_close(vmap(grad(lambda x: Square.apply(x, 3.0)))(x), 6 * x)


def test_a_tensor_that_outlives_its_transform():
    kept = []
    grad(lambda x: kept.append(x) or Square.apply(x, 1.0))(torch.tensor(2.0))
    assert float(Square.apply(kept[0], 1.0)) == 4.0


def test_compiled_in_one_graph():
    compiled = torch.compile(lambda x: Square.apply(x, 3.0).sum(), backend="aot_eager", fullgraph=True)
    x = torch.randn(5, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())


def test_signatures_are_not_looked_up(monkeypatch):
    def fail(*_):
        raise AssertionError("a signature was looked up")

    monkeypatch.setattr("inspect.signature", fail)
    assert float(Square.apply(torch.tensor(2.0), 1.0)) == 4.0


def test_defaults_are_refused_where_they_are_written():
    with pytest.raises(TypeError, match="forward must have no defaults: give every argument in the call"):

        class Scaled(Function):
            @staticmethod
            def forward(x, factor=2.0):
                return factor * x
