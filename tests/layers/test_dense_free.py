"""No tensor of a dense weight's size outlives the forward or the backward pass of its layer, gradients included."""

import gc
import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.layers.curvature import learn

# Odd sizes, so that nothing else (inputs, outputs, biases) has the size of a weight by chance.
MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(37, 41)), lambda: torch.randn(3, 37)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(7, 11, 3, padding=1)), lambda: torch.randn(2, 7, 5, 5)),
    "padded_conv": (
        lambda: nn.Sequential(nn.Conv1d(7, 11, 4, padding="same", padding_mode="reflect")),
        lambda: torch.randn(2, 7, 9),
    ),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(7, 11, 3, stride=2)), lambda: torch.randn(2, 7, 4, 4)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(43, 17, padding_idx=0)), lambda: torch.randint(43, (2, 5))),
    "lstm": (lambda: nn.LSTM(13, 17, num_layers=2, bidirectional=True), lambda: torch.randn(5, 2, 13)),
    "gru": (lambda: nn.GRU(13, 17), lambda: torch.randn(5, 2, 13)),
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(22, 2, 31, batch_first=True),
        lambda: torch.randn(3, 5, 22),
    ),
    "decoder_layer": (lambda: Decoder(), lambda: torch.randn(3, 5, 22)),
}


class Decoder(nn.Module):
    """Cross-attention, of which the fused projection is used in parts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(22, 2, 31, batch_first=True)

    def forward(self, x):
        return self.layer(x[:, :2], x)


@pytest.fixture(autouse=True)
def _only_new_objects():
    """What is there before a test is not looked at: tensors of other tests, and all of torch."""
    gc.collect()
    gc.freeze()


def alive() -> list[torch.Tensor]:
    gc.collect()
    return [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]


def n_stored(tensor: torch.Tensor) -> int:
    """Numbers in the memory behind a tensor, also behind a small view of a large one."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def loss_of(output) -> torch.Tensor:
    return (output if isinstance(output, torch.Tensor) else output[0]).square().sum()


def learning(model: nn.Module, density: float, **options) -> nn.Module:
    """With standard deviations that learn from curvature, by weights that the caller steps."""
    model = gossamer.bayesianize(model, density, std="curvature", **options)
    gossamer.Curvature(model, torch.optim.SGD(gossamer.param_groups(model), lr=0.1), n_data=100)
    return model


def drawing(model: nn.Module, density: float, **options) -> nn.Module:
    return learning(model, density, noise="weights", **options)


def by_gradient(model: nn.Module, density: float, **options) -> nn.Module:
    return gossamer.bayesianize(model, density, std="gradient", **options)


@pytest.mark.parametrize("convert", [learning, drawing, by_gradient, gossamer.sparsify])
@pytest.mark.parametrize(("make", "draw_input"), MODELS.values(), ids=MODELS)
def test_nothing_dense_outlives_a_pass(make, draw_input, convert):
    torch.manual_seed(0)
    model = convert(make(), 0.1, keep_dense=())
    sizes = {math.prod(weight.support.shape) for weight in sparse_weights(model).values()}

    def dense() -> list[tuple[int, ...]]:
        return [tuple(tensor.shape) for tensor in alive() if {tensor.numel(), n_stored(tensor)} & sizes]

    def record(tensor):
        saved.append(tensor)
        return tensor

    saved: list[torch.Tensor] = []
    x = draw_input()
    if x.is_floating_point():
        x.requires_grad_()
    assert not dense()
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        loss = loss_of(model(x))
    assert saved
    assert not [tensor.shape for tensor in saved if {tensor.numel(), n_stored(tensor)} & sizes]
    saved.clear()
    assert not dense()
    loss.backward()
    assert not dense()
    for weight in sparse_weights(model).values():
        if convert in (learning, drawing):
            learn(weight, weight.estimates.take(weight.mean), weight.mean.grad)
    assert not dense()
    for weight in sparse_weights(model).values():
        assert weight.mean.grad.shape == weight.mean.shape
        assert weight.mean.grad.any()


def test_the_check_sees_what_a_plain_layer_keeps():
    """The plain layer's weight and gradient are of the size looked for: the test above can fail."""
    plain = nn.Linear(37, 41)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        loss = plain(torch.randn(3, 37, requires_grad=True)).square().sum()
    loss.backward()
    assert 37 * 41 in {tensor.numel() for tensor in saved}
    assert sum(tensor.numel() == 37 * 41 for tensor in alive()) >= 2  # the weight and its gradient


def test_the_dense_gradient_of_an_armed_weight_is_forgotten_when_it_is_taken():
    torch.manual_seed(0)
    layer = gossamer.bayesianize(nn.Linear(37, 41), 0.1)
    layer.weight.arm()
    assert n_stored(layer.weight.probe) == 1
    layer(torch.randn(3, 37)).square().sum().backward()
    grad = layer.weight.disarm()
    torch.testing.assert_close(layer.support.gather(grad), layer.mean.grad)
    del grad
    assert 37 * 41 not in {tensor.numel() for tensor in alive()}
    assert layer.weight.disarm() is None
