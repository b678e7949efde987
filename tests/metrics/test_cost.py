"""Counting MACs: known networks, torch's own counter, and a model that is left as it was."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

import gossamer
from gossamer.metrics import LayerCost, dense_macs, inference_macs, training_macs
from gossamer.models import mlp, resnet18, vit_tiny


def torch_macs(model: nn.Module, *inputs: torch.Tensor, **named: torch.Tensor) -> float:
    """Half the FLOPs that torch counts; in float64, since it has no formula for the LSTM of oneDNN, which has none."""
    model = copy.deepcopy(model).double()
    inputs, named = tree_map_only(torch.FloatTensor, torch.Tensor.double, (inputs, named))
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(*inputs, **named)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    return counter.get_total_flops() / 2


def image(size: int, channels: int = 3, batch: int = 1) -> torch.Tensor:
    return torch.zeros(batch, channels, size, size)


NETWORKS = {
    "mlp": (mlp(12, hidden=(7, 5), out_features=3), torch.zeros(1, 12)),
    "batch of four": (mlp(12, hidden=(7, 5), out_features=3), torch.zeros(4, 12)),
    "positions": (nn.Linear(6, 4), torch.zeros(2, 5, 6)),
    "resnet18": (resnet18(), image(32)),
    "vit": (vit_tiny(depth=2), image(32)),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=1), torch.zeros(1, 4, 11)),
    "conv2d, groups and dilation": (nn.Conv2d(4, 8, (3, 2), groups=2, dilation=2), image(9, 4, 2)),
    "conv3d": (nn.Conv3d(2, 3, 2), torch.zeros(1, 2, 4, 5, 6)),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6, padding="same", padding_mode="circular"), image(7, 6)),
    "unbatched conv": (nn.Conv2d(3, 5, 3), torch.zeros(3, 6, 6)),
    "conv transpose 1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), torch.zeros(1, 4, 7)),
    "conv transpose 2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), image(5, 4)),
    "conv transpose 3d": (nn.ConvTranspose3d(2, 3, 2), torch.zeros(1, 2, 3, 3, 3)),
    "rnn": (nn.RNN(5, 7, num_layers=2), torch.zeros(4, 1, 5)),
    "gru": (nn.GRU(5, 7, bidirectional=True, batch_first=True), torch.zeros(2, 6, 5)),
    "lstm": (nn.LSTM(5, 8, num_layers=2, bidirectional=True), torch.zeros(4, 1, 5)),
    "lstm with projection": (nn.LSTM(5, 8, proj_size=3), torch.zeros(4, 2, 5)),
    "unbatched lstm": (nn.LSTM(5, 8), torch.zeros(4, 5)),
    "cells": (nn.LSTMCell(5, 8), torch.zeros(3, 5)),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 8)),
    "encoder, time first": (nn.TransformerEncoderLayer(8, 2, 16), torch.zeros(5, 2, 8)),
    "embedding": (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), torch.zeros(1, 3, dtype=torch.long)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_total_is_that_of_torch(name: str):
    model, example = NETWORKS[name]
    counts = dense_macs(model, example)
    assert sum(counts.values()) == torch_macs(model.eval(), example) > 0


def test_cifar_resnet18_has_half_a_billion():
    counts = dense_macs(resnet18(), image(32))
    assert sum(counts.values()) == pytest.approx(0.5554e9, rel=1e-3)
    assert len(counts) == 21
    assert counts["stem"] == 3 * 64 * 9 * 32**2
    assert counts["head"] == 512 * 10


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 5}, {"add_bias_kv": True, "add_zero_attn": True}])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_over_other_keys(options: dict[str, int], batch_first: bool, need_weights: bool):
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, **options)
    shapes = [(2, 3, 8), (2, 5, options.get("kdim", 8)), (2, 5, options.get("vdim", 8))]
    query, key, value = (torch.zeros(shape) if batch_first else torch.zeros(shape).transpose(0, 1) for shape in shapes)
    named = {"query": query, "key": key, "value": value, "need_weights": need_weights}
    counts = dense_macs(layer, named)
    assert sum(counts.values()) == torch_macs(layer, **named)
    assert counts["out_proj"] == 2 * 3 * 8 * 8
    assert counts["products"] == 2 * (2 * 3 * (5 + 2 * bool(options.get("add_zero_attn"))) * 8)
    assert dense_macs(layer, (query, key, value)) == counts
    assert ("q_proj" in counts) == ("kdim" in options)


def test_unbatched_attention():
    layer, x = nn.MultiheadAttention(8, 2), torch.zeros(5, 8)
    assert dense_macs(layer, (x, x, x)) == {"in_proj": 5 * 8 * 24, "out_proj": 5 * 64, "products": 2 * 5 * 5 * 8}


def test_the_encoder_with_padding_is_not_fused_away():
    """In evaluation mode torch would run the whole encoder in one kernel, on nested tensors."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.zeros(2, 5, 8), torch.tensor([[False] * 5, [False, False, True, True, True]])
    assert sum(dense_macs(model, (x, None, padding)).values()) == 2 * sum(dense_macs(layer, x).values())
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_packed_sequence_counts_its_steps_only():
    layer = nn.GRU(5, 7)
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(4, 2, 5), torch.tensor([4, 1]))
    assert dense_macs(layer, packed) == {"weight_ih_l0": 5 * 21 * 5, "weight_hh_l0": 5 * 21 * 7}


class Language(nn.Module):
    """A head tied to the embedding, one layer used twice, one never."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.twice = nn.Linear(8, 8)
        self.never = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x, _ = self.rnn(self.embedding(tokens))
        x, _ = self.attention(x, x, x)
        return self.head(self.twice(self.twice(x)))


TOKENS = torch.zeros(1, 3, dtype=torch.long)


def test_a_weight_is_counted_under_its_first_name():
    counts = dense_macs(Language(), TOKENS)
    assert counts["embedding"] == 3 * 8 * 11
    assert "head" not in counts
    assert counts["twice"] == 2 * 3 * 64
    assert counts["never"] == 0


def test_the_names_are_those_of_the_sparse_weights():
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    bayesian = gossamer.bayesianize(plain, density=0.5)
    layers = gossamer.layers.weight.sparse_weights(bayesian)
    counts = dense_macs(gossamer.draw(bayesian), torch.zeros(1, 1, 4, 4))
    assert list(counts) == list(layers)
    tied = gossamer.bayesianize(Language(), density=0.5)
    counts = dense_macs(gossamer.draw(tied), TOKENS)
    assert set(counts) == {*gossamer.layers.weight.sparse_weights(tied), "attention.products"}


def test_a_converted_network_is_refused():
    model = gossamer.bayesianize(mlp(4), density=0.5)
    with pytest.raises(ValueError, match="is a sparse layer: give dense_macs a draw of the network"):
        dense_macs(model, torch.zeros(1, 4))


def test_a_recomputed_weight_goes_by_its_layer():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    assert dense_macs(model, torch.zeros(1, 4)) == {"0": 12}


class Broken(nn.Module):
    def forward(self, x):
        raise ZeroDivisionError


@pytest.mark.parametrize("broken", [False, True])
def test_the_network_is_left_as_it_was(broken: bool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), Broken() if broken else nn.Identity())
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    if broken:
        with pytest.raises(ZeroDivisionError):
            dense_macs(model, torch.randn(1, 4, generator=torch.Generator()))
    else:
        assert dense_macs(model, torch.randn(1, 4, generator=torch.Generator())) == {"0": 12}
    assert [module.training for module in model.modules()] == modes == [True, True, False, True, True]
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.is_grad_enabled()
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)


STEM = LayerCost("stem", "Conv2d", 1_000_000)
SPARSE = LayerCost("body", "Conv2d", 50_000_000, 0.05, bayesian=True)
POINT = LayerCost("body", "Conv2d", 50_000_000, 0.05)


def test_a_dense_network_costs_what_is_known():
    """Dense training is three forward passes, dense VI by local reparametrisation six."""
    f = 0.5554e9
    point, gaussian = LayerCost("", "", f), LayerCost("", "", f, bayesian=True)
    assert inference_macs([point]) == inference_macs([gaussian]) == f
    assert training_macs([point]) == 3 * f
    assert training_macs([gaussian]) == 6 * f


def test_a_sparse_network_by_hand():
    assert inference_macs([STEM, SPARSE]) == pytest.approx(1e6 + 2.5e6)
    assert training_macs([STEM, SPARSE]) == pytest.approx(3e6 + 15e6)
    assert training_macs([STEM, POINT]) == pytest.approx(3e6 + 7.5e6)
    assert training_macs([POINT._replace(formed=0.5)]) == training_macs([POINT]) + 0.5 * POINT.dense_macs


def test_nothing_costs_nothing():
    assert inference_macs([]) == training_macs([]) == 0
    assert training_macs([LayerCost("", "", 100, 0.0, True)]) == 0


def test_what_cannot_be_is_refused():
    wrong = LayerCost("head", "Linear", 10, 5.0)
    for count in (inference_macs, training_macs):
        with pytest.raises(ValueError, match=r"the density of 'head' must be in \[0, 1\]; got 5.0"):
            count([wrong])
