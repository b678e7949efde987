"""Conversion of linear, convolutional and embedding layers: the same function, exact counts, clear errors."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import GaussianWeight, SparseLayer, sparse_weights

FLOATS = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear_vector": (lambda: nn.Linear(5, 3), (5,)),
    "linear_sequence": (lambda: nn.Linear(5, 3, bias=False), (2, 6, 5)),
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2), (3, 2, 8)),
    "conv1d_single": (lambda: nn.Conv1d(2, 4, 3), (2, 8)),
    "conv2d": (lambda: nn.Conv2d(2, 4, (3, 2), padding="same", padding_mode="reflect"), (3, 2, 5, 4)),
    "conv2d_single": (lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", bias=False), (2, 5, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, dilation=2, padding=(1, 0, 1)), (2, 2, 4, 3, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 4, 3, stride=2, output_padding=1), (3, 2, 5)),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 2, 3, stride=(2, 3), groups=2), (3, 4, 3, 2)),
    "transposed2d_single": (lambda: nn.ConvTranspose2d(4, 2, 3, bias=False), (4, 3, 2)),
    "transposed3d": (lambda: nn.ConvTranspose3d(2, 1, 2, padding=1), (2, 2, 3, 3, 3)),
}


@pytest.mark.parametrize(("make", "shape"), FLOATS.values(), ids=FLOATS)
def test_a_converted_layer_computes_what_the_plain_one_does(same_network, make, shape):
    torch.manual_seed(0)
    plain, x, y = make(), torch.randn(shape), torch.randn(shape)
    layer = same_network(plain)
    for module, given in ((plain, x.requires_grad_()), (layer, y.copy_(x.detach()).requires_grad_())):
        module(given).square().sum().backward()
    torch.testing.assert_close(layer(x), plain(x))
    torch.testing.assert_close(y.grad, x.grad)
    torch.testing.assert_close(layer.mean.grad.view_as(plain.weight), plain.weight.grad)
    if plain.bias is not None:
        torch.testing.assert_close(layer.bias.grad, plain.bias.grad)


@pytest.mark.parametrize("size", [(9, 7), [9, 8]])
def test_transposed_convolutions_take_an_output_size(same_network, size):
    torch.manual_seed(0)
    plain = nn.ConvTranspose2d(2, 3, 3, stride=2)
    layer, x = same_network(plain), torch.randn(2, 2, 4, 3)
    expected = plain(x, output_size=size)
    assert expected.shape[2:] == tuple(size)
    torch.testing.assert_close(layer(x, output_size=size), expected)


@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"scale_grad_by_freq": True}], ids=str
)
def test_embeddings(same_network, options):
    torch.manual_seed(0)
    plain = nn.Embedding(6, 4, **options)
    layer, words = same_network(plain), torch.tensor([[0, 2, 2], [5, 2, 1]])
    torch.testing.assert_close(layer(words), plain(words))
    for module in (layer, plain):
        module(words).square().sum().backward()
    torch.testing.assert_close(layer.mean.grad, layer.support.gather(plain.weight.grad))


def test_the_padding_row_is_never_active():
    for init in ("fresh", "pretrained", "pretrained_random"):
        layer = gossamer.bayesianize(nn.Embedding(10, 3, padding_idx=4), 0.9, init=init)
        rows = layer.support.position // 3
        assert len(rows) == round(0.9 * 27)
        assert 4 not in rows
        assert not layer(torch.tensor([4, 4])).any()


def test_a_bare_layer_is_a_whole_model():
    layer = gossamer.bayesianize(nn.Linear(10, 5), 0.2)
    assert isinstance(layer, SparseLayer)
    assert list(sparse_weights(layer)) == [""]
    assert layer(torch.zeros(2, 10)).shape == (2, 5)
    assert type(gossamer.draw(layer)) is nn.Linear


def test_the_model_is_converted_in_place_and_answers_like_the_plain_one():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.ReLU(), nn.Linear(4, 5)))
    converted = gossamer.bayesianize(model.eval(), 0.5)
    assert converted is model
    assert not model[0].training
    assert (model[0].out_channels, model[0].kernel_size, model[1][1].in_features) == (8, (3, 3), 4)
    assert "Linear" in repr(model)
    assert "in_features=4, out_features=5, bias=True" in repr(model)
    with pytest.raises(AttributeError, match="no_such_thing"):
        model[0].no_such_thing  # noqa: B018


@pytest.mark.parametrize("convert", [gossamer.bayesianize, gossamer.sparsify])
@pytest.mark.parametrize("init", ["pretrained", "pretrained_random", "fresh"])
def test_where_the_first_means_come_from(convert, init):
    torch.manual_seed(0)
    plain = nn.Linear(40, 30)
    layer = convert(copy.deepcopy(plain), 0.1, init=init, generator=torch.Generator().manual_seed(1))
    again = convert(copy.deepcopy(plain), 0.1, init=init, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer.mean, again.mean)
    assert torch.equal(layer.support.position, again.support.position)
    given = plain.weight.detach().flatten()
    largest = given.abs().topk(120).indices.sort().values
    position = layer.support.position.long()
    assert torch.equal(position, position.unique())
    assert torch.equal(position, largest) == (init == "pretrained")
    assert torch.equal(layer.mean.detach(), given[position]) == (init != "fresh")
    assert torch.equal(layer.bias, plain.bias)


@pytest.mark.parametrize("density", [1.0, 0.1, 0.05])
@pytest.mark.parametrize("kind", ["linear", "conv"])
@torch.no_grad()
def test_fresh_means_keep_the_size_of_signals(kind, density):
    """E[y²] over initial draws is that of the plain layer, rms(W)² ‖x‖², whatever the density."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    if kind == "linear":
        plain, x = nn.Linear(200, 300, bias=False), torch.randn(200)
    else:  # as large as its kernel, so that there is one output a channel
        plain, x = nn.Conv2d(8, 300, 5, bias=False), torch.randn(1, 8, 5, 5)
    squares = []
    for _ in range(80):
        layer = gossamer.bayesianize(copy.deepcopy(plain), density, keep_dense=(), generator=generator)
        layer.weight.noisy = False
        squares.append(layer(x).flatten().square())
    sample = torch.cat(squares).double()
    expected = (plain.weight.square().mean() * x.square().sum()).item()
    z = (sample.mean() - expected) / (sample.std() / math.sqrt(len(sample)))
    assert abs(z) < 4.5  # a false alarm once in 10⁵ seeds


def test_counts_are_exact():
    def model():
        return nn.Sequential(nn.Conv2d(3, 7, 3), nn.Conv2d(7, 11, 3), nn.Flatten(), nn.Linear(11, 13))

    sizes = {"0": 189, "1": 693, "3": 143}

    def counts(**options):
        weights = sparse_weights(gossamer.bayesianize(model(), 0.07, **options))
        for weight in weights.values():
            assert {len(getattr(weight, name)) for name in weight.vectors} == {weight.support.n_active}
            assert weight.support.n_active == int((weight.dense_std() > 0).sum())
        return {name: weight.support.n_active for name, weight in weights.items()}

    assert counts() == {"0": 189, "1": round(0.07 * 693), "3": round(0.07 * 143)}
    assert counts(keep_dense=()) == {name: round(0.07 * size) for name, size in sizes.items()}
    assert counts(keep_dense="3") == {"0": 13, "1": 49, "3": 143}
    assert counts(keep_dense=["[01]"]) == {"0": 189, "1": 693, "3": 10}
    for allocation in ("erk", "global"):
        assert sum(counts(allocation=allocation, keep_dense=()).values()) == round(0.07 * sum(sizes.values()))
    assert counts(allocation=lambda layers, density: [3, 2, 1]) == {"0": 3, "1": 2, "3": 1}
    assert counts(mode="reference", keep_dense=()) == {n: s - int((1 - 0.07) * s) for n, s in sizes.items()}


def test_an_allocation_sees_the_names_that_the_model_then_has():
    seen = []

    def all_but_one(layers, density):
        seen.extend(layer.name for layer in layers)
        return [layer.size - 1 for layer in layers]

    model = nn.ModuleDict(
        {
            "words": nn.Embedding(5, 4),
            "deep": nn.Sequential(nn.Conv1d(4, 4, 3), nn.ConvTranspose1d(4, 4, 3)),
            "mix": nn.MultiheadAttention(4, 2),
            "mix_other": nn.MultiheadAttention(4, 2, kdim=3, vdim=2),
            "read": nn.LSTM(4, 4, proj_size=2, bidirectional=True),
        }
    )
    gossamer.bayesianize(model, 0.5, allocation=all_but_one)
    assert seen == list(sparse_weights(model))
    assert len(seen) == 3 + 2 + 4 + 6


def test_the_first_layer_is_kept_dense_only_if_it_is_a_convolution_among_others():
    first_linear = gossamer.bayesianize(nn.Sequential(nn.Linear(10, 10), nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 9, 3)))
    assert not any(weight.support.is_dense for weight in sparse_weights(first_linear).values())
    assert gossamer.bayesianize(nn.Conv2d(4, 4, 3), 0.5).support.n_active == 72


def test_dtype_and_device_follow_the_given_weights():
    for dtype, std in itertools.product((torch.float64, torch.bfloat16), ("curvature", "gradient")):
        layer = gossamer.bayesianize(nn.Linear(8, 4, dtype=dtype), 0.5, std=std)
        assert layer.mean.dtype == layer.std.dtype == layer.bias.dtype == dtype
        y = layer(torch.ones(2, 8, dtype=dtype))
        y.sum().backward()
        assert y.dtype == layer.mean.grad.dtype == dtype
    assert gossamer.bayesianize(nn.Linear(8, 4), 0.5).double().mean.dtype == torch.float64


def test_autocast_decides_the_precision_except_of_float64():
    layer = gossamer.bayesianize(nn.Linear(8, 4), 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(2, 8)).dtype == torch.bfloat16
        assert layer.double()(torch.ones(2, 8, dtype=torch.float64)).dtype == torch.float64


class Recorder:
    """A hook that is a method of an object which holds the network: a copy of it would copy that too."""

    def __init__(self, model):
        self.model, self.calls = model, []

    def __deepcopy__(self, memo):
        raise AssertionError("copied")

    def hook(self, module, args, output):
        self.calls.append(type(module).__name__)


def test_hooks_still_fire_and_can_be_removed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LSTM(5, 4), nn.Identity())
    seen = []
    recorder = Recorder(model)
    handles = [
        model[0].register_forward_hook(recorder.hook),
        model[0].register_forward_pre_hook(lambda module, args: seen.append("before")),
        model[0].register_forward_hook(lambda module, args, kwargs, y: seen.append(kwargs), with_kwargs=True),
        model[0].register_full_backward_hook(lambda module, into, out: seen.append("backward")),
        model[1].register_forward_hook(lambda module, args, y: y[0]),
    ]
    gossamer.bayesianize(model, 0.5)
    y = model(torch.zeros(3, 2, 6, requires_grad=True))
    assert isinstance(y, torch.Tensor)  # what the hook of the LSTM returns
    assert seen == ["before", {}]
    assert recorder.calls == ["SparseLinear"]
    y.sum().backward()
    assert seen[2:] == ["backward"]
    gossamer.draw(model)(torch.zeros(3, 2, 6))
    assert recorder.calls == ["SparseLinear", "Linear"]
    for handle in handles:
        handle.remove()
    seen.clear()
    model(torch.zeros(3, 2, 6))
    assert not seen


@pytest.mark.parametrize("density", [0, -1, 2, math.nan, math.inf, True, "0.1", None])
@pytest.mark.parametrize("convert", [gossamer.bayesianize, gossamer.sparsify])
def test_a_density_is_a_number_between_0_and_1(convert, density):
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"in \(0, 1\], got .*95 % sparsity is density=0.05"):
        convert(model, density)
    assert type(model) is nn.Linear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"allocation": "unifrom"},
            r"unknown allocation 'unifrom'; did you mean 'uniform'\? Known: uniform, erk, global",
        ),
        ({"mode": "paper"}, "mode must be one of 'default', 'reference'; got 'paper'"),
        ({"init": "dense"}, "init must be one of 'fresh', 'pretrained', 'pretrained_random'; got 'dense'"),
        ({"exclude": "haed"}, r"exclude='haed' matches no layer of this model; did you mean 'head'\?"),
        ({"exclude": ["head", "body.*.x"]}, r"exclude='body.\*.x' matches no layer"),
        ({"keep_dense": "heads"}, r"keep_dense='heads' matches no layer of this model; did you mean 'head'\?"),
        ({"keep_dense": ["norm"]}, "keep_dense='norm' matches no layer"),
        ({"prior_std": 0.0}, "prior_std must be a positive number, or None to choose it by the layer"),
        ({"init_std": -1.0}, "init_std must be a positive number, or None"),
        ({"init_std": math.nan}, "init_std must be a positive number, or None"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_told_how_to_be_right(options, message):
    model = nn.Module()
    model.body, model.norm, model.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)
    with pytest.raises(ValueError, match=message):
        gossamer.bayesianize(model, 0.5, **options)
    gossamer.bayesianize(model, 0.5)  # and a second, right call is not hindered by the first
    assert list(sparse_weights(model)) == ["body", "head"]


def test_what_cannot_be_converted_at_all():
    with pytest.raises(ValueError, match=r"nothing in this model can be converted.*no rule for BatchNorm1d"):
        gossamer.bayesianize(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    with pytest.raises(ValueError, match="it has no parameters"):
        gossamer.bayesianize(nn.ReLU())
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got list"):
        gossamer.bayesianize([nn.Linear(2, 2)])
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(4, 4)), 0.5)
    with pytest.raises(ValueError, match="already converted; convert a fresh copy of the plain model"):
        gossamer.sparsify(model, 0.5)
    for function in (gossamer.kl, gossamer.param_groups):
        with pytest.raises(ValueError, match=r"convert it with gossamer.bayesianize\(model\) first"):
            function(nn.Linear(2, 2))


def test_param_groups_hold_every_parameter_once_and_decay_no_std():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[1].bias.requires_grad_(False)
    gossamer.bayesianize(model, 0.5, std="gradient")
    groups = gossamer.param_groups(model, weight_decay=0.1, std_lr=3.0)
    given = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(given) == len(set(given))
    assert set(given) == {id(p) for p in model.parameters() if p.requires_grad}
    assert [(g["name"], g["weight_decay"], g.get("lr")) for g in groups] == [
        ("means", 0.1, None),
        ("stds", 0.0, 3.0),
        ("rest", 0.1, None),
    ]
    assert all(id(w.raw_std) in map(id, groups[1]["params"]) for w in sparse_weights(model).values())
    assert all(isinstance(w, GaussianWeight) for w in sparse_weights(model).values())


@pytest.mark.parametrize("std_lr", [-1.0, math.nan])
def test_a_rate_that_would_climb_is_refused(std_lr):
    with pytest.raises(ValueError, match=f"std_lr must not be negative, got {std_lr}"):
        gossamer.param_groups(gossamer.bayesianize(nn.Linear(4, 4)), std_lr=std_lr)


@pytest.mark.parametrize("init", ["fresh", "pretrained"])
def test_a_layer_without_memory_takes_none(init: str):
    """On meta no positions are drawn: a permutation of these entries would take 8 TB."""
    with torch.device("meta"):
        layer = nn.Linear(2**20, 2**20)
    model = gossamer.bayesianize(layer, density=1e-9, init=init)
    assert model.mean.shape == model.support.position.shape == (1100,)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
