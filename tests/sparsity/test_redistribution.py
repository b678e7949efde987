"""Entries that move between layers: what may never move, and what a rule is told to do about it."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.sparsity import Redistribution


class Reshuffled(Redistribution):
    """Half of all entries leave, and come back anywhere."""

    def keep(self, batch):
        return torch.rand(batch.active.total) < 0.5

    def shares(self, batch, kept):
        return torch.rand(len(batch.weights)).tolist()

    def scores(self, name, weight, removed):
        return torch.rand(weight.shape.numel())


def rule_of(model, **clock):
    optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=0.01)
    return optimizer, Reshuffled(model, optimizer, **{"update_period": lambda step: 1, "last_step": 1000} | clock)


def test_layers_kept_dense_stay_dense_and_padding_stays_zero():
    torch.manual_seed(0)
    plain = nn.ModuleDict(
        {"stem": nn.Linear(4, 8), "words": nn.Embedding(9, 8, padding_idx=2), "head": nn.Linear(8, 3)}
    )
    model = gossamer.sparsify(plain, density=0.4, keep_dense=["stem"])
    _, rule = rule_of(model)
    total = gossamer.active_parameters(model)
    for _ in range(100):
        rule.step()
        assert gossamer.active_parameters(model) == total
        assert sparse_weights(model)["stem"].support.is_dense
        assert not model["words"].weight.dense_mean()[2].any()


def test_entries_that_stay_keep_their_state_and_new_ones_start_at_zero():
    torch.manual_seed(0)
    model = gossamer.sparsify(nn.Sequential(nn.Linear(12, 10), nn.Linear(10, 4)), density=0.3)
    optimizer, rule = rule_of(model)
    weights = sparse_weights(model)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()

        def state(weights=weights):
            return {
                (name, position): numbers
                for name, weight in weights.items()
                for position, *numbers in zip(
                    weight.support.position.tolist(),
                    weight.mean.tolist(),
                    weight.mean.grad.tolist(),
                    optimizer.state[weight.mean]["exp_avg"].tolist(),
                    strict=True,
                )
            }

        before = state()
        rule.step()
        for place, numbers in state().items():
            assert numbers == before.get(place, [0.0, 0.0, 0.0])


def test_updates_stop():
    model = gossamer.sparsify(nn.Linear(12, 10), density=0.3)
    _, rule = rule_of(model, update_period=lambda step: 3, last_step=7)
    assert [step for step in range(1, 12) if rule.step()] == [3, 6]


def test_a_network_without_inactive_entries_is_refused():
    with pytest.raises(ValueError, match="no weights have inactive entries"):
        rule_of(gossamer.sparsify(nn.Linear(3, 2), density=1.0))
