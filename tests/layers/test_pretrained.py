"""A network that starts from given weights: its noise follows their scale, whatever the kind of layer."""

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights


class Reader(nn.Module):
    """A small BERT: embeddings of the scale that BERT has, normalised after they are added."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32, padding_idx=0), nn.Embedding(8, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)
        self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        with torch.no_grad():
            self.words.weight[0] = 0

    def forward(self, x):
        return self.head(self.body(self.norm(self.words(x) + self.places(torch.arange(x.shape[1])))).mean(1))


@pytest.fixture
def reader():
    torch.manual_seed(0)
    model = Reader()
    words = torch.randint(1, 50, (64, 8))
    return model, words


LAYERS = {
    "linear": lambda: nn.Linear(30, 40),
    "conv": lambda: nn.Conv2d(8, 16, 3),
    "transposed": lambda: nn.ConvTranspose1d(8, 16, 3, stride=2),
    "embedding": lambda: nn.Embedding(100, 16),
    "attention": lambda: nn.MultiheadAttention(16, 2),
    "lstm": lambda: nn.LSTM(8, 16),
}


@pytest.mark.parametrize("init", ["pretrained", "pretrained_random"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_the_first_stds_follow_the_given_weights(make, scale, init):
    torch.manual_seed(0)
    layer = make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(scale)
    for share in (None, 0.2):
        model = gossamer.bayesianize(nn.Sequential(copy.deepcopy(layer)), 1.0, init=init, relative_std=share)
        for weight in sparse_weights(model).values():
            expected = (share or 0.05) * weight.mean.detach().square().mean().sqrt()
            torch.testing.assert_close(weight.std.detach(), expected.expand_as(weight.std))


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_a_fresh_embedding_has_the_scale_of_the_given_one(scale):
    torch.manual_seed(0)
    layer = nn.Embedding(200, 32)
    nn.init.normal_(layer.weight, std=scale)
    model = gossamer.bayesianize(layer, density=0.25)
    ratio = float(model.std.detach().mean() / model.mean.detach().square().mean().sqrt())
    assert 0.09 < ratio < 0.11
    assert model.weight.prior_std == pytest.approx(2 * scale / 0.5, rel=0.05)


@pytest.mark.filterwarnings("ignore:the draws agree to the last digits")  # as they should, where the noise is small
def test_a_pretrained_start_predicts_as_before(reader):
    model, words = reader
    model.eval()
    expected = model(words).detach()
    spread = expected.std(0).mean()
    for share, bound in ((None, 0.5), (0.01, 0.1)):
        converted = copy.deepcopy(model)
        gossamer.bayesianize(converted, density=1.0, init="pretrained", relative_std=share)
        outputs = gossamer.predict(converted, words, n_draws=10).outputs
        assert float((outputs - expected).square().mean().sqrt()) < bound * float(spread)


def test_weights_that_are_all_zero_start_with_the_scale_of_their_fan_in():
    layer = nn.Linear(100, 10)
    nn.init.zeros_(layer.weight)
    std = gossamer.bayesianize(layer, density=1.0, init="pretrained").std
    torch.testing.assert_close(std.detach(), torch.full((1000,), 0.05 / 10))


def test_two_ways_to_set_the_std_are_one_too_many():
    with pytest.raises(ValueError, match="give one of them"):
        gossamer.bayesianize(nn.Linear(4, 2), init_std=0.1, relative_std=0.1)
    with pytest.raises(ValueError, match="relative_std must be a positive number"):
        gossamer.bayesianize(nn.Linear(4, 2), relative_std=0.0)
