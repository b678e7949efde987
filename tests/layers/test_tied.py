"""Weights used in two places stay one weight: one KL term, one entry in the state, one sum of gradients."""

import copy
import pickle

import pytest
import safetensors.torch
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights


class SharedWeight(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self):
        super().__init__()
        self.encoder, self.hidden = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.decoder = nn.Linear(6, 9)
        self.decoder.weight = self.encoder.weight

    def forward(self, words):
        return self.decoder(torch.tanh(self.hidden(self.encoder(words))))


class SharedModule(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.encoder, self.first = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.second = self.first
        self.decoder = nn.Linear(6, 9)

    def forward(self, words):
        return self.decoder(torch.tanh(self.second(torch.tanh(self.first(self.encoder(words))))))


class SharedAttention(nn.Module):
    """One attention module used by two layers, and its output projection as a layer of its own."""

    def __init__(self):
        super().__init__()
        self.encoder, self.mix = nn.Embedding(9, 6), nn.MultiheadAttention(6, 2, batch_first=True)
        self.again, self.last = self.mix, nn.Linear(6, 6)
        self.last.weight = self.mix.out_proj.weight

    def forward(self, words):
        x = self.encoder(words)
        for mix in (self.mix, self.again):
            x = x + mix(x, x, x)[0]
        return self.last(x)


# kind -> (weights that are stored, names that must not be in the state)
KINDS = {
    SharedWeight: (["encoder", "hidden"], ["decoder.weight"]),
    SharedModule: (["encoder", "first", "decoder"], ["second"]),
    SharedAttention: (["encoder", "mix.in_proj", "mix.out_proj"], ["again", "last.weight"]),
}
kinds = pytest.mark.parametrize(
    ("kind", "names", "absent"), [pytest.param(kind, *rest, id=kind.__name__) for kind, rest in KINDS.items()]
)
WORDS = torch.tensor([[1, 4, 4, 8], [0, 2, 7, 1]])


def convert(kind, seed=0, density=0.5):
    torch.manual_seed(seed)
    return gossamer.bayesianize(kind(), density)


@kinds
def test_tied_weights_are_one_weight(kind, names, absent):
    model = convert(kind)
    weights = sparse_weights(model)
    assert list(weights) == names
    with torch.no_grad():
        torch.testing.assert_close(gossamer.kl(model), sum(weight.kl() for weight in weights.values()))
    assert gossamer.active_parameters(model) == sum(len(weight.mean) for weight in weights.values())
    assert len(list(model.parameters())) == len(
        {id(p) for group in gossamer.param_groups(model) for p in group["params"]}
    )
    assert [row.layer for row in gossamer.summary(model).rows if not row.note] == names


@kinds
def test_gradients_of_all_uses_add_up(kind, names, absent):
    """As in the plain network with the means for weights, in which torch adds them up."""
    model = convert(kind)
    for weight in sparse_weights(model).values():
        weight.noisy = False
    plain = gossamer.draw(model, at_mean=True)
    for network in (model, plain):
        network(WORDS).square().sum().backward()
    torch.testing.assert_close(model(WORDS), plain(WORDS))
    dense = dict(plain.named_parameters())
    for name, weight in sparse_weights(model).items():
        grad = next(dense[key].grad for key in (f"{name}.weight", f"{name}_weight") if key in dense)
        torch.testing.assert_close(weight.mean.grad, weight.support.gather(grad))


@kinds
def test_draws_and_copies_stay_tied(kind, names, absent):
    model = convert(kind)
    plain = gossamer.draw(model)
    assert {name for name, _ in plain.named_parameters()} == {name for name, _ in kind().named_parameters()}
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert list(sparse_weights(again)) == names
        torch.manual_seed(1)
        expected = model(WORDS)
        torch.manual_seed(1)
        assert torch.equal(again(WORDS), expected)


@kinds
def test_the_state_holds_a_tied_weight_once(kind, names, absent, tmp_path):
    model, other = convert(kind, seed=0), convert(kind, seed=1)
    state = model.state_dict()
    assert not [key for key in state if key.startswith(tuple(f"{name}." for name in absent))]
    stored = [tensor.data_ptr() for tensor in state.values()]
    assert len(stored) == len(set(stored))
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"), strict=True)
    for module in (model, other):
        torch.manual_seed(1)
        module.output = module(WORDS)
    assert torch.equal(model.output, other.output)
    assert list(sparse_weights(other)) == names


@kinds
def test_the_state_of_a_network_inside_another(kind, names, absent):
    outer, other = nn.ModuleDict({"net": convert(kind, seed=0)}), nn.ModuleDict({"net": convert(kind, seed=1)})
    state = outer.state_dict()
    assert not [key for key in state if key.startswith(tuple(f"net.{name}." for name in absent))]
    other.load_state_dict(state, strict=True)
    for weight, same in zip(sparse_weights(outer).values(), sparse_weights(other).values(), strict=True):
        assert torch.equal(weight.mean, same.mean)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({key: value for key, value in state.items() if "encoder" not in key}, strict=True)


@pytest.mark.filterwarnings("ignore:.*were converted")
@pytest.mark.parametrize("exclude", ["decoder", "encoder", nn.Embedding], ids=str)
def test_a_weight_tied_to_one_that_stays_dense_stays_dense_too(exclude):
    model = SharedWeight()
    gossamer.bayesianize(model, 0.5, exclude=[exclude])
    assert list(sparse_weights(model)) == ["hidden"]
    assert model.decoder.weight is model.encoder.weight
    notes = {row.layer: row.note for row in gossamer.summary(model).rows}
    assert {notes["encoder"], notes["decoder"]} == {
        "excluded by the caller",
        "its weight is tied to that of a module left alone",
    }


@pytest.mark.filterwarnings("ignore:.*were converted")
def test_ties_are_followed_from_layer_to_layer():
    """The second layer shares the excluded one's weight, the RNN the second's, and the last the RNN's other weight."""
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "rnn": nn.RNN(4, 4), "free": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    model["rnn"].weight_ih_l0 = model["b"].weight
    model["c"] = nn.Linear(4, 4)
    model["c"].weight = model["rnn"].weight_hh_l0
    gossamer.bayesianize(model, 0.5, exclude="a")
    assert list(sparse_weights(model)) == ["free"]


def test_either_name_of_a_module_excludes_it():
    for name in ("first", "second"):
        model = gossamer.bayesianize(SharedModule(), 0.5, exclude=name)
        assert list(sparse_weights(model)) == ["encoder", "decoder"]
        assert model.first is model.second
