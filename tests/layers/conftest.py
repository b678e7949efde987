"""What several tests of the layers need."""

import copy

import pytest

import gossamer
from gossamer.layers import sparse_weights


@pytest.fixture(params=["at the means", "without variance"])
def same_network(request):
    """A function: plain module -> its converted copy that should compute the same, by either of two ways."""

    def convert(plain, **options):
        init_std = 1e-20 if request.param == "without variance" else None
        options = {"density": 1.0, "init": "pretrained", "init_std": init_std} | options
        model = gossamer.bayesianize(copy.deepcopy(plain), **options)
        for weight in sparse_weights(model).values():
            weight.noisy = request.param == "without variance"
        return model

    return convert
