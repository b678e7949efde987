"""Modules that are not converted: each is left exactly as it was, and the summary says why."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

import gossamer
from gossamer.layers import sparse_weights


class OtherLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.sum()


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


def frozen():
    layer = nn.Linear(4, 4)
    layer.weight.requires_grad_(False)
    return layer


def partly_frozen():
    layer = nn.LSTM(4, 4)
    layer.weight_hh_l0.requires_grad_(False)
    return layer


def parametrized():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def attention_with_parametrized_output():
    layer = nn.MultiheadAttention(4, 2)
    parametrizations.weight_norm(layer.out_proj)
    return layer


def padding_row_not_zero():
    layer = nn.Embedding(4, 4, padding_idx=1)
    nn.init.ones_(layer.weight)
    return layer


RECOMPUTED = "its weight is recomputed at each call (weight_norm, spectral_norm, pruning): remove that first"

REASONS = {
    "no rule": (lambda: nn.BatchNorm1d(4), "no rule for BatchNorm1d: stays deterministic"),
    "bilinear": (lambda: nn.Bilinear(2, 3, 4), "no rule for Bilinear: stays deterministic"),
    "subclass": (lambda: OtherLinear(4, 4), "OtherLinear is a subclass of Linear and may compute something else"),
    "frozen": (frozen, "frozen (requires_grad=False)"),
    "partly frozen": (partly_frozen, "frozen (requires_grad=False)"),
    "lazy": (lambda: nn.LazyLinear(4), "its shape is not known yet: run one batch through the model first"),
    "lazy conv": (lambda: nn.LazyConv2d(4, 3), "its shape is not known yet: run one batch through the model first"),
    "weight_norm": (lambda: weight_norm(nn.Linear(4, 4)), RECOMPUTED),
    "spectral_norm": (lambda: spectral_norm(nn.Conv1d(4, 4, 3)), RECOMPUTED),
    "new weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), RECOMPUTED),
    "parametrized": (parametrized, RECOMPUTED),
    "attention output": (attention_with_parametrized_output, RECOMPUTED),
    "pruned bias": (
        lambda: prune.random_unstructured(nn.Linear(4, 4), "bias", 0.5),
        RECOMPUTED.replace("its weight", "its bias"),
    ),
    "pruned": (lambda: prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5), RECOMPUTED),
    "max_norm": (lambda: nn.Embedding(4, 4, max_norm=1.0), "max_norm rescales the weight in place"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "its weight is not real"),
    "empty": (lambda: nn.Embedding(0, 4), "its weight has no entry that could be active"),
    "all padding": (lambda: nn.Embedding(1, 4, padding_idx=0), "its weight has no entry that could be active"),
    "padding row": (padding_row_not_zero, "its padding row is not zero"),
}


@pytest.mark.parametrize(("make", "reason"), REASONS.values(), ids=REASONS)
@pytest.mark.filterwarnings(
    "ignore:.*weight_norm.* is deprecated", "ignore:Lazy modules are a new feature", "ignore:.*were converted"
)
def test_left_alone_with_a_reason(make, reason):
    torch.manual_seed(0)
    model = nn.ModuleDict({"plain": nn.Linear(3, 2), "odd": make()})
    odd, parameters = model["odd"], dict(model["odd"].named_parameters())
    gossamer.bayesianize(model, 0.5)
    assert model["odd"] is odd
    assert {name: id(p) for name, p in odd.named_parameters()} == {name: id(p) for name, p in parameters.items()}
    assert list(sparse_weights(model)) == ["plain"]
    table = gossamer.summary(model)
    assert all(row.note == reason for row in table.rows if row.layer == "odd")
    assert reason in str(table)


def test_the_parts_of_a_module_share_its_reason():
    model = nn.ModuleDict({"plain": nn.Linear(3, 2), "odd": nn.MultiheadAttention(4, 2).requires_grad_(False)})
    gossamer.bayesianize(model, 0.5)
    notes = {row.layer: row.note for row in gossamer.summary(model).rows if row.layer.startswith("odd")}
    assert notes == dict.fromkeys(("odd", "odd.out_proj"), "frozen (requires_grad=False)")


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_layer_is_converted_once_its_shape_is_known():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    model(torch.zeros(3, 5))
    gossamer.bayesianize(model, 0.5)
    assert list(sparse_weights(model)) == ["0", "1"]


def test_a_frozen_bias_does_not_keep_a_layer_from_being_converted():
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    assert not gossamer.bayesianize(model, 0.5).bias.requires_grad


EXCLUDES = {
    "a name": (["body.0"], ["body.2", "head"]),
    "a string": ("head", ["body.0", "body.2"]),
    "a glob": (["body.*"], ["head"]),
    "a container": (["body"], ["head"]),
    "two": (["head", "body.2"], ["body.0"]),
    "a type": ([nn.Conv2d], ["head"]),
    "a type alone": (nn.Linear, ["body.0", "body.2"]),
    "the type of a container": ([nn.Sequential], ["head"]),
    "a base class": ([nn.modules.conv._ConvNd], ["head"]),
    "nothing": ((), ["body.0", "body.2", "head"]),
}


@pytest.mark.parametrize(("exclude", "converted"), EXCLUDES.values(), ids=EXCLUDES)
def test_exclusion(exclude, converted):
    def network():
        model = nn.Module()
        model.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        model.head = nn.Linear(4, 2)
        return model

    model = gossamer.bayesianize(network(), 0.5, exclude=exclude)
    assert list(sparse_weights(model)) == converted
    notes = {row.layer: row.note for row in gossamer.summary(model).rows if row.kind != "bias"}
    left = {"body.0", "body.2", "head"} - set(converted)
    assert {name for name, note in notes.items() if note == "excluded by the caller"} == left
    assert type(model.get_submodule(converted[0])).__name__.startswith("Sparse")


def test_an_exclusion_is_forgotten_at_the_next_conversion():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="keep_dense='2' matches no layer"):
        gossamer.bayesianize(model, 0.5, exclude="1", keep_dense="2")
    again = copy.deepcopy(model)
    gossamer.bayesianize(model, 0.5, exclude="1")
    for network in (again, gossamer.draw(model)):
        gossamer.bayesianize(network, 0.5)
        assert list(sparse_weights(network)) == ["0", "1"]


def test_everything_excluded_says_so():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="exclude takes names and types of modules, got an instance of Linear"):
        gossamer.bayesianize(model, exclude=[model[0]])
    with pytest.raises(ValueError, match=r"nothing in this model can be converted.*excluded by the caller"):
        gossamer.bayesianize(nn.Sequential(nn.Linear(2, 2)), exclude="*")
