"""The budget is constant to the last integer, over all criteria, scopes, allocations, densities and rates."""

from __future__ import annotations

import math
import zlib
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.schedules import constant
from gossamer.sparsity.criteria import ADDITION, REMOVAL


class Reader(nn.Module):
    """An embedding with a padding row, a convolution and a linear layer."""

    def __init__(self, words: int, padding: int, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=padding)
        self.conv = nn.Conv1d(width, hidden, 3, padding=1)
        self.head = nn.Linear(hidden, out)

    def forward(self, x):
        return self.head(self.conv(self.embedding(x).transpose(1, 2)).tanh().mean(-1))


def gives_nothing(stats):
    """A criterion for which all entries are as bad as those that may not be chosen."""
    return torch.where(torch.arange(len(stats.mean)) % 3 == 0, -math.inf, math.nan)


N_UPDATES = 4
REMOVALS = {**{name: name for name in REMOVAL}, "callable": lambda stats: -stats.mean, "nothing": gives_nothing}
ADDITIONS = {
    **{name: name for name in ADDITION},
    "callable": lambda stats: stats.grad * stats.mean,
    "nothing": gives_nothing,
}


@st.composite
def cases(draw):
    words = draw(st.integers(2, 9))
    return {
        "shape": (words, draw(st.integers(0, words - 1)), *(draw(st.integers(1, 6)) for _ in range(3))),
        "density": draw(st.floats(0.02, 0.9)),
        "rate": draw(st.sampled_from([0.0, 1.0]) | st.floats(0, 1)),
        "allocation": draw(st.sampled_from(["uniform", "erk", "global"])),
        "points": draw(st.booleans()),
        "seed": draw(st.integers(0, 10_000)),
    }


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("addition", ADDITIONS)
@pytest.mark.parametrize("removal", REMOVALS)
def test_budget_is_constant_to_the_last_integer(removal, addition, scope):
    """8 removals x 6 additions x 2 scopes x 3 cases x 4 updates = 1,152 updates."""

    @seed(zlib.crc32(f"{removal}, {addition}, {scope}".encode()))  # other cases for each row
    @settings(max_examples=3, deadline=None, database=None)
    @given(case=cases())
    def check(case):
        torch.manual_seed(case["seed"])
        points = case["points"] and removal in ("magnitude", "callable", "nothing")
        convert = gossamer.sparsify if points else partial(gossamer.bayesianize, std="gradient")
        model = convert(Reader(*case["shape"]), case["density"], allocation=case["allocation"])
        optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1, momentum=0.9)
        subspace = gossamer.Subspace(
            model,
            optimizer,
            total_steps=N_UPDATES + 1,
            update_period=1,
            until=1.0,
            replacement_rate=constant(case["rate"]),
            removal=REMOVALS[removal],
            addition=ADDITIONS[addition],
            scope=scope,
        )
        x, y = torch.randint(0, case["shape"][0], (8, 3)), torch.randn(8, case["shape"][-1])

        def loss():
            return F.mse_loss(model(x), y)

        counts = n_active(model)
        for _ in range(N_UPDATES):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            assert subspace.step(loss) is bool(subspace.weights)
            after = n_active(model)
            assert sum(after.values()) == sum(counts.values())
            assert scope == "global" or after == counts
            assert min(after.values()) >= 1
            check_supports(model)
        assert len(subspace.record) == N_UPDATES
        check_draw(model)

    check()


def n_active(model):
    return {name: weight.support.n_active for name, weight in sparse_weights(model).items()}


def check_supports(model):
    for weight in sparse_weights(model).values():
        if weight.support.position is not None:
            weight.support.check(weight.support.position)
            for name in weight.vectors:
                assert weight.get_parameter(name).shape == (weight.support.n_active,)
                assert weight.get_parameter(name).isfinite().all()
    start, stop = sparse_weights(model)["embedding"].support.frozen
    position = sparse_weights(model)["embedding"].support.position
    assert stop > start
    assert not ((position >= start) & (position < stop)).any()


def check_draw(model):
    network = gossamer.draw(model)
    for name, weight in sparse_weights(model).items():
        drawn = network.get_submodule(name).weight.detach().flatten()
        inactive = torch.ones(len(drawn), dtype=torch.bool)
        inactive[slice(None) if weight.support.position is None else weight.support.position.long()] = False
        assert (drawn[inactive] == 0).all()
