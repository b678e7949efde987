"""Plans of the native kernel: derived from positions, never stale, never left behind."""

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.kernels import LinearMap, library, native, reference

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")


def plan_bytes(position):
    return sum(native.library.LIBRARY["bytes"](plan.address) for plan in native.plans_of(position))


def test_a_plan_follows_its_positions_and_goes_with_them():
    layer = gossamer.bayesianize(nn.Linear(40, 30), density=0.1)
    layer.weight.noisy = False
    x = torch.randn(5, 40)

    def agrees():
        torch.testing.assert_close(layer(x), F.linear(x, layer.dense_mean(), layer.bias))

    agrees()
    support = layer.support
    assert plan_bytes(support.position) > 0
    n_plans = len(native._plans)
    support.set_position(torch.randperm(1200)[:120].sort().values.int())
    agrees()  # after a move
    layer.load_state_dict(gossamer.bayesianize(nn.Linear(40, 30), density=0.1).state_dict())
    agrees()  # after another state
    layer.load_state_dict(gossamer.bayesianize(nn.Linear(40, 30), density=0.2).state_dict())
    agrees()  # of another size
    assert len(native._plans) <= n_plans
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.weight.noisy = False  # a copy has its noise back
        assert torch.equal(twin(x), layer(x))
    assert not any("plan" in key for key in layer.state_dict())


@pytest.fixture
def living(monkeypatch):
    """The plans that the library has made and not yet freed."""
    addresses, make, free = set(), library.LIBRARY["plan"], library.LIBRARY["free"]

    def plan(*arguments):
        address = make(*arguments)
        addresses.add(address)
        return address

    monkeypatch.setitem(library.LIBRARY, "plan", plan)
    monkeypatch.setitem(library.LIBRARY, "free", lambda address: addresses.discard(address) or free(address))
    return addresses


def test_plans_go_with_their_positions(living):
    """Many networks, moves and batch sizes; nothing is left but the plans of what still lives."""
    gc.collect()
    before = len(native._plans)
    kept = gossamer.bayesianize(nn.Linear(40, 30), density=0.1)
    kept(torch.randn(5, 40))
    for i in range(200):
        layer = gossamer.bayesianize(nn.Linear(40, 30), density=0.1)
        for batch in (1, 12, 40):
            layer(torch.randn(batch, 40)).sum().backward()
        assert len(living) == 4
        layer.support.set_position(torch.randperm(1200)[: 120 + i % 2].sort().values.int())
        if i % 2 == 0:
            layer(torch.randn(1, 40))
            assert len(living) == 2
    del layer
    gc.collect()
    assert len(living) == 1
    assert len(native._plans) == before + 1
    assert plan_bytes(kept.support.position) < 100 * 120 + 1000


def test_a_plan_that_another_thread_displaces_lives_until_its_call_ends(living):
    position = torch.arange(0, 1200, 10, dtype=torch.int32)
    numbers = native.geometry(torch.zeros(1, 40), (30, 40), LinearMap())
    plan = native.plan_of(position, numbers, 1)
    position.add_(1)
    native.plan_of(position, numbers, 1)
    assert len(living) == 2
    del plan
    assert len(living) == 1


def test_inference_tensors_have_plans_that_follow_them(living):
    with torch.inference_mode():
        layer = gossamer.bayesianize(nn.Linear(40, 30), density=0.1)
        layer.weight.noisy = False
        x = torch.randn(5, 40)
        for _ in range(2):
            torch.testing.assert_close(layer(x), F.linear(x, layer.dense_mean(), layer.bias))
            layer.support.position.copy_(torch.randperm(1200)[:120].sort().values)
        del layer
    assert not living


def test_a_write_that_does_not_raise_the_version_counter_is_noticed():
    """As that of ``position.data.copy_()`` or of a broadcast by torch.distributed."""
    position = torch.arange(0, 1200, 10)
    x, mean, where = torch.randn(5, 40), torch.randn(120), (position, (30, 40), LinearMap())
    native.product(x, mean, None, *where)
    position.data.copy_(torch.randperm(1200)[:120].sort().values)
    torch.testing.assert_close(native.product(x, mean, None, *where), reference.product(x, mean, None, *where))


def test_the_backward_pass_uses_the_positions_of_the_forward_pass():
    position, mean = torch.arange(0, 1200, 10), torch.randn(120, requires_grad=True)
    x = torch.randn(5, 40)
    dense = F.linear(x, reference.scatter(mean, position, (30, 40)))
    (expected,) = torch.autograd.grad(dense.square().sum(), mean)
    y = native.product(x, mean, None, position, (30, 40), LinearMap())
    position.data.copy_(torch.randperm(1200)[:120].sort().values)
    (gradient,) = torch.autograd.grad(y.square().sum(), mean)
    torch.testing.assert_close(gradient, expected)


def test_images_of_many_sizes_do_not_pile_up_plans():
    layer = gossamer.bayesianize(nn.Conv2d(4, 8, 3, padding=1), density=0.2, keep_dense=())
    layer.weight.noisy = False
    for size in range(3, 20):
        x = torch.randn(2, 4, size, size)
        torch.testing.assert_close(layer(x), F.conv2d(x, layer.dense_mean(), layer.bias, padding=1))
    assert len(native.plans_of(layer.support.position)) == native.MOST_PLANS


@pytest.mark.parametrize("position", [[1, 4, 30], [-1, 4, 5], [1, 7, 4], [29, 0, 1]])
@pytest.mark.parametrize("rows", [None, (1, 4)])
def test_positions_outside_the_weight_or_out_of_order_are_an_error(position, rows):
    x, active = torch.randn(3, 6), torch.ones(3)
    with pytest.raises(ValueError, match="not sorted or lie outside the weight"):
        native.moments(x, active, active, None, torch.tensor(position, dtype=torch.int32), (5, 6), LinearMap(rows))


def test_ranges_of_rows_share_the_positions_and_keep_their_plans(living):
    """Query, key and value of a packed projection."""
    layer = gossamer.bayesianize(nn.MultiheadAttention(12, 2, batch_first=True), density=0.2)
    q, k, v = torch.randn(3, 2, 20, 12)
    for _ in range(3):
        layer(q, k, v)
        assert len(living) == 4  # three and the output projection
    assert len(native.plans_of(layer.in_proj.support.position)) == 3
