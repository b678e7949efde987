"""Local reparameterization against brute force: many draws of the weights through the plain torch layer."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

import gossamer
from gossamer.layers import inverse_softplus, sparse_weights

N_DRAWS = 100_000
CHUNK = 10_000
FALSE_ALARM = 1e-4  # probability that a correct layer fails one of these tests, were the seed free


def randomized(plain: nn.Module, density: float, seed: int = 0) -> nn.Module:
    """The converted layer with means and stds of many sizes."""
    generator = torch.Generator().manual_seed(seed)
    layer = gossamer.bayesianize(copy.deepcopy(plain), density, keep_dense=(), std="gradient", generator=generator)
    with torch.no_grad():
        for weight in sparse_weights(layer).values():
            weight.mean.normal_(generator=generator)
            std = torch.rand(weight.raw_std.shape, generator=generator, dtype=weight.raw_std.dtype) + 0.1
            weight.raw_std.copy_(inverse_softplus(std))
    return layer


def moments(chunks) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over the draws, accumulated in float64 around the first draw to avoid cancellation."""
    chunks = [chunk.detach().double() for chunk in chunks]
    shift = chunks[0][0]
    draws = torch.cat([chunk - shift for chunk in chunks])
    return draws.mean(0) + shift, draws.var(0)


def assert_same_moments(first, second, n_first: int, n_second: int) -> None:
    """z-scores of all differences of means and of variances lie below the bound for that many comparisons."""
    (mean_a, var_a), (mean_b, var_b) = first, second
    pooled = (var_a + var_b) / 2
    random = pooled > 1e-10
    assert random.any()
    torch.testing.assert_close(mean_a[~random], mean_b[~random], rtol=1e-5, atol=1e-5)
    z_mean = (mean_a - mean_b) / (pooled * (1 / n_first + 1 / n_second)).sqrt()
    # The outputs are Gaussian, so the variance of a sample variance is 2 σ⁴ / (n - 1).
    z_var = (var_a - var_b) / (pooled * math.sqrt(2 / (n_first - 1) + 2 / (n_second - 1)))
    bound = z_bound(2 * int(random.sum()))
    assert z_mean[random].abs().max() < bound
    assert z_var[random].abs().max() < bound


def z_bound(n_comparisons: int) -> float:
    tail = torch.tensor(FALSE_ALARM / (2 * n_comparisons), dtype=torch.float64)
    return -torch.special.ndtri(tail).item()


LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), (2, 5)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 5)),
    "conv1d_reflect": (lambda: nn.Conv1d(2, 2, 3, padding=2, padding_mode="reflect"), (2, 4)),
    "conv1d_same_even_kernel": (lambda: nn.Conv1d(2, 2, 4, padding="same"), (2, 5)),
    "conv1d_same_dilated_circular": (
        lambda: nn.Conv1d(1, 2, 4, padding="same", dilation=2, padding_mode="circular"),
        (1, 7),
    ),
    "conv2d_zeros": (lambda: nn.Conv2d(2, 2, 3, padding=1), (2, 3, 3)),
    "conv2d_valid": (lambda: nn.Conv2d(2, 2, 2, padding="valid"), (2, 3, 3)),
    "conv2d_same": (lambda: nn.Conv2d(1, 2, (2, 3), padding="same"), (1, 3, 3)),
    "conv2d_same_reflect": (lambda: nn.Conv2d(1, 2, (4, 3), padding="same", padding_mode="reflect"), (1, 3, 4)),
    "conv2d_reflect": (lambda: nn.Conv2d(1, 2, 3, padding=(1, 2), padding_mode="reflect"), (1, 3, 3)),
    "conv2d_replicate": (lambda: nn.Conv2d(1, 2, 3, padding=(2, 1), padding_mode="replicate"), (1, 3, 3)),
    "conv2d_circular": (lambda: nn.Conv2d(1, 2, 3, padding=(0, 2), padding_mode="circular"), (1, 3, 3)),
    "conv2d_groups_strided": (lambda: nn.Conv2d(4, 4, 2, stride=(2, 1), padding=1, groups=2), (4, 3, 2)),
    "conv2d_depthwise_dilated": (lambda: nn.Conv2d(2, 4, 2, dilation=(2, 1), groups=2, padding=(1, 0)), (2, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, stride=(1, 2, 1), padding=(0, 1, 0), bias=False), (2, 2, 3, 3)),
    "conv3d_replicate": (lambda: nn.Conv3d(1, 1, 2, padding=1, padding_mode="replicate"), (1, 2, 2, 2)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 2, 3, stride=2, padding=1, output_padding=1), (2, 3)),
    "transposed2d_groups": (lambda: nn.ConvTranspose2d(4, 2, 2, stride=(2, 1), groups=2), (4, 2, 2)),
    "transposed2d_dilated": (lambda: nn.ConvTranspose2d(1, 2, 2, dilation=2, padding=1, bias=False), (1, 3, 3)),
    "transposed3d": (lambda: nn.ConvTranspose3d(1, 1, 2, stride=(1, 2, 2), output_padding=(0, 1, 0)), (1, 2, 2, 2)),
}
layers = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


@layers
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # from the plain layer
@torch.no_grad()
def test_outputs_have_the_moments_of_drawn_weights(make, shape):
    torch.manual_seed(0)
    plain, x = make(), torch.randn(shape)
    layer = randomized(plain, density=0.6)

    local = [layer(x.expand(CHUNK, *shape)) for _ in range(N_DRAWS // CHUNK)]

    def through_plain_layer(weight):
        return functional_call(plain, {"weight": weight}, (x.unsqueeze(0),)).squeeze(0)

    mean, std = layer.dense_mean(), layer.dense_std()
    drawn = [vmap(through_plain_layer)(mean + std * torch.randn(CHUNK, *mean.shape)) for _ in range(N_DRAWS // CHUNK)]
    assert_same_moments(moments(local), moments(drawn), N_DRAWS, N_DRAWS)


@torch.no_grad()
def test_the_noise_of_two_outputs_is_independent():
    """Exact for a linear layer: the rows of the weight are independent, and so are two examples' outputs."""
    torch.manual_seed(0)
    layer = randomized(nn.Linear(4, 3), density=1.0)
    x = torch.randn(2, 4)
    y = torch.cat([layer(x.expand(CHUNK, 2, 4)).flatten(1) for _ in range(N_DRAWS // CHUNK)])
    correlation = torch.corrcoef(y.double().T) - torch.eye(6)
    assert correlation.abs().max() < z_bound(15) / math.sqrt(N_DRAWS)


@torch.no_grad()
def test_embeddings_have_noise_of_their_own_at_every_place():
    torch.manual_seed(0)
    layer = randomized(nn.Embedding(4, 3, padding_idx=2), density=0.8)
    words = torch.tensor([1, 1, 2, 3])
    local = torch.cat([layer(words.expand(CHUNK, 4)) for _ in range(N_DRAWS // CHUNK)])
    mean, std = layer.dense_mean()[words], layer.dense_std()[words]
    drawn = mean + std * torch.randn(N_DRAWS, *mean.shape)
    assert_same_moments(moments([local]), moments([drawn]), N_DRAWS, N_DRAWS)
    assert not local[:, 2].any()
    active = layer.dense_std()[1] > 0
    together = torch.stack([local[:, 0, active], local[:, 1, active]]).double()
    correlation = torch.stack([torch.corrcoef(pair)[0, 1] for pair in together.unbind(-1)])
    assert correlation.abs().max() < z_bound(len(correlation)) / math.sqrt(N_DRAWS)


DIFFERENTIATED = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "conv2d": (lambda: nn.Conv2d(2, 2, 2, padding="same", padding_mode="circular"), (2, 2, 3, 3)),
    "transposed1d": (lambda: nn.ConvTranspose1d(2, 2, 2, stride=2), (2, 2, 3)),
    "embedding": (lambda: nn.Embedding(4, 3), None),
    "gru": (lambda: nn.GRU(2, 3, num_layers=2), (4, 2, 2)),
    "lstm": (lambda: nn.LSTM(2, 3, proj_size=2, bidirectional=True), (3, 2, 2)),
    "attention": (lambda: nn.MultiheadAttention(4, 2, kdim=2, vdim=2), (3, 1, 4)),
}


@pytest.mark.parametrize(("make", "shape"), DIFFERENTIATED.values(), ids=DIFFERENTIATED)
@pytest.mark.parametrize("density", [0.5, 1.0])
def test_gradients_match_finite_differences(make, shape, density):
    """Means, raw stds and biases in float64, with the same noise at every evaluation."""
    torch.manual_seed(0)
    layer = randomized(make().double(), density)
    x = torch.tensor([[0, 1], [3, 1]]) if shape is None else torch.randn(shape, dtype=torch.float64)
    inputs = (x, x[..., :2], x[..., 2:]) if isinstance(layer, gossamer.layers.attention.SparseAttention) else (x,)
    names, values = zip(*layer.named_parameters(), strict=True)
    assert any(name.endswith("raw_std") for name in names)

    def output(*values):
        torch.manual_seed(1)
        y = functional_call(layer, dict(zip(names, values, strict=True)), inputs)
        return y if isinstance(y, torch.Tensor) else y[0]

    assert torch.autograd.gradcheck(output, [value.detach().clone().requires_grad_() for value in values])


@pytest.mark.parametrize("make", [lambda: nn.LSTM(2, 3), lambda: nn.Linear(2, 3)], ids=["lstm", "linear"])
def test_functional_call_differentiates_at_the_given_parameters(make):
    """Nothing is read from the module in the backward pass, where it has its own parameters again."""
    torch.manual_seed(0)
    layer = randomized(make(), density=0.7)
    x = torch.randn(4, 2, 2)
    given = {name: value.detach() + 0.3 for name, value in layer.named_parameters()}

    def loss():
        torch.manual_seed(1)
        y = layer(x)
        return (y if isinstance(y, torch.Tensor) else y[0]).square().sum()

    inside = {name: value.clone().requires_grad_() for name, value in given.items()}
    torch.manual_seed(1)
    y = functional_call(layer, inside, (x,))
    (y if isinstance(y, torch.Tensor) else y[0]).square().sum().backward()
    layer.load_state_dict(given, strict=False)
    loss().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(inside[name].grad, parameter.grad)


def test_both_kinds_of_prediction_agree_for_one_linear_layer():
    torch.manual_seed(0)
    model = randomized(nn.Linear(6, 4), density=0.5)
    x = torch.randn(5, 6)
    n_draws = 4000
    found = [
        gossamer.predict(model, x, n_draws, kind, generator=torch.Generator().manual_seed(7)).outputs
        for kind in ("weights", "local")
    ]
    assert_same_moments(moments([found[0]]), moments([found[1]]), n_draws, n_draws)
    mean, variance = model.dense_mean().detach().double(), model.dense_std().detach().double().square()
    exact = x.double() @ mean.T + model.bias.detach(), x.double().square() @ variance.T
    for outputs in found:
        assert_same_moments(moments([outputs]), exact, n_draws, 10**12)


def test_the_reference_mode_adds_its_floor_to_every_variance():
    """The released code takes sqrt(variance + 1e-8): a noise of 1e-4 where the variance is zero."""
    torch.manual_seed(0)
    for mode, expected in (("default", 0.0), ("reference", 1e-4)):
        layer = gossamer.bayesianize(nn.Linear(3, 2, bias=False), 1.0, mode=mode)
        noise = layer(torch.zeros(CHUNK, 3)).detach()
        tolerance = z_bound(1) * 1e-4 / math.sqrt(2 * noise.numel())
        assert noise.std() == pytest.approx(expected, abs=tolerance if expected else 0.0)
