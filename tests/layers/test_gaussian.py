"""Gaussian weights: their KL, the range of their stds, their draws, regrown entries, and loading a state."""

import copy
import math
import pickle

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

import gossamer
from gossamer.kernels import LinearMap
from gossamer.layers import GaussianWeight, PointWeight, SparseWeight, Support, inverse_softplus
from gossamer.layers.gaussian import STD_FLOOR
from gossamer.layers.weight import stats_of
from gossamer.priors import normal_kl

HALF = [torch.bfloat16, torch.float16]


def gaussian(n_active=7, shape=(4, 5), prior_std=0.7, dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(0)
    position = torch.randperm(math.prod(shape), generator=generator)[:n_active].sort().values
    mean = torch.randn(n_active, generator=generator).to(dtype)
    std = (torch.rand(n_active, generator=generator) + 0.1).to(dtype)
    return GaussianWeight(Support(shape, position), mean, std, prior_std, **options)


@pytest.mark.parametrize("prior_std", [0.005, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
def test_kl_is_that_of_torch_distributions(dtype, prior_std):
    generator = torch.Generator().manual_seed(0)
    mean, std = torch.randn(2, 200, generator=generator, dtype=torch.float64)
    mean, std = mean.to(dtype), std.exp().to(dtype)
    prior = Normal(torch.zeros(200, dtype=torch.float64), prior_std)
    terms = kl_divergence(Normal(mean.double(), std.double()), prior)
    found = normal_kl(mean, std, prior_std)
    # Half precision is summed in float32.
    assert found.dtype == (torch.float32 if dtype in HALF else dtype)
    size = (
        0.5 * ((mean.double() / prior_std).square() + (std.double() / prior_std).square() + 1)
        + std.double().log().abs()
    )
    size = size.sum() + 200 * abs(math.log(prior_std))
    assert abs(found.item() - terms.sum().item()) <= 8 * torch.finfo(found.dtype).eps * size
    assert found.item() > 0


def test_the_kl_of_a_model_is_the_sum_over_its_weights():
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 6)), 0.3, prior_std=0.4, std="gradient")
    terms = [kl_divergence(Normal(layer.mean, layer.std), Normal(0.0, 0.4)).sum() for layer in model]
    torch.testing.assert_close(gossamer.kl(model), sum(terms))
    gossamer.kl(model).backward()
    assert model[0].mean.grad.any()
    assert model[0].weight.raw_std.grad.any()
    assert gossamer.kl(gossamer.sparsify(nn.Linear(4, 4))) == 0


@pytest.mark.parametrize("prior_std", [0.005, 1.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_std_and_its_gradients_are_finite_over_the_whole_range(dtype, prior_std):
    raw = torch.linspace(-200, 50, 1001).to(dtype)
    n = len(raw)
    weight = GaussianWeight(Support((1, n)), torch.zeros(n, dtype=dtype), torch.ones(n, dtype=dtype), prior_std)
    with torch.no_grad():
        weight.raw_std.copy_(raw)
    std = weight.std
    assert std.isfinite().all()
    assert (std > 0).all()
    exact = F.softplus(raw.double())
    above = exact > 1.1 * STD_FLOOR
    assert above.sum() > 400
    relative = (std.double() - exact).abs() / exact
    assert relative[above].max() < 4 * torch.finfo(dtype).eps

    (65536 * weight.kl()).backward()  # as a loss scaled for half precision
    assert weight.raw_std.grad.isfinite().all()
    weight.raw_std.grad = None
    loss = weight.kl()
    loss.backward()
    assert loss.isfinite()
    assert weight.raw_std.grad.isfinite().all()
    slope = (exact / prior_std**2 - 1 / exact) * torch.sigmoid(raw.double())
    scale = (exact / prior_std**2 + 1 / exact) * torch.sigmoid(raw.double())
    error = (weight.raw_std.grad.double() - slope).abs() / scale
    assert error[above].max() < 8 * torch.finfo(dtype).eps

    weight.raw_std.grad = None
    torch.manual_seed(0)
    weight.multiply(torch.randn(3, n, dtype=dtype), None, LinearMap()).sum().backward()
    assert weight.raw_std.grad.isfinite().all()
    # One entry alone, so that no other gives the output its variance.
    for i in (0, 300, 500, 1000):
        one = GaussianWeight(
            Support((1, n), torch.tensor([i])), torch.zeros(1, dtype=dtype), std[i : i + 1].detach(), 1.0
        )
        y = one.multiply(torch.randn(3, n, dtype=dtype), None, LinearMap())
        y.sum().backward()
        assert y.isfinite().all()
        assert one.raw_std.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_inverse_softplus_against_mpmath(dtype):
    std = torch.cat([torch.logspace(-37, 37, 149), torch.linspace(0.5, 1.0, 51)]).to(dtype)
    eps = torch.finfo(dtype).eps
    raw = inverse_softplus(std)
    with mpmath.workdps(60):
        exact = [mpmath.log(mpmath.expm1(mpmath.mpf(value))) for value in std.double().tolist()]
        error = [abs(mpmath.mpf(found) - true) for found, true in zip(raw.double().tolist(), exact, strict=True)]
        assert all(e <= 3 * eps * max(1, abs(true)) for e, true in zip(error, exact, strict=True))
    # An error of e in the raw std is a relative error of e in the std.
    assert ((F.softplus(raw.double()) / std.double() - 1).abs() <= 4 * eps * raw.double().abs().clamp_min(1)).all()


@torch.no_grad()
def test_draws_have_the_mean_and_the_std_of_the_weight():
    weight, n_draws = gaussian(), 20_000
    generator = torch.Generator().manual_seed(1)
    draws = torch.stack([weight.sample(generator) for _ in range(n_draws)]).double()
    z_mean = (draws.mean(0) - weight.mean) / weight.std * math.sqrt(n_draws)
    z_std = (draws.std(0) / weight.std - 1) * math.sqrt(2 * n_draws)
    assert torch.cat([z_mean, z_std]).abs().max() < 5  # a false alarm once in 10⁵ seeds


def test_a_draw_is_differentiable_and_follows_its_generator():
    weight = gaussian()
    first, again = (weight.sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    noise = ((first - weight.mean) / weight.std).detach()
    first.sum().backward()
    assert weight.mean.grad.eq(1).all()
    torch.testing.assert_close(weight.raw_std.grad, noise * torch.sigmoid(weight.raw_std))
    torch.manual_seed(0)
    assert not torch.equal(weight.sample(), weight.sample())


def test_without_noise_the_means_are_used():
    weight, x = gaussian(), torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    weight.noisy = False
    torch.testing.assert_close(weight.multiply(x, None, LinearMap()), x @ weight.dense_mean().T)
    weight.noisy = True
    torch.manual_seed(0)
    assert not torch.equal(weight.multiply(x, None, LinearMap()), weight.multiply(x, None, LinearMap()))


def test_dense_views_and_stats():
    weight = gaussian()
    flat = weight.dense_mean().flatten()
    assert torch.equal(flat[weight.support.position.long()], weight.mean)
    assert int((flat != 0).sum()) == int((weight.dense_std() > 0).sum()) == 7
    stats = stats_of(weight)
    assert not stats.mean.requires_grad
    assert not stats.std.requires_grad
    point = PointWeight(Support((2, 2), torch.tensor([0, 3])), torch.tensor([1.0, 2.0]))
    assert stats_of(point).std is None
    assert not point.dense_std().any()
    assert point.sample() is point.mean


def test_an_armed_weight_follows_its_precision_and_is_not_armed_in_a_copy():
    weight = gaussian()
    weight.arm()
    assert copy.deepcopy(weight).probe is None
    assert pickle.loads(pickle.dumps(weight)).probe is None
    weight.double()
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight.multiply(x, None, LinearMap()).sum().backward()
    grad = weight.disarm()
    assert grad.dtype == torch.float64
    torch.testing.assert_close(grad, x.sum(0).expand(4, 5))


def test_regrown_entries_take_the_std_of_those_kept():
    weight = gaussian()
    kept = torch.tensor([1, 1, 0, 0, 1, 0, 0], dtype=torch.bool)
    std, raw = weight.std.detach(), weight.raw_std.detach()
    expected = {"mean": std[kept].mean(), "mean_raw": F.softplus(raw[kept].mean()), 0.25: torch.tensor(0.25)}
    for how, value in expected.items():
        regrown = weight.regrown(kept, how)
        assert set(regrown) == set(weight.vectors)
        assert regrown["mean"] == 0
        torch.testing.assert_close(F.softplus(regrown["raw_std"]), value)
    assert torch.equal(weight.regrown(kept)["raw_std"], weight.regrown(kept, "mean")["raw_std"])
    nobody = torch.zeros(7, dtype=torch.bool)
    torch.testing.assert_close(F.softplus(weight.regrown(nobody)["raw_std"]), std.mean())
    reference = gaussian(mode="reference")
    assert torch.equal(reference.regrown(kept)["raw_std"], raw[kept].mean())
    point = PointWeight(Support((2, 2), torch.tensor([0, 3])), torch.tensor([1.0, 2.0]))
    assert point.regrown(torch.tensor([True, False])) == {"mean": torch.tensor(0.0)}


def layer(seed, density=0.3, **options):
    return gossamer.bayesianize(nn.Linear(10, 8), density, generator=torch.Generator().manual_seed(seed), **options)


def test_a_state_with_another_support_of_the_same_size_is_written_in_place():
    ours, theirs = layer(0), layer(1)
    where = ours.support.position.data_ptr()
    assert not torch.equal(ours.support.position, theirs.support.position)
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.dense_mean(), theirs.dense_mean())
    assert torch.equal(ours.dense_std(), theirs.dense_std())
    assert ours.support.position.data_ptr() == where


@pytest.mark.parametrize("density", [0.1, 0.6])
def test_a_state_with_another_number_of_entries_resizes_the_vectors(density):
    ours, theirs = layer(0), layer(1, density)
    parameters = dict(ours.named_parameters())
    ours(torch.randn(2, 10)).sum().backward()
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours.dense_mean(), theirs.dense_mean())
    assert dict(ours.named_parameters()).keys() == parameters.keys()
    assert all(p is parameters[name] for name, p in ours.named_parameters())  # the optimizer still holds them
    assert ours.support.n_active == round(density * 80)
    ours(torch.randn(2, 10)).sum().backward()
    assert len(ours.mean.grad) == round(density * 80)


def test_positions_may_come_as_int64():
    ours, theirs = layer(0), layer(1)
    state = theirs.state_dict()
    state["weight.support.position"] = state["weight.support.position"].long()
    ours.load_state_dict(state)
    assert ours.support.position.dtype == torch.int32
    assert torch.equal(ours.dense_mean(), theirs.dense_mean())


CORRUPT = {
    "unsorted": lambda p: p.flip(0),
    "repeated": lambda p: torch.cat([p[:1], p[:-1]]),
    "beyond": lambda p: torch.cat([p[:-1], p.new_tensor([80])]),
    "negative": lambda p: torch.cat([p.new_tensor([-1]), p[1:]]),
}


@pytest.mark.parametrize("corrupt", CORRUPT.values(), ids=CORRUPT)
def test_corrupt_positions_are_refused_and_nothing_is_loaded(corrupt):
    ours, state = layer(0), layer(1).state_dict()
    before = {name: value.clone() for name, value in ours.weight.state_dict().items()}
    state["weight.support.position"] = corrupt(state["weight.support.position"])
    with pytest.raises(ValueError, match=r"shape \(8, 10\) must be sorted, unique, inside it.*the state is corrupt"):
        ours.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in ours.weight.state_dict().items())


def test_positions_on_the_padding_row_are_refused():
    ours = gossamer.bayesianize(nn.Embedding(8, 10, padding_idx=3), 0.3)
    theirs = gossamer.bayesianize(nn.Embedding(8, 10), 0.9)
    with pytest.raises(ValueError, match="off its frozen range"):
        ours.load_state_dict(theirs.state_dict())


def test_states_that_do_not_fit_are_refused():
    ours, state = layer(0), layer(1).state_dict()
    short = {name: value[:-1] if name.endswith("mean") else value for name, value in state.items()}
    with pytest.raises(RuntimeError, match=r"size mismatch for weight\.mean"):
        ours.load_state_dict(short)
    with pytest.raises(ValueError, match="dense support has no positions"):
        layer(0, density=1.0).support.set_position(torch.tensor([1]))


def test_a_sparse_state_loads_into_a_network_whose_every_entry_was_active():
    """Where a method cuts at the end, a checkpoint is sparse and the network that it is loaded into is not yet."""
    sparse, dense = layer(1), layer(0, density=1.0)
    dense.load_state_dict(sparse.state_dict())
    assert torch.equal(dense.dense_mean(), sparse.dense_mean())
    assert torch.equal(dense.dense_std(), sparse.dense_std())


def test_a_kind_of_weight_must_say_how_it_multiplies_and_draws():
    """The base class cannot be made: it would answer ``None`` to everything."""
    with pytest.raises(TypeError, match="abstract"):
        SparseWeight(Support((2, 2)), torch.zeros(4))


def test_the_prior_travels_with_the_state():
    """A checkpoint of another density, mode and noise gives its own KL, not one against the prior of the loader."""
    torch.manual_seed(0)

    def network():
        return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))

    trained = gossamer.bayesianize(network(), density=0.05, mode="reference", noise="weights")
    loader = gossamer.bayesianize(network(), density=0.3, std="gradient")
    assert str(loader.load_state_dict(trained.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(gossamer.kl(loader), gossamer.kl(trained))
    assert (loader[0].weight.mode, loader[0].weight.noise) == ("reference", "weights")


def test_the_state_is_stored_by_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    one, two = gossamer.bayesianize(nn.Linear(9, 9), density=0.1), gossamer.bayesianize(nn.Linear(9, 9), density=0.5)
    safetensors.save_file(one.state_dict(), tmp_path / "model.safetensors")
    two.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    with torch.no_grad():
        assert torch.equal(gossamer.kl(one), gossamer.kl(two))
