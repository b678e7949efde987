"""Choices and sorted lists by native code: the numbers that torch finds, to the bit."""

import math

import pytest
import torch
from torch import Tensor

from gossamer.kernels import library, ordered

needs_native = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")
pytestmark = needs_native

KINDS = {
    "normal": torch.randn,
    "ties": lambda n: torch.randint(-3, 4, (n,)).float(),
    "alike": lambda n: torch.full((n,), -0.0).copysign(torch.randn(n)),
    "wide": lambda n: torch.randn(n) * 10.0 ** torch.randint(-40, 38, (n,)),
    "not finite": lambda n: torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])[torch.randint(6, (n,))],
    "neighbours": lambda n: 1 + torch.randint(0, 5, (n,)) * torch.finfo(torch.float32).eps,
}


def by_torch(monkeypatch: pytest.MonkeyPatch, function, *args):
    """The same without native code."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "LIBRARY", {})
        return function(*(arg.clone() if isinstance(arg, Tensor) else arg for arg in args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_highest_are_those_of_the_reference(kind, dtype, monkeypatch):
    for n in (1, 2, 7, 100, 5000):
        score = KINDS[kind](n).to(dtype)
        if kind == "neighbours" and dtype is torch.float64:
            score = score + torch.randint(0, 3, (n,)) * 1e-15
        for k in {0, 1, n // 3, n - 1, n}:
            mask = ordered.top_mask(score, k)
            assert torch.equal(mask, by_torch(monkeypatch, ordered.top_mask, score, k)), (n, k)
            order = score.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).sort(
                descending=True, stable=True
            )
            assert torch.equal(mask.nonzero().flatten(), order.indices[:k].sort().values)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_gradient_is_looked_through_as_by_the_reference(dtype, monkeypatch):
    for n, first, density, least in [
        (1, 0, 1.0, -math.inf), (9, 3, 0.5, 0.0), (1000, 17, 0.05, -math.inf), (1003, 500, 0.3, 1.5), (64, 0, 0.0, 9.0),
    ]:  # fmt: skip
        grad = torch.randn(n)
        grad[torch.rand(n) < 0.2] = 0.0
        position = (torch.rand(2 * n + first) < density).nonzero().flatten().to(dtype)
        frozen = (first + n // 4, first + n // 2) if n > 9 else (0, 0)
        position = position[(position < frozen[0]) | (position >= frozen[1])]
        before = torch.randn(len(position))
        active, theirs = before.clone(), before.clone()
        where, score, is_finite = ordered.look_through(grad.clone(), first, position, active, frozen, least)
        with monkeypatch.context() as patch:
            patch.setattr(library, "LIBRARY", {})
            expected = ordered.look_through(grad.clone(), first, position, theirs, frozen, least)
        assert is_finite
        assert where.dtype == dtype
        assert torch.equal(where, expected[0])
        assert torch.equal(score, expected[1])
        assert torch.equal(active, theirs)
        inside = (position >= first) & (position < first + n)
        assert torch.equal(active[inside], grad[position[inside].long() - first].abs())
        assert torch.equal(active[~inside], before[~inside])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_noticed(bad, monkeypatch):
    grad = torch.randn(100)
    grad[70] = bad
    known = (0, torch.tensor([70], dtype=torch.int32), torch.zeros(1), (60, 80), 1.0)
    assert not ordered.look_through(grad.clone(), *known)[2]
    assert not by_torch(monkeypatch, ordered.look_through, grad, *known)[2]


def test_sorted_lists(monkeypatch):
    for n, m in [(0, 0), (0, 5), (5, 0), (1, 1), (300, 40), (40, 300)]:
        numbers = torch.randperm(2000)[: n + m]
        a, b = numbers[:n].sort().values, numbers[n:].sort().values
        values, order = ordered.merged(a, b)
        assert torch.equal(values, numbers.sort().values)
        assert torch.equal(torch.cat([a, b])[order], values)
        assert all(map(torch.equal, (values, order), by_torch(monkeypatch, ordered.merged, a, b)))
    for n, m in [(1, 5), (5, 1), (300, 40), (40, 300)]:
        old, wanted = (torch.randperm(400)[:k].sort().values for k in (n, m))
        slot, is_new = ordered.located(old, wanted)
        assert torch.equal(is_new, ~torch.isin(wanted, old))
        assert torch.equal(torch.cat([old, torch.tensor([-1])])[slot], wanted.masked_fill(is_new, -1))
        assert all(map(torch.equal, (slot, is_new), by_torch(monkeypatch, ordered.located, old, wanted)))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_places_of_a_mask(share):
    for n in (0, 1, 5, 1000):
        mask = torch.rand(n) < share
        assert torch.equal(ordered.places(mask), mask.nonzero().flatten())


def test_no_memory_is_an_error(monkeypatch):
    monkeypatch.setitem(library.LIBRARY, "top_mask", lambda *_: 1)
    with pytest.raises(MemoryError, match="best of 5 scores"):
        ordered.top_mask(torch.randn(5), 2)
