"""SET: which of five weights leave, and where the others come from."""

import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import two_moons
from gossamer.methods.set import share_of_sign
from gossamer.types import WeightStats


def test_the_smallest_of_each_sign_leave():
    """Two of five, by hand: 0.1, the smallest of three positive ones, and -1.0, the smaller of two negative ones."""
    five = torch.tensor([0.1, -3.0, 0.3, 0.2, -1.0])
    assert share_of_sign(WeightStats(five)).argsort()[:2].tolist() == [0, 4]  # by size alone: 0.1 and 0.2


def test_weights_of_one_sign_go_by_their_size():
    for sign in (1.0, -1.0):
        five = sign * torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0])
        assert share_of_sign(WeightStats(five)).argsort().tolist() == [1, 3, 4, 2, 0]


def layer_and_rule(seed):
    torch.manual_seed(seed)
    layer = gossamer.sparsify(nn.Linear(5, 2, bias=False), density=0.5)
    layer.support.position.copy_(torch.tensor([0, 1, 2, 3, 4]))
    layer.mean.data.copy_(torch.tensor([0.1, -3.0, 0.3, 0.2, -1.0]))
    method = methods.build("set", two_moons.load(), 10, update_period=1, replacement_rate=0.5)
    optimizer = method.optimizer(layer)
    return layer, optimizer, method.rules(layer, optimizer)[0]


def test_an_update_by_hand():
    """Those that stay keep their values; the two new ones are zero, and anywhere with the same probability."""
    counts, n = torch.zeros(10), 400
    for seed in range(n):
        layer, _, rule = layer_and_rule(seed)
        rule.step()
        found = dict(zip(layer.support.position.tolist(), layer.mean.tolist(), strict=True))
        assert len(found) == 5
        assert [round(found.pop(position), 6) for position in (1, 2, 3)] == [-3.0, 0.3, 0.2]
        assert all(found[position] == {0: 0.1, 4: -1.0}.get(position, 0.0) or position in (0, 4) for position in found)
        counts[list(found)] += 1
    share = 2 / 7  # two of the seven places that are free
    free = torch.tensor([0, 4, 5, 6, 7, 8, 9])
    assert not counts[[1, 2, 3]].any()
    assert bool(((counts[free] / n - share).abs() < 4 * (share * (1 - share) / n) ** 0.5).all())
