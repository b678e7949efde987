"""Every stock module becomes a sparse Bayesian one that trains: the rows ``convert.*`` of ``docs/citizen.md``."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer.layers import sparse_weights


class First(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.embedding(x))


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False)


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), floats(4, 6)),
    "bare_linear": (lambda: nn.Linear(6, 3), floats(4, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3)), floats(4, 2, 9)),
    "conv2d_groups_circular": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular", groups=2)),
        floats(4, 4, 5, 5),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 2)), floats(4, 2, 3, 3, 3)),
    "conv_transpose2d": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 2, stride=2)), floats(4, 2, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(12, 8)), lambda: torch.randint(12, (4, 5))),
    "transformer_encoder": (encoder, floats(4, 5, 8)),
    "lstm_2layer_bidirectional": (lambda: First(nn.LSTM(4, 6, 2, bidirectional=True)), floats(5, 4, 4)),
    "batchnorm_net": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)),
        floats(4, 2, 5, 5),
    ),
    "tied": (Tied, lambda: torch.randint(12, (4, 5))),
}


@pytest.fixture(params=MODULES)
def plain(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, batch = MODULES[request.param]
    return build(), batch()


@pytest.mark.parametrize("noise", ["local", "weights"])
@pytest.mark.parametrize("std", ["curvature", "gradient"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_converted_modules_vary_and_train(plain: tuple[nn.Module, Tensor], training: bool, std: str, noise: str):
    module, x = plain
    shape, n_weights = module(x).shape, len([parameter for parameter in module.parameters() if parameter.dim() > 1])
    model = gossamer.bayesianize(module, density=0.4, std=std, noise=noise).train(training)
    assert model(x).shape == shape
    assert not torch.equal(model(x), model(x))
    assert len(sparse_weights(model)) == n_weights
    before = copy.deepcopy(dict(model.named_parameters()))
    stds = {name: weight.std.detach().clone() for name, weight in sparse_weights(model).items()}
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    if std == "curvature":
        gossamer.Curvature(model, optimizer, n_data=100, weight_decay=None)
        model(x).square().mean().backward()
    else:
        (model(x).square().mean() + gossamer.kl(model) / 100).backward()
    optimizer.step()
    for name, weight in sparse_weights(model).items():
        assert weight.mean.grad.abs().max() > 0, name
        assert not torch.equal(weight.std, stds[name]), name
        assert weight.std.isfinite().all(), name
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert any(not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_pretrained_weights_are_kept(plain: tuple[nn.Module, Tensor]):
    """All of them at density 1: the network at its means computes what it was given."""
    module, x = plain
    expected = module.eval()(x)
    model = gossamer.bayesianize(module, density=1.0, init="pretrained").eval()
    torch.testing.assert_close(gossamer.draw(model, at_mean=True)(x), expected)
    for weight in sparse_weights(model).values():
        weight.noisy = False
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


def test_a_fresh_start_is_the_default():
    """Without ``init="pretrained"`` the given weights are replaced."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    given = layer.weight.detach().flatten().clone()
    assert not torch.isclose(gossamer.bayesianize(layer, density=1.0).weight.mean, given).any()


def test_batch_norm_sees_each_batch_once_in_training():
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), density=0.5).train()
    x = torch.randn(8, 6)
    for _ in range(3):
        model(x)
    assert model[1].num_batches_tracked == 3
    gossamer.predict(model, x, n_draws=5)
    gossamer.predict(model, x, n_draws=5, kind="local")
    assert model[1].num_batches_tracked == 3


def test_tied_weights_stay_tied():
    torch.manual_seed(0)
    model = gossamer.bayesianize(Tied(), density=0.4)
    assert model.decoder.weight is model.embedding.weight
    assert gossamer.active_parameters(model) == round(0.4 * 12 * 8)
    assert len(list(model.parameters())) == 1  # one mean
    assert len([name for name, _ in model.named_buffers() if "curvature" in name]) == 1


@pytest.mark.parametrize("wrap", [
    lambda: torch.compile(nn.Linear(4, 2), backend="eager"),
    lambda: nn.Sequential(torch.compile(nn.Linear(4, 2), backend="eager")),
])  # fmt: skip
def test_a_compiled_network_is_sent_back(wrap: Callable[[], Any]):
    """The compiled layer would go on computing with its old weight, without a word."""
    with pytest.raises(ValueError, match="first, then compile it"):
        gossamer.bayesianize(wrap())


def test_a_network_in_ddp_is_sent_back():
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="wrap it in DistributedDataParallel"):
        gossamer.sparsify(wrapped)
