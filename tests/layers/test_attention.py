"""Attention and transformers: every variant of torch's modules, in training, in evaluation and on their fused paths."""

import contextlib
import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights

WIDTH, HEADS, BATCH, QUERIES, KEYS = 8, 2, 3, 4, 5


def bool_mask(*shape):
    """About a third closed, never a whole row."""
    mask = torch.rand(shape) < 0.33
    mask[..., 0] = False
    return mask


def float_mask(*shape):
    return torch.randn(shape).masked_fill(bool_mask(*shape), -torch.inf)


CAUSAL = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)

# name -> (options of the module, the form of its inputs, arguments of the call)
VARIANTS = {
    "self": ({}, "self", {}),
    "cross": ({}, "cross", {}),
    "key_is_not_value": ({}, "three", {}),
    "query_is_key": ({}, "query_is_key", {}),
    "no_bias": ({"bias": False}, "cross", {}),
    "kdim_vdim": ({"kdim": 6, "vdim": 3}, "three", {}),
    "kdim_vdim_no_bias": ({"kdim": 6, "vdim": 3, "bias": False}, "three", {}),
    "bias_kv": ({"add_bias_kv": True}, "cross", {}),
    "zero_attn": ({"add_zero_attn": True}, "three", {}),
    "bias_kv_and_zero_attn": ({"add_bias_kv": True, "add_zero_attn": True}, "cross", {}),
    "bool_mask": ({}, "cross", {"attn_mask": lambda: bool_mask(QUERIES, KEYS)}),
    "float_mask": ({}, "cross", {"attn_mask": lambda: float_mask(QUERIES, KEYS)}),
    "mask_of_each_head": ({}, "cross", {"attn_mask": lambda: bool_mask(BATCH * HEADS, QUERIES, KEYS)}),
    "padding": ({}, "cross", {"key_padding_mask": lambda: bool_mask(BATCH, KEYS)}),
    "float_padding": ({}, "three", {"key_padding_mask": lambda: float_mask(BATCH, KEYS)}),
    "mask_and_padding": (
        {"add_bias_kv": True, "add_zero_attn": True},
        "cross",
        {
            "attn_mask": lambda: float_mask(BATCH * HEADS, QUERIES, KEYS),
            "key_padding_mask": lambda: float_mask(BATCH, KEYS),
        },
    ),
    "bool_mask_and_padding": (
        {},
        "cross",
        {"attn_mask": lambda: bool_mask(QUERIES, KEYS), "key_padding_mask": lambda: bool_mask(BATCH, KEYS)},
    ),
    "causal": ({}, "self", {"attn_mask": lambda: CAUSAL, "is_causal": lambda: True}),
    "causal_padding": (
        {},
        "self",
        {
            "attn_mask": lambda: CAUSAL,
            "is_causal": lambda: True,
            "key_padding_mask": lambda: bool_mask(BATCH, QUERIES),
        },
    ),
}


def make_inputs(module: nn.MultiheadAttention, form: str, batched: bool):
    def tensor(length, width):
        shape = (BATCH, length, width) if module.batch_first else (length, BATCH, width)
        return torch.randn(shape if batched else (length, width)).requires_grad_()

    query = tensor(QUERIES, WIDTH)
    if form == "self":
        return query, query, query
    if form == "query_is_key":
        return query, query, tensor(QUERIES, module.vdim)
    key = tensor(KEYS, module.kdim)
    return (query, key, key) if form == "cross" else (query, key, tensor(KEYS, module.vdim))


def without_batch(name: str, mask: torch.Tensor | bool) -> torch.Tensor | bool:
    if isinstance(mask, bool) or (name == "attn_mask" and mask.dim() == 2):
        return mask
    return mask[:HEADS] if name == "attn_mask" else mask[0]


def check_equal(found, expected) -> None:
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None)
    if expected[1] is not None:
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("layout", ["batch_first", "length_first", "unbatched"])
@pytest.mark.parametrize(("options", "form", "arguments"), VARIANTS.values(), ids=VARIANTS)
def test_attention_computes_what_the_plain_module_does(same_network, options, form, arguments, layout):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=layout == "batch_first", **options)
    for parameter in plain.parameters():  # biases start at zero otherwise
        nn.init.normal_(parameter, std=0.5)
    layer = same_network(plain)
    inputs = make_inputs(plain, form, layout != "unbatched")
    given = {name: make() for name, make in arguments.items()}
    if layout == "unbatched":
        given = {name: without_batch(name, mask) for name, mask in given.items()}
    wishes = [{"need_weights": False}, {}, {"average_attn_weights": False}]
    for wish in wishes:
        check_equal(layer(*inputs, **given, **wish), plain(*inputs, **given, **wish))
        plain.eval(), layer.eval()
        with torch.no_grad():
            check_equal(layer(*inputs, **given, **wish), plain(*inputs, **given, **wish))
        plain.train(), layer.train()

    leaves = list({id(x): x for x in inputs}.values())
    grads = [torch.autograd.grad(module(*inputs, **given)[0].square().sum(), leaves) for module in (layer, plain)]
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_falls_on_the_same_attention_weights(need_weights):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True)
    layer = gossamer.bayesianize(copy.deepcopy(plain), 1.0, init="pretrained")
    for weight in sparse_weights(layer).values():
        weight.noisy = False
    x = torch.randn(BATCH, QUERIES, WIDTH)
    results = []
    for module in (layer, plain):
        torch.manual_seed(1)
        results.append(module(x, x, x, need_weights=need_weights))
    check_equal(*results)
    assert not torch.allclose(results[0][0], layer.eval()(x, x, x)[0])


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 3}])
def test_biases_stay_frozen_and_come_back_whole(options):
    plain = nn.MultiheadAttention(WIDTH, HEADS, **options)
    nn.init.normal_(plain.in_proj_bias)
    plain.in_proj_bias.requires_grad_(False)
    layer = gossamer.bayesianize(copy.deepcopy(plain), 0.5)
    biases = {name: p.requires_grad for name, p in layer.named_parameters() if name.endswith("bias")}
    assert biases == {name: name == "out_proj.bias" for name in biases}
    again = gossamer.draw(layer)
    assert torch.equal(again.in_proj_bias, plain.in_proj_bias)
    assert not again.in_proj_bias.requires_grad


def test_a_drawn_attention_is_the_plain_module(same_network):
    torch.manual_seed(0)
    for options in ({}, {"kdim": 6, "vdim": 3, "add_bias_kv": True}):
        plain = nn.MultiheadAttention(WIDTH, HEADS, **options)
        drawn = gossamer.draw(same_network(plain))
        assert type(drawn) is nn.MultiheadAttention
        assert {name: p.shape for name, p in drawn.named_parameters()} == {
            name: p.shape for name, p in plain.named_parameters()
        }


PADDING = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)

# Fused paths round differently from the plain ones.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

GRAD_MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}

EXCLUDED = {
    "nothing": (),
    "attention": (nn.MultiheadAttention,),
    "linear": (nn.Linear,),
    "first_layer": ("*layers.0",),
    "second_layer": ("*layers.1",),
}


@pytest.mark.parametrize("exclude", EXCLUDED.values(), ids=EXCLUDED)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_encoders(same_network, training, exclude):
    """An encoder of torch reads the weights of its layers in evaluation mode, and packs padded batches."""
    torch.manual_seed(0)
    for options in ({}, {"norm_first": True, "activation": "gelu"}, {"batch_first": False}, {"bias": False}):
        options = {"dropout": 0.0, "batch_first": True} | options
        plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 12, **options), 2).train(training)
        model = same_network(plain, exclude=exclude)
        x = torch.randn(BATCH, KEYS, WIDTH)
        seen = ~PADDING
        if not options["batch_first"]:
            x, seen = x.transpose(0, 1), seen.T
        mask = nn.Transformer.generate_square_subsequent_mask(KEYS)
        closed = torch.zeros(PADDING.shape).masked_fill(PADDING, -torch.inf)
        for mode in GRAD_MODES.values():
            with mode():
                torch.testing.assert_close(model(x), plain(x), **CLOSE)
                torch.testing.assert_close(
                    model(x, mask=mask, is_causal=True), plain(x, mask=mask, is_causal=True), **CLOSE
                )
                for padding in (PADDING, closed):
                    found = model(x, src_key_padding_mask=padding)
                    expected = plain(x, src_key_padding_mask=padding)
                    torch.testing.assert_close(found[seen], expected[seen], **CLOSE)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_one_converted_layer_in_an_encoder_of_others(same_network):
    """The encoder itself was not seen by the conversion, and looks into its first layer to choose its path."""
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True}
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 12, **options), 2).eval()
    model, x = copy.deepcopy(plain), torch.randn(BATCH, KEYS, WIDTH)
    model.layers[0] = same_network(plain.layers[0])
    with torch.no_grad():
        found, expected = (encoder(x, src_key_padding_mask=PADDING) for encoder in (model, plain))
    torch.testing.assert_close(found[~PADDING], expected[~PADDING], **CLOSE)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_single_encoder_layers_and_decoders(same_network, training):
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": True}
    encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, **options).train(training)
    decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 12, **options).train(training)
    decoders = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 12, **options), 2).train(training)
    whole = nn.Transformer(WIDTH, HEADS, 1, 1, 12, **options).train(training)
    x, target = torch.randn(BATCH, KEYS, WIDTH), torch.randn(BATCH, QUERIES, WIDTH)
    calls = [
        (encoder, (x,), {"src_key_padding_mask": PADDING}),
        (decoder, (target, x), {"tgt_mask": CAUSAL, "tgt_is_causal": True, "memory_key_padding_mask": PADDING}),
        (decoders, (target, x), {"memory_mask": bool_mask(QUERIES, KEYS)}),
        (whole, (x, target), {"tgt_mask": CAUSAL, "src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING}),
    ]
    for plain, inputs, arguments in calls:
        model = same_network(plain)
        for mode in GRAD_MODES.values():
            with mode():
                found, expected = model(*inputs, **arguments), plain(*inputs, **arguments)
                rows = ~PADDING if plain is encoder else slice(None)
                torch.testing.assert_close(found[rows], expected[rows], **CLOSE)


def test_an_encoder_trains():
    """Every mean and every std of a sparse encoder gets a gradient; most of them are not zero."""
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.TransformerEncoderLayer(WIDTH, HEADS, 12, batch_first=True), 0.5, std="gradient")
    model(torch.randn(BATCH, KEYS, WIDTH)).square().sum().backward()
    for name, weight in sparse_weights(model).items():
        for vector in (weight.mean, weight.raw_std):
            assert vector.grad.isfinite().all(), name
            assert (vector.grad != 0).double().mean() > 0.5, name
