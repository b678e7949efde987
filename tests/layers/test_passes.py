"""Which backward passes count: those that ``.grad`` of a mean is the sum of."""

import pytest
import torch
from torch import nn

from gossamer.layers.passes import GradientSum


class Counted:
    """A parameter and a leaf beside it, of which every pass adds its number of passes since the last clearing."""

    def __init__(self) -> None:
        self.mean, self.leaf = nn.Parameter(torch.ones(3)), torch.zeros(3, requires_grad=True)
        self.sum = GradientSum(self.mean, self.clear)
        self.sum.attach(self.leaf)

    def clear(self) -> None:
        self.leaf.grad = None

    def loss(self) -> torch.Tensor:
        return (self.mean * 2 + self.leaf).sum()

    @property
    def n_passes(self) -> float:
        assert self.leaf.grad is None or self.mean.grad.equal(2 * self.leaf.grad)
        return 0.0 if self.leaf.grad is None else float(self.leaf.grad[0])


def test_passes_add_up_until_the_gradient_is_cleared():
    counted = Counted()
    for _ in range(3):
        counted.loss().backward()
    assert counted.n_passes == 3
    counted.mean.grad = None
    counted.loss().backward()
    assert counted.n_passes == 1
    counted.mean.grad.zero_()
    counted.loss().backward()
    counted.loss().backward()
    assert counted.n_passes == 2


def test_a_gradient_of_zeros_that_nobody_has_touched_is_not_a_cleared_one():
    counted = Counted()
    (0 * counted.mean.sum() + counted.leaf.sum()).backward()
    (0 * counted.mean.sum() + counted.leaf.sum()).backward()
    assert counted.leaf.grad.eq(2).all()


def test_clipped_gradients_are_not_cleared_ones():
    counted = Counted()
    counted.loss().backward()
    counted.mean.grad.mul_(0.5)
    counted.loss().backward()
    assert counted.leaf.grad.eq(2).all()


@pytest.mark.parametrize("kept", [False, True])
def test_nothing_is_cleared_after_detach(kept):
    counted = Counted()
    counted.loss().backward()
    if not kept:
        counted.sum.detach()
    counted.mean.grad = None
    counted.loss().backward()
    assert counted.leaf.grad.eq(1 if kept else 2).all()
