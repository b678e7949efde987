"""References to layers from anywhere in a network: conversion follows them, or refuses by name."""

import collections
import functools
import types
import weakref
from typing import NamedTuple

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import SparseModule


class Pair(NamedTuple):
    first: nn.Module
    second: nn.Module


def as_list(model):
    model.path = [model.a, model.b]


def as_tuple(model):
    model.path = (model.a, ["between", (model.b,)])


def as_named_tuple(model):
    model.path = Pair(model.a, model.b)


def as_dict(model):
    model.path = {"a": model.a, "rest": {"b": model.b}}


def as_set_and_queue(model):
    model.path = {nn.Sequential(model.a)}, collections.deque([model.b])


def as_bound_method(model):
    model.path = (model.a.forward, model.b.__call__)


def as_partial(model):
    model.path = functools.partial(lambda first, x, second: second(first(x)), model.a, second=model.b)


def as_hidden_module(model):
    model.path = [nn.Sequential(model.a, model.b)]  # in a list: not registered


def as_plain_attribute(model):
    model.__dict__["path"] = model.b


WAYS = [
    as_list, as_tuple, as_named_tuple, as_dict, as_set_and_queue, as_bound_method, as_partial, as_hidden_module,
    as_plain_attribute,
]  # fmt: skip


class Referring(nn.Module):
    def __init__(self, way) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)
        way(self)
        self.way = way

    def forward(self, x):
        return RUN[self.way](self)(x)


RUN = {
    as_list: lambda m: lambda x: m.path[1](m.path[0](x)),
    as_tuple: lambda m: lambda x: m.path[1][1][0](m.path[0](x)),
    as_named_tuple: lambda m: lambda x: m.path.second(m.path.first(x)),
    as_dict: lambda m: lambda x: m.path["rest"]["b"](m.path["a"](x)),
    as_set_and_queue: lambda m: lambda x: m.path[1][0](next(iter(m.path[0]))(x)),
    as_bound_method: lambda m: lambda x: m.path[1](m.path[0](x)),
    as_partial: lambda m: lambda x: m.path(x),
    as_hidden_module: lambda m: lambda x: m.path[0](x),
    as_plain_attribute: lambda m: lambda x: m.path(m.a(x)),
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_reference_holds_through_conversion(way):
    torch.manual_seed(0)
    model, x = gossamer.bayesianize(Referring(way), density=0.5), torch.randn(3, 4)
    first, second = model(x), model(x)
    assert not torch.equal(first, second), "no noise: the old layer is still used"
    first.sum().backward()
    assert model.a.mean.grad.any()
    assert model.b.mean.grad.any()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_reference_holds_in_draws(way):
    torch.manual_seed(0)
    model, x = gossamer.bayesianize(Referring(way), density=0.5), torch.randn(3, 4)
    network = gossamer.draw(model, at_mean=True)
    assert not any(isinstance(module, SparseModule) for module in network.modules())
    torch.testing.assert_close(network(x), network.b(network.a(x)))
    local = gossamer.predict(model, x, n_draws=2, kind="local").outputs
    assert not torch.equal(local[0], local[1])


def test_a_list_that_the_user_holds_too_is_changed_in_place():
    model = Referring(as_list)
    path = model.path
    gossamer.sparsify(model, 0.5)
    assert path is model.path
    assert path == [model.a, model.b]


ELSEWHERE = {
    "a variable of a function": lambda a: lambda x: a(x),
    "an object": lambda a: types.SimpleNamespace(a=a),
    "a list of an object": lambda a: types.SimpleNamespace(layers=[a]),
    "a method of an object": lambda a: types.SimpleNamespace(run=a.forward),
    "a weak reference": weakref.ref,
    "another method": lambda a: a.extra_repr,
}


@pytest.mark.parametrize("hold", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_reference_from_elsewhere_is_refused_by_name(hold):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[1].path = [hold(model[0])]
    with pytest.raises(ValueError, match=r"also referred to by model\.1\.path,"):
        gossamer.bayesianize(model, 0.5)
    assert type(model[0]) is nn.Linear


def test_a_key_is_refused_by_name_and_nothing_is_converted():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 2))
    model[0].names = {model[1]: "head"}
    with pytest.raises(ValueError, match=r"also referred to by model\.0\.names,"):
        gossamer.bayesianize(model, 0.5)
    assert [type(layer) for layer in (model[0][0], model[1])] == [nn.Linear] * 2, "refused, and half converted"
    gossamer.bayesianize(model, 0.5, exclude="1")


def wrapped(layer):
    """As accelerate's ``add_hook_to_module`` does it."""
    layer._old_forward = layer.forward
    layer.forward = functools.partial(lambda module, *args: module._old_forward(*args), layer)
    return layer


def test_a_wrapped_forward_is_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4), wrapped(nn.Linear(4, 2)))
    with pytest.raises(ValueError, match=r"1\.forward of this Linear was replaced or wrapped"):
        gossamer.bayesianize(model, 0.5)
    gossamer.bayesianize(model, 0.5, exclude="1")


def test_a_wrapped_forward_of_a_container_holds():
    torch.manual_seed(0)
    model = wrapped(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    gossamer.bayesianize(model, 0.5)
    x = torch.randn(3, 4)
    assert not torch.equal(model(x), model(x))
    network = gossamer.draw(model)
    assert torch.equal(network(x), network(x))
