"""Networks as people write them: pools, means, dropout and flattening as calls inside ``forward``."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gossamer import compact

FLATTEN = {
    "view": lambda x: x.view(x.size(0), -1),
    "reshape": lambda x: x.reshape(x.shape[0], -1),
    "flatten": lambda x: torch.flatten(x, 1),
    "mean": lambda x: x.mean((2, 3)),
    "torch.mean": lambda x: torch.mean(x, dim=[-1, -2]),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
}
POOL = {
    "max": lambda x: F.max_pool2d(x, 2),
    "max, padded": lambda x: F.max_pool2d(x, kernel_size=3, stride=2, padding=1),
    "average": lambda x: F.avg_pool2d(x, 2, stride=2),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (4, 4)),
}


class Written(nn.Module):
    """Two convolutions and two linear layers, everything else by calls."""

    def __init__(self, pool, flatten, n_rows):
        super().__init__()
        self.pool, self.flatten = pool, flatten
        self.first, self.norm, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3)
        self.hidden, self.head = nn.Linear(n_rows, 12), nn.Linear(12, 3)

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.first(x))))
        x = self.flatten(F.dropout2d(torch.relu(self.second(x)), 0.1, self.training))
        return self.head(F.dropout(F.relu(self.hidden(x)), training=self.training))


def dead(pool, flatten):
    """A quarter of the channels and units of it, each with a constant that is not zero."""
    torch.manual_seed(0)
    n_rows = 8 if flatten in ("mean", "torch.mean", "adaptive") else 8 * 2 * 2
    model = Written(POOL[pool], FLATTEN[flatten], n_rows).double().eval()
    model.norm.running_mean.normal_()
    with torch.no_grad():
        for layer, rows in ((model.first, [1, 4]), (model.second, [0, 5]), (model.hidden, [2, 3, 7])):
            layer.weight[rows] = 0.0
    return model


@pytest.mark.parametrize("flatten", FLATTEN)
@pytest.mark.parametrize("pool", POOL)
def test_dead_channels_leave_through_calls(pool, flatten):
    model, x = dead(pool, flatten), torch.randn(5, 1, 8, 8, dtype=torch.float64)
    small = compact(model)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-12)
    assert not small.compaction.left
    assert (small.first.out_channels, small.second.out_channels, small.hidden.out_features) == (4, 6, 9)


def pads(x):
    return F.avg_pool2d(x, 3, 2, 1)  # zeros at the border: a constant is one no more


def knows_the_size(x):
    return x.view(-1, 32)  # fails where channels are gone


def reads_the_channels(x):
    return x.view(x.size(0), x.size(1) * 4)


def averages_one_direction(x):
    return x.mean(2).flatten(1)


UNPROVEN = {
    "avg_pool2d": (pads, FLATTEN["view"], 32, "first"),
    "view": (POOL["max"], knows_the_size, 32, "second"),
    "size": (POOL["max"], reads_the_channels, 32, "second"),
    "mean": (POOL["max"], averages_one_direction, 16, "second"),
}


@pytest.mark.parametrize("reason", UNPROVEN)
def test_calls_that_prove_nothing_keep_their_channels(reason):
    pool, flatten, n_rows, layer = UNPROVEN[reason]
    torch.manual_seed(0)
    model, x = Written(pool, flatten, n_rows).double().eval(), torch.randn(5, 1, 8, 8, dtype=torch.float64)
    model.get_submodule(layer).weight.data[1] = 0.0
    with pytest.warns(UserWarning, match=rf"{layer} \(1\): {reason} is not understood"):
        small = compact(model)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-12)
