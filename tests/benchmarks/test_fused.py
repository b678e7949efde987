"""The script that times the fused kernels: its layers are those of the network, its plans add up."""

from collections import Counter

import pytest
import torch

import gossamer
from benchmarks import fused as script
from gossamer.kernels.fused import Geometry, as_images
from gossamer.models.resnet import resnet18
from gossamer.train.capture import FlatWeights


def test_its_layers_are_the_convolutions_of_resnet18():
    model = gossamer.bayesianize(resnet18(), density=0.01)
    working = FlatWeights(model, torch.float32)
    working.prepare_noise(lambda: model(torch.zeros(2, 3, 32, 32)))
    found = Counter()
    for weight in working.weights:
        (shape, weight_map), dense = weight.dense_copy.inputs[0], weight.dense_copy.mean
        x, dense, stride, padding = as_images(torch.empty(shape, device="meta"), dense, weight_map)
        found[Geometry.of(tuple(x.shape), tuple(dense.shape), stride, padding)] += 1
    del found[Geometry(2, 512, 1, 1, 10, (1, 1), 1, (0, 0))]  # the head, which is linear
    assert found == Counter({geometry: count for count, geometry in script.layers(2).values()})


def test_errors_are_relative():
    assert script.relative(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]).double()) == pytest.approx(0.1)
