"""``noise="weights"``: one draw of the weights for the whole batch of a training pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.layers import sparse_weights

LAYERS = {
    "linear": (lambda: nn.Linear(20, 12), (7, 20)),
    "conv": (lambda: nn.Conv2d(4, 6, 3, padding=1), (3, 4, 5, 5)),
}


def converted(kind: str, **options):
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    options = {"density": 0.3, "keep_dense": (), "init_std": 0.2, "noise": "weights", "std": "gradient"} | options
    return gossamer.bayesianize(build().double(), **options), torch.randn(shape, dtype=torch.float64)


def dense_product(layer, x, weight):
    return F.linear(x, weight, layer.bias) if x.dim() == 2 else F.conv2d(x, weight, layer.bias, padding=1)


@pytest.mark.parametrize("mode", ["default", "reference"])
@pytest.mark.parametrize("kind", LAYERS)
def test_output_and_gradients_are_those_of_the_dense_formula(kind, mode):
    layer, x = converted(kind, mode=mode)
    x.requires_grad_()
    leaves = [x, layer.weight.mean, layer.weight.raw_std, layer.bias]
    torch.manual_seed(1)
    y = layer(x)
    direction = torch.randn_like(y)
    torch.manual_seed(1)
    noise = torch.randn_like(layer.weight.mean)
    weight = layer.support.scatter(layer.weight.mean + F.softplus(layer.weight.raw_std) * noise)
    expected = dense_product(layer, x, weight)
    torch.testing.assert_close(y, expected)
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, direction), torch.autograd.grad(expected, leaves, direction), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_dense_gradient_is_that_of_the_drawn_weights(kind):
    """What decides which entries grow: every entry's, at the weights that the pass has used."""
    layer, x = converted(kind)
    layer.weight.arm()
    torch.manual_seed(1)
    layer(x).pow(2).sum().backward()
    torch.manual_seed(1)
    drawn = layer.support.scatter(layer.weight.sample().detach()).requires_grad_()
    dense_product(layer, x, drawn).pow(2).sum().backward()
    torch.testing.assert_close(layer.weight.disarm(), drawn.grad)


def test_all_examples_share_the_noise_and_every_pass_has_its_own():
    layer, x = converted("linear")
    same = x[:1].expand(5, -1)
    y = layer(same)
    torch.testing.assert_close(y, y[:1].expand_as(y), rtol=1e-12, atol=1e-12)
    assert not torch.equal(layer(same), y)
    local, _ = converted("linear", noise="local")
    y = local(same)
    assert not torch.equal(y, y[:1].expand_as(y))


def test_outputs_have_the_moments_of_the_weights():
    layer, x = converted("linear")
    n = 4000
    with torch.no_grad():
        draws = torch.stack([layer(x) for _ in range(n)])
    mean = dense_product(layer, x, layer.dense_mean()).detach()
    std = (x**2 @ (layer.dense_std() ** 2).T).sqrt().detach()
    assert ((draws.mean(0) - mean).abs() <= 4.5 * std / n**0.5 + 1e-12).all()
    torch.testing.assert_close(draws.std(0), std, rtol=4.5 / (2 * n) ** 0.5, atol=1e-9)


def test_a_pass_without_noise_uses_the_means():
    layer, x = converted("conv")
    layer.weight.noisy = False
    torch.testing.assert_close(layer(x), dense_product(layer, x, layer.dense_mean()))


def test_in_evaluation_mode_the_noise_is_local():
    """So that a local prediction means the same whatever a network was trained with."""
    layer, x = converted("linear")
    other, _ = converted("linear", noise="local")
    layer.eval()
    torch.manual_seed(1)
    y = layer(x)
    torch.manual_seed(1)
    assert torch.equal(y, other(x))


@pytest.mark.parametrize("method", ["ssvi", "vi"])
def test_methods_take_it(method):
    task = digits.load()
    from gossamer.models import mlp
    from gossamer.train import Training

    parts = methods.build(method, task, steps=30, noise="weights")
    training = Training(parts, mlp(64, (20,)), task, steps=30)
    losses = [float(training.advance()["nll"]) for _ in range(30)]
    assert all(weight.noise == "weights" for weight in sparse_weights(training.model).values())
    assert sum(losses[-5:]) < sum(losses[:5])


def test_another_kind_of_noise():
    with pytest.raises(ValueError, match="noise must be one of 'local', 'weights'; got 'outputs'"):
        gossamer.bayesianize(nn.Linear(4, 4), noise="outputs")
