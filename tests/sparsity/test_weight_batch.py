"""Weights taken as one show the numbers that each of them shows."""

from __future__ import annotations

import pytest
import torch

import gossamer
from gossamer.layers import GaussianWeight, sparse_weights
from gossamer.sparsity.weight_batch import WeightBatch, are_one_kind


class Own(GaussianWeight):
    """A kind that nobody here knows."""


@pytest.mark.parametrize("convert", [gossamer.bayesianize, gossamer.sparsify])
def test_stats(convert, mlp):
    weights = list(sparse_weights(mlp(convert)).values())
    joint = WeightBatch(weights).stats()
    assert torch.equal(joint.mean, torch.cat([weight.mean for weight in weights]))
    if convert is gossamer.sparsify:
        assert joint.std is None
    else:
        torch.testing.assert_close(joint.std, torch.cat([weight.std for weight in weights]).detach())
        assert not joint.std.requires_grad


@pytest.mark.parametrize("regrow_std", [None, "mean", "mean_raw", 0.3])
@pytest.mark.parametrize("convert", [gossamer.bayesianize, gossamer.sparsify])
def test_regrown(convert, regrow_std, mlp):
    weights = list(sparse_weights(mlp(convert)).values())
    for weight in weights:
        if "raw_std" in weight.vectors:
            weight.raw_std.data.normal_()
    masks = [torch.rand(len(weight.mean)) < 0.6 for weight in weights]
    together = WeightBatch(weights).regrown(torch.cat(masks), regrow_std)
    for number, (weight, mask) in enumerate(zip(weights, masks, strict=True)):
        expected = weight.regrown(mask, regrow_std)
        torch.testing.assert_close({name: values[number] for name, values in together.items()}, expected)


def test_only_weights_of_one_known_kind_are_one(mlp):
    model = mlp()
    weights = list(sparse_weights(model).values())
    assert are_one_kind(weights)
    points = list(sparse_weights(mlp(gossamer.sparsify)).values())
    assert not are_one_kind([*weights, *points])
    weights[0].mode = "reference"
    assert not are_one_kind(weights)
    weights[0].mode = "default"
    assert not are_one_kind([weights[0], weights[1].to(torch.float64)])
    first = weights[0]
    assert not are_one_kind([Own(first.support, first.mean.detach(), first.std.detach(), prior_std=1.0)])
