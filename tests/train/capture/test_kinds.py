"""Working weights for every kind of layer: the numbers of plain steps, whatever a layer does with its weight."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.layers.curvature import attach
from gossamer.likelihoods import Categorical
from gossamer.train import Training
from gossamer.train.capture import CapturedSteps
from gossamer.train.capture.flat_weights import FlatWeights
from gossamer.types import Task


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Tied(nn.Module):
    """One weight for two layers of different kinds."""

    def __init__(self):
        super().__init__()
        self.words, self.inner = nn.Embedding(20, 12), nn.Linear(12, 12)
        self.decoder, self.head = nn.Linear(12, 20, bias=False), nn.Linear(20, 4)
        self.decoder.weight = self.words.weight

    def forward(self, x):
        return self.head(self.decoder(torch.tanh(self.inner(self.words(x)))).mean(1))


class Twice(nn.Module):
    """One layer, called twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.inner(torch.relu(self.inner(x))))


def words(n):
    return torch.randint(20, (n, 5))


# name -> network, inputs
KINDS = {
    "embedding": (lambda: nn.Sequential(nn.Embedding(20, 12, padding_idx=0), Mean(), nn.Linear(12, 4)), words),
    "tied": (Tied, words),
    "twice": (Twice, lambda n: torch.randn(n, 12)),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Flatten(), nn.Linear(24, 4)),
        lambda n: torch.randn(n, 3, 6),
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.Conv1d(6, 6, 3, groups=2), nn.Flatten(), nn.Linear(36, 4)
        ),
        lambda n: torch.randn(n, 3, 10),
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.ReLU(), nn.Conv3d(4, 4, 2), nn.Flatten(), nn.Linear(32, 4)),
        lambda n: torch.randn(n, 2, 4, 4, 4),
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2), nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Flatten(), nn.Linear(108, 4)
        ),
        lambda n: torch.randn(n, 2, 4, 4),
    ),
}
METHODS = {
    # The noise of convolutions lies in memory in another order, so here it is next to nothing.
    "ssvi": {"density": 0.4, "update_period": 5, "mode": "reference", "init_std": 1e-7},
    "rigl": {"density": 0.4, "update_period": 5},
    "sgd": {},
}


def training(kind, method):
    build, draw = KINDS[kind]
    torch.manual_seed(0)
    split = (draw(70), torch.randint(4, (70,)))
    task = Task(split, split, split, Categorical(), 4)
    return Training(methods.build(method, task, 21, **METHODS[method]), build(), task, 21, batch_size=16, seed=3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_plain_steps(kind, method):
    with gossamer.kernels.use("dense"):
        plain, other = training(kind, method), training(kind, method)
        parts = other.model, other.inner_optimizer, other.task, other.method.penalty
        other.taking = CapturedSteps(*parts, torch.float32, captures=False, compiles=False)
        for _ in range(12):
            torch.testing.assert_close(other.advance(), plain.advance(), rtol=1e-3, atol=1e-4)
    assert other.taking is not other.eager
    for mine, theirs in zip(other.rules, plain.rules, strict=True):
        assert mine.record == theirs.record
        assert len(mine.record) == 2


def test_weights_of_several_temperatures_keep_their_own():
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)), density=0.5)
    for layer, noise_scale in ((model[0], 1e-3), (model[2], 1e-4)):
        attach(layer.weight, noise_scale)
    expected = torch.cat([model[0].std, model[2].std]).detach()
    flat = FlatWeights(model, torch.float32)
    flat.set_rate(noisy=True)
    torch.testing.assert_close(flat.std, expected)
    flat.close()
