"""Standard deviations from curvature: estimates of a backward pass, the running mean, the weight as a module."""

import copy
import io
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import gossamer
from gossamer.kernels import library
from gossamer.kernels.dispatch import move_means, shrunk_curvature, std_of_means
from gossamer.layers import CurvatureWeight, GaussianWeight, Support, sparse_weights
from gossamer.layers.curvature import (
    AS_IS,
    LEAST_MEMORY,
    attach,
    learn,
    rate_of,
    shrinkage_of,
)

LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "conv": (lambda: nn.Conv2d(2, 4, 3), (4, 2, 5, 5)),
}


def attached(build, noise="local", dtype=torch.float64, **options) -> nn.Module:
    torch.manual_seed(0)
    layer = gossamer.bayesianize(build(), density=0.5, noise=noise, std="curvature", **options).to(dtype)
    for weight in sparse_weights(layer).values():
        attach(weight, noise_scale=0.01)
    return layer


def mlp(noise="local", dtype=torch.float32) -> nn.Module:
    return attached(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), noise, dtype)


def estimates(model: nn.Module) -> list[torch.Tensor | None]:
    return [weight.estimates.take(weight.mean) for weight in sparse_weights(model).values()]


# ---------------------------------------------------------------------- what a backward pass estimates


@pytest.mark.parametrize("name", LAYERS)
def test_the_estimate_of_drawn_weights_is_gradient_times_noise_over_std(name):
    build, shape = LAYERS[name]
    layer = attached(build, "weights")
    weight, x = layer.weight, torch.randn(shape, dtype=torch.float64)
    std = weight.std.detach()
    torch.manual_seed(1)
    layer(x).square().mean().backward()
    torch.manual_seed(1)
    noise = torch.randn_like(weight.mean)
    drawn = (weight.mean + std * noise).detach().requires_grad_()
    plain = copy.deepcopy(layer)
    plain.weight.mean.data.copy_(drawn.detach())
    plain.weight.noisy = False
    plain.zero_grad()
    plain(x).square().mean().backward()
    torch.testing.assert_close(weight.mean.grad, plain.weight.mean.grad)
    torch.testing.assert_close(weight.estimates.take(weight.mean), plain.weight.mean.grad * noise / std)


@pytest.mark.parametrize("name", LAYERS)
def test_the_estimate_of_local_noise_is_twice_the_gradient_of_the_variance(name):
    build, shape = LAYERS[name]
    layer = attached(build)
    x = torch.randn(shape, dtype=torch.float64)
    layer.weight.curvature.uniform_(0.5, 2.0)
    variance = layer.weight.std.detach().square().requires_grad_()
    torch.manual_seed(1)
    y = layer(x)
    torch.manual_seed(1)
    mean, bias = layer.weight.dense_mean(), layer.bias
    dense_variance = layer.support.scatter(variance)
    product = F.linear if name == "linear" else F.conv2d
    spread = product(x.square(), dense_variance).sqrt()
    noise = ((y - product(x, mean, bias)) / spread).detach()
    expected = product(x, mean, bias) + spread * noise
    torch.testing.assert_close(expected, y)
    y.square().mean().backward()
    expected.square().mean().backward()
    torch.testing.assert_close(layer.weight.estimates.take(layer.weight.mean), 2 * variance.grad)


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_estimates_are_unbiased(noise):
    """Of the mean square of a linear layer the second derivatives are known, and do not depend on the weights."""
    layer = attached(lambda: nn.Linear(6, 5), noise)
    x, n = torch.randn(4, 6, dtype=torch.float64), 1000
    found = []
    for _ in range(n):
        layer.zero_grad()
        layer(x).square().mean().backward()
        found.append(layer.weight.estimates.take(layer.weight.mean))
    found = torch.stack(found)
    exact = layer.support.gather((2 * x.square().sum(0) / 20).expand(5, 6))
    error = (found.mean(0) - exact) / (found.std(0) / math.sqrt(n))
    assert error.abs().max() < 5  # a false alarm once in 10⁵ seeds


def test_a_pass_at_the_means_gives_no_estimate():
    model = mlp()
    for weight in sparse_weights(model).values():
        weight.trains_at_mean = True
    model(torch.randn(3, 6)).sum().backward()
    assert estimates(model) == [None, None]
    assert model[0].mean.grad.any()


def test_frozen_weights_give_no_estimate():
    model = mlp()
    model[0].mean.requires_grad_(False)
    model(torch.randn(3, 6)).square().sum().backward()
    first, second = estimates(model)
    assert first is None
    assert second.any()
    model[0].mean.requires_grad_(True)
    model.eval()(torch.randn(3, 6)).square().sum().backward()
    assert all(estimate.any() for estimate in estimates(model))


def test_a_weight_that_was_frozen_when_it_was_attached_listens_once_it_is_not():
    torch.manual_seed(0)
    layer = gossamer.bayesianize(nn.Linear(6, 5), density=0.5)
    layer.mean.requires_grad_(False)
    attach(layer.weight, 0.01)
    layer(torch.randn(3, 6)).square().sum().backward()
    assert layer.weight.estimates.take(layer.weight.mean) is None
    layer.mean.requires_grad_(True)
    layer(torch.randn(3, 6)).square().sum().backward()
    assert layer.weight.estimates.take(layer.weight.mean).any()


# ---------------------------------------------------------------------- the running mean


def test_the_running_means_are_their_formula():
    torch.manual_seed(0)
    for rate in (1e-5, 1e-3, 1 / 30):
        h, v, estimate, grad = torch.randn(4, 2001, dtype=torch.float64) * torch.logspace(-9, 9, 2001).double()
        curvature, square = h.clone(), v.square()
        move_means(curvature, square, estimate, grad, rate)
        torch.testing.assert_close(curvature, (1 - rate) * h + rate * estimate, rtol=1e-9, atol=1e-15)
        torch.testing.assert_close(square, (1 - rate) * v**2 + rate * grad**2, rtol=1e-9, atol=1e-15)


def test_what_is_shrunk_is_its_formula():
    torch.manual_seed(0)
    h, v = torch.randn(100), torch.rand(100)
    c, w, least = 0.3, 0.6, 0.03
    expected = (c * v + w * (h - c * v)).clamp_min(least * v)
    torch.testing.assert_close(shrunk_curvature(h, v, torch.tensor([c, w, least, 1.0])), expected)
    of_many = torch.tensor([c, w, least, 1.0])[:, None].expand(-1, 100)
    torch.testing.assert_close(shrunk_curvature(h, v, of_many), expected)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_native_passes_are_those_of_torch(share, monkeypatch):
    torch.manual_seed(0)
    for n in (1, 7, 2001):
        h, v, estimate, grad = torch.randn(4, n) * torch.logspace(-9, 9, n)
        v, shrinkage = v.square(), torch.tensor([0.3, share, 0.03, 1.0])
        estimate[::5], grad[1::7] = torch.nan, torch.inf
        moved = [h.clone(), v.clone()]
        std, shrunk = std_of_means(h, v, shrinkage, 1e-4, 1e-3), shrunk_curvature(h, v, shrinkage)
        assert torch.equal(std, std_of_means(shrunk, v, torch.tensor(AS_IS), 1e-4, 1e-3))
        move_means(*moved, estimate, grad, 0.1)
        with monkeypatch.context() as patch:
            patch.setattr(library, "LIBRARY", {})
            torch.testing.assert_close(std, std_of_means(h, v, shrinkage, 1e-4, 1e-3), equal_nan=True)
            expected = h.clone(), v.clone()
            move_means(*expected, estimate, grad, 0.1)
        for found, wanted, terms in zip(moved, expected, (h.abs() + estimate.abs(), v + grad.square()), strict=True):
            counts = terms.isfinite()
            assert torch.equal(found[~counts], wanted[~counts])
            assert ((found - wanted).abs() <= 2 * torch.finfo(h.dtype).eps * terms)[counts].all()  # they may cancel


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0, 10.0, 100.0])
def test_shrunk_means_are_closer_to_the_truth_and_have_its_sum(noise):
    """Against curvatures that are known: nearer than either the running mean or c·v, and as large together."""
    torch.manual_seed(0)
    n, steps = 4000, 60
    v = torch.logspace(-1, 1, n).double()
    truth = 2 * v * torch.empty_like(v).uniform_(0.5, 1.5)
    h, square, shrinkage = torch.zeros_like(v), torch.full_like(v, 1e-30), torch.tensor(AS_IS).double()
    for number in range(steps):
        estimate = truth + noise * truth * torch.randn(n).double() * 4
        rate = 1 / (number + 2)
        move_means(h, square, estimate, v.sqrt(), rate)
        shrinkage = shrinkage_of(h, square, estimate, shrinkage, rate, 1)
    found = shrunk_curvature(h, square, shrinkage)
    assert (found > 0).all()
    of_sum = 4 * noise * truth.norm() / math.sqrt(steps) / truth.sum()  # its standard error
    assert abs(float(found.sum() / truth.sum()) - 1) < 1 / steps + 0.02 + 4 * of_sum
    error, alone, prior = ((one - truth).norm() for one in (found, h, shrinkage[0] * square))
    assert error < 1.05 * min(alone, prior)
    assert (shrinkage[1] > 0.98) == (noise == 0)
    assert noise < 10 or shrinkage[1] < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_variance_stays_positive_and_finite_whatever_comes(dtype):
    torch.manual_seed(0)
    weight = attached(lambda: nn.Linear(100, 200), dtype=dtype).weight
    for _ in range(300):
        size = 10.0 ** torch.empty_like(weight.curvature).uniform_(-40, 38)
        learn(weight, torch.randn_like(size) * size, torch.randn_like(size) * size)
        assert weight.curvature.isfinite().all()
        assert (weight.shrunk + weight.damping > 0).all()
        assert weight.std.isfinite().all()


def test_estimates_that_are_not_finite_do_not_count():
    h, v = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4)
    move_means(h, v, torch.tensor([torch.nan, torch.inf, -torch.inf, 5.0]), torch.full((4,), 2.0), 0.1)
    torch.testing.assert_close(h, torch.tensor([1.0, 2.0, 3.0, 4.1]))
    torch.testing.assert_close(v, torch.tensor([1.0, 1.0, 1.0, 1.3]))


def test_a_first_large_estimate_does_not_survive():
    """The first steps of a network that knows nothing may be a thousand times as curved as it is later."""
    weight = attached(lambda: nn.Linear(6, 5)).weight
    for number in range(300):
        estimate = torch.full_like(weight.curvature, 1e3 if number < 10 else 1.0)
        learn(weight, estimate, estimate.sqrt())
    torch.testing.assert_close(weight.shrunk, torch.ones_like(weight.shrunk), rtol=0.1, atol=0.0)


def test_the_memory_is_a_share_of_the_training_so_far():
    weight = attached(lambda: nn.Linear(6, 5)).weight
    attach(weight, 0.01, memory=0.5)
    rates = []
    for _ in range(30):
        rates.append(rate_of(weight))
        learn(weight, torch.zeros_like(weight.curvature), torch.zeros_like(weight.curvature))
    assert weight.n_estimates == 30
    assert rates == [1 / min(n + 2, LEAST_MEMORY + 0.5 * n) for n in range(30)]
    assert rates[0] == 0.5


# ---------------------------------------------------------------------- which Gaussian it is


def test_before_it_learns_a_weight_is_the_gaussian_it_was_made_as():
    torch.manual_seed(0)
    mean, std, support = torch.randn(12), torch.rand(12) + 0.1, Support((3, 4))
    one, other = (kind(support, mean, std, prior_std=0.7) for kind in (CurvatureWeight, GaussianWeight))
    torch.testing.assert_close(one.std, other.std)
    torch.testing.assert_close(one.kl(), other.kl())
    assert one.prior_std == pytest.approx(0.7)
    assert [name for name, _ in one.named_parameters()] == ["mean"]


def test_attaching_keeps_the_std_up_to_that_of_the_prior():
    std = torch.tensor([0.1, 0.5, 2.0])
    weight = CurvatureWeight(Support((1, 3)), torch.zeros(3), std, prior_std=1.0)
    attach(weight, 0.01)
    torch.testing.assert_close(weight.std.detach(), torch.tensor([0.1, 0.5, 1.0]))
    assert weight.prior_std == pytest.approx(1.0)
    attach(weight, 0.04, damping=0.01)  # h stays, σ follows
    torch.testing.assert_close(weight.std.detach(), (0.04 / (weight.curvature + 0.01)).sqrt())
    assert weight.prior_std == pytest.approx(2.0)
    before = weight.curvature.clone()
    attach(weight, 0.04, damping=0.01)
    assert torch.equal(weight.curvature, before)


def test_set_std_is_what_std_returns_also_after_calibration():
    weight = mlp()[0].weight
    weight.calibration = 2.5
    std = torch.rand_like(weight.mean) + 0.1
    weight.set_std(std)
    torch.testing.assert_close(weight.std.detach(), std)


def test_a_new_entry_has_the_mean_curvature_of_those_that_stay():
    weight = mlp()[0].weight
    weight.curvature.uniform_(0, 1)
    kept = torch.rand(len(weight.mean)) < 0.5
    regrown = weight.regrown(kept)
    assert regrown["mean"] == 0
    torch.testing.assert_close(regrown["curvature"], weight.curvature[kept].mean())
    torch.testing.assert_close(weight.regrown(kept & False)["curvature"], weight.curvature.mean())
    h = weight.regrown(kept, 0.25)["curvature"]
    torch.testing.assert_close((weight.noise_scale / (h + weight.damping)).sqrt(), torch.tensor(0.25))


# ---------------------------------------------------------------------- as a module


def test_copies_are_the_same_gaussian_and_do_not_learn():
    model = mlp()
    model(torch.randn(3, 6)).square().sum().backward()
    learn(model[0].weight, *torch.rand(2, *model[0].weight.curvature.shape))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        weight = twin[0].weight
        assert torch.equal(weight.std, model[0].weight.std)
        assert weight.get_extra_state().equal(model[0].weight.get_extra_state())
        assert weight.learner is None
        assert weight.estimates.leaf is None
        twin(torch.randn(3, 6)).square().sum().backward()
        assert weight.estimates.take(weight.mean) is None


def test_the_curvature_stays_in_float32_or_better():
    model = mlp()
    exact = model[0].weight.curvature.clone().add_(1e-7)
    model[0].weight.curvature.copy_(exact)
    model.to(torch.bfloat16)
    assert model[0].weight.curvature.dtype == torch.float32
    assert torch.equal(model[0].weight.curvature, exact)
    assert model[0].std.dtype == model[0].mean.dtype == torch.bfloat16
    model(torch.randn(3, 6, dtype=torch.bfloat16)).square().sum().backward()
    assert model[0].weight.estimates.take(model[0].weight.mean).dtype == torch.float32
    model.double()
    assert model[0].weight.curvature.dtype == torch.float64
    model.zero_grad()
    model(torch.randn(3, 6, dtype=torch.float64)).square().sum().backward()
    assert model[0].weight.estimates.take(model[0].weight.mean).dtype == torch.float64


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_functional_call_and_compiled_networks_give_the_same_estimates(noise):
    torch.compiler.reset()
    model, x = mlp(noise), torch.randn(4, 6)
    compiled = torch.compile(model, backend="aot_eager")
    parameters = dict(model.named_parameters())
    found = []
    for call in (model, compiled, lambda x: functional_call(model, parameters, (x,))):
        model.zero_grad()
        torch.manual_seed(1)
        call(x).square().mean().backward()
        found.append(estimates(model))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(two, one)


def test_gradients_by_torch_func():
    model, x = mlp(), torch.randn(4, 6)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    torch.manual_seed(1)
    grads = torch.func.grad(lambda p: functional_call(model, p, (x,)).square().mean())(parameters)
    torch.manual_seed(1)
    model(x).square().mean().backward()
    torch.testing.assert_close(grads["0.weight.mean"], model[0].mean.grad)


# ---------------------------------------------------------------------- states


def test_a_state_says_everything():
    model, other = mlp(), gossamer.bayesianize(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), 0.5)
    learn(model[0].weight, *torch.rand(2, *model[0].weight.curvature.shape))
    other.load_state_dict(model.state_dict())
    for one, two in zip(sparse_weights(model).values(), sparse_weights(other).values(), strict=True):
        assert torch.equal(one.std, two.std)
        assert (one.noise_scale, one.damping, one.memory, one.n_estimates) == (
            two.noise_scale,
            two.damping,
            two.memory,
            two.n_estimates,
        )


def test_a_state_of_the_other_kind_of_std_names_the_option():
    kinds = ("gradient", "curvature")
    one, two = (gossamer.bayesianize(nn.Linear(6, 8), density=0.5, std=std) for std in kinds)
    with pytest.raises(ValueError, match="std='curvature'\\)"):
        one.load_state_dict(two.state_dict())
    with pytest.raises(ValueError, match="std='gradient'\\)"):
        two.load_state_dict(one.state_dict())


def test_whole_networks_can_be_saved():
    model, file = mlp(), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)[0].std, model[0].std)


# ---------------------------------------------------------------------- the rest of the package


def test_draws_predictions_and_numbers_of_such_a_network(capsys):
    model, x = mlp(), torch.randn(5, 6)
    prediction = gossamer.predict(model, x, n_draws=3)
    assert prediction.samples.std(0).max() > 0
    assert not torch.equal(gossamer.draw(model)(x), gossamer.draw(model)(x))
    with torch.no_grad():
        assert gossamer.kl(model) > 0
    n = gossamer.active_parameters(model)
    assert gossamer.density(model) == n / (48 + 24)
    rows = gossamer.summary(model).rows
    # Mean, curvature, squares, position; and four numbers about the noise of each layer.
    assert sum(row.n_bytes for row in rows if row.kind == "Linear") == 16 * n + 2 * 16


def test_compact_and_averaged_networks():
    model, x = mlp(), torch.randn(5, 6)
    average = gossamer.averaged(model)
    for h in (0.5, 2.0):
        for weight in sparse_weights(model).values():
            weight.curvature.fill_(h)
        average.update_parameters(model)
    weight = model[0].weight
    expected = sum(weight.noise_scale / (h + weight.damping) for h in (0.5, 2.0)) / 2
    torch.testing.assert_close(average.module[0].std.square(), torch.full_like(weight.mean, expected))
    drawn = gossamer.draw(model)
    torch.testing.assert_close(gossamer.compact(drawn)(x), drawn(x), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- warnings


def test_the_kl_objects_to_being_in_the_loss():
    model = gossamer.bayesianize(nn.Linear(6, 5), density=0.5)
    with pytest.warns(UserWarning, match=r"do not learn: give them gossamer.Curvature.* std='gradient'"):
        gossamer.kl(model)
    attach(model.weight, 0.01)
    with pytest.warns(UserWarning, match="count it twice"):
        gossamer.kl(model)
    with torch.no_grad():
        gossamer.kl(model)
    gossamer.kl(model.eval())
    gossamer.kl(gossamer.bayesianize(nn.Linear(6, 5), density=0.5, std="gradient"))
