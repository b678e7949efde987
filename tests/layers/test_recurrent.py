"""Recurrent layers: every variant of torch's modules, with weights drawn once a call."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import gossamer
from gossamer.layers import sparse_weights

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

LENGTH, BATCH, WIDTH, STATE = 5, 3, 4, 6

VARIANTS = {
    "rnn": (nn.RNN, {}),
    "rnn_relu_no_bias": (nn.RNN, {"nonlinearity": "relu", "bias": False, "num_layers": 2}),
    "gru": (nn.GRU, {"bidirectional": True}),
    "gru_deep": (nn.GRU, {"num_layers": 3}),
    "lstm": (nn.LSTM, {}),
    "lstm_deep_both_ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm_projected": (nn.LSTM, {"proj_size": 2}),
    "lstm_projected_deep_both_ways": (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
}
variants = pytest.mark.parametrize(("kind", "options"), VARIANTS.values(), ids=VARIANTS)


def first_state(layer: nn.RNNBase, batch: tuple[int, ...]):
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    h = torch.randn(rows, *batch, layer.proj_size or layer.hidden_size)
    return (h, torch.randn(rows, *batch, layer.hidden_size)) if isinstance(layer, nn.LSTM) else h


def tensors(result):
    """All tensors of an output, however it is nested."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, PackedSequence):
        return [result.data, result.batch_sizes]
    return [tensor for part in result for tensor in tensors(part)]


@variants
def test_recurrent_layers_compute_what_the_plain_ones_do(same_network, kind, options):
    torch.manual_seed(0)
    for batch_first in (False, True):
        plain = kind(WIDTH, STATE, batch_first=batch_first, **options)
        layer = same_network(plain)
        layer.flatten_parameters()  # many a forward calls it
        x = torch.randn(BATCH, LENGTH, WIDTH) if batch_first else torch.randn(LENGTH, BATCH, WIDTH)
        packed = pack_padded_sequence(x, torch.tensor([2, 5, 1]), batch_first=batch_first, enforce_sorted=False)
        calls = [
            (x,),
            (x, first_state(plain, (BATCH,))),
            (torch.randn(LENGTH, WIDTH),),
            (torch.randn(LENGTH, WIDTH), first_state(plain, ())),
            (packed,),
            (packed, first_state(plain, (BATCH,))),
            (pack_sequence([torch.randn(n, WIDTH) for n in (4, 3, 3)]),),
        ]
        for mode in (torch.enable_grad, torch.no_grad):
            with mode():
                for arguments in calls:
                    found, expected = tensors(layer(*arguments)), tensors(plain(*arguments))
                    for one, other in zip(found, expected, strict=True):
                        torch.testing.assert_close(one, other)


@variants
def test_gradients_are_those_of_the_plain_layer(same_network, kind, options):
    torch.manual_seed(0)
    plain = kind(WIDTH, STATE, **options)
    layer, x = same_network(plain), torch.randn(LENGTH, BATCH, WIDTH)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for module, given in zip((plain, layer), inputs, strict=True):
        sum(part.square().sum() for part in tensors(module(given))).backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    weights, rest = layer.named_weights(), layer.named_rest()
    for name, parameter in plain.named_parameters():
        grad = weights[name].mean.grad.view_as(parameter) if name in weights else rest[name].grad
        torch.testing.assert_close(grad, parameter.grad)


def test_dropout_between_layers_is_the_same_forwards_and_backwards():
    torch.manual_seed(0)
    plain = nn.GRU(WIDTH, STATE, num_layers=2, dropout=0.5)
    layer = gossamer.bayesianize(copy.deepcopy(plain), 1.0, init="pretrained")
    for weight in sparse_weights(layer).values():
        weight.noisy = False
    x = torch.randn(LENGTH, BATCH, WIDTH)
    for module in (plain, layer):
        torch.manual_seed(1)
        module(x)[0].square().sum().backward()
    for name, weight in layer.named_weights().items():
        expected = plain.get_parameter(name).grad
        torch.testing.assert_close(weight.mean.grad.view_as(expected), expected)
    with torch.no_grad():
        first, second = layer(x)[0], layer(x)[0]
        assert not torch.equal(first, second)
        assert torch.equal(layer.eval()(x)[0], layer(x)[0])


def test_weights_are_drawn_once_a_call():
    """Without a path from state to state, equal inputs give equal outputs at all times and in all examples."""
    torch.manual_seed(0)
    layer = gossamer.bayesianize(nn.RNN(WIDTH, STATE), 0.5)
    recurrent = layer.named_weights()["weight_hh_l0"]
    with torch.no_grad():
        recurrent.mean.zero_()
        recurrent.set_std(torch.full_like(recurrent.mean, 1e-30))
    x = torch.randn(WIDTH).expand(LENGTH, BATCH, WIDTH)
    first, second = layer(x)[0].detach(), layer(x)[0].detach()
    for y in (first, second):
        torch.testing.assert_close(y, y[:1, :1].expand_as(y))
    touched = layer.named_weights()["weight_ih_l0"].dense_std().any(1)
    assert ((first - second)[0, 0] != 0).equal(touched)


def test_the_backward_pass_sees_the_weights_of_its_forward_pass():
    """The dense weights are formed again in the backward pass: from the same draw, though others came in between."""
    torch.manual_seed(0)
    layer = gossamer.bayesianize(nn.LSTM(WIDTH, STATE), 0.5, init_std=0.5)
    x = torch.randn(LENGTH, BATCH, WIDTH)
    grads = []
    for n_between in (0, 3):
        torch.manual_seed(1)
        loss = layer(x)[0].square().sum()
        for _ in range(n_between):
            layer(x)
        grads.append(torch.autograd.grad(loss, list(layer.parameters())))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("density", [0.3, 1.0])
def test_an_armed_layer_gathers_the_dense_gradients(density):
    torch.manual_seed(0)
    layer = gossamer.bayesianize(nn.GRU(WIDTH, STATE, num_layers=2), density)
    for weight in sparse_weights(layer).values():
        weight.noisy = False
        weight.arm()
    plain, x = gossamer.draw(layer, at_mean=True), torch.randn(LENGTH, BATCH, WIDTH)
    for module in (layer, plain):
        module(x)[0].square().sum().backward()
    for name, weight in layer.named_weights().items():
        torch.testing.assert_close(weight.disarm(), plain.get_parameter(name).grad)


def test_a_drawn_recurrent_layer_is_the_plain_module():
    layer = gossamer.bayesianize(nn.LSTM(WIDTH, STATE, num_layers=2, proj_size=2), 0.3)
    drawn = gossamer.draw(layer)
    assert type(drawn) is nn.LSTM
    active = {name: int((drawn.get_parameter(name) != 0).sum()) for name in layer.named_weights()}
    assert active == {name: weight.support.n_active for name, weight in layer.named_weights().items()}
    assert drawn(torch.randn(LENGTH, BATCH, WIDTH))[0].shape == (LENGTH, BATCH, 2)
