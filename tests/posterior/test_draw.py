"""Draws: plain torch networks whose weights follow the posterior, and that stand on their own."""

import copy
import functools
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer.layers import GaussianWeight, SparseModule, sparse_weights
from gossamer.posterior import DrawnNetwork, InLayers, Last, SingleNetwork


class First(nn.Module):
    """The first of what a module returns, for attention and recurrent layers; attention gets its input three times."""

    def __init__(self, body: nn.Module, copies: int = 1) -> None:
        super().__init__()
        self.body, self.copies = body, copies

    def forward(self, x: Tensor) -> Tensor:
        return self.body(*[x] * self.copies)[0]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.embedding(x))


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(shape)


def words(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(12, shape)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 4)), floats(3, 6)),
    "bare": (lambda: nn.Linear(6, 4), floats(3, 6)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Conv1d(4, 2, 3)), floats(2, 2, 8)),
    "conv2d": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=2, padding_mode="circular", padding=1)),
        floats(2, 4, 5, 5),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(2, 2, 2)), floats(2, 2, 3, 3, 3)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, 2, stride=2)), floats(2, 2, 3, 3)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(12, 8, padding_idx=0)), words(3, 5)),
    "attention": (lambda: First(nn.MultiheadAttention(8, 2, batch_first=True), 3), floats(3, 5, 8)),
    "attention in parts": (lambda: First(nn.MultiheadAttention(8, 2, kdim=8, vdim=8, bias=True), 3), floats(3, 5, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), floats(3, 5, 8)),
    "lstm": (lambda: First(nn.LSTM(4, 6, 2, bidirectional=True)), floats(5, 3, 4)),
    "gru": (lambda: First(nn.GRU(4, 6)), floats(5, 3, 4)),
    "batchnorm": (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), floats(3, 6)),
    "tied": (Tied, words(3, 5)),
}


@pytest.fixture(params=KINDS)
def converted(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, batch = KINDS[request.param]
    return gossamer.bayesianize(build(), density=0.4), batch()


def dense_weights(network: nn.Module, model: nn.Module) -> dict[str, Tensor]:
    """The dense tensor in ``network`` for each sparse weight of ``model``, by the same name."""
    names = {id(weight): name for name, weight in sparse_weights(model).items()}
    return {
        names[id(weight)]: network.get_submodule(path).get_parameter(name)
        for path, module in model.named_modules()
        if isinstance(module, SparseModule) and not path.endswith(("in_proj", "out_proj", "q_proj", "k_proj", "v_proj"))
        for name, weight in module.named_weights().items()
    }


def test_a_draw_is_plain_torch_and_deterministic(converted: tuple[nn.Module, Tensor]):
    model, x = converted
    network = gossamer.draw(model).eval()
    assert not [module for module in network.modules() if type(module).__module__.startswith("gossamer")]
    torch.testing.assert_close(network(x), network(x), rtol=0, atol=0)
    assert network(x).shape == model.eval()(x).shape
    assert not torch.equal(network(x), gossamer.draw(model).eval()(x))


def test_a_draw_is_zero_where_nothing_is_active(converted: tuple[nn.Module, Tensor]):
    model, _ = converted
    dense = dense_weights(gossamer.draw(model), model)
    assert dense.keys() == sparse_weights(model).keys()
    for name, weight in sparse_weights(model).items():
        active = torch.zeros(weight.support.shape, dtype=torch.bool)
        active.view(-1)[slice(None) if weight.support.position is None else weight.support.position.long()] = True
        assert (dense[name][~active] == 0).all()
        assert (dense[name][active] != 0).all()


def test_draws_have_the_moments_of_the_posterior(converted: tuple[nn.Module, Tensor]):
    model, _ = converted
    for weight in sparse_weights(model).values():  # each entry a std of its own
        weight.set_std(weight.std.detach() * torch.randn_like(weight.mean).exp())
    n_draws, total, square = 400, {}, {}
    drawn = DrawnNetwork(model)
    for _ in range(n_draws):
        for name, tensor in dense_weights(drawn.redraw(), model).items():
            total[name] = total.get(name, 0) + tensor.detach()
            square[name] = square.get(name, 0) + tensor.detach() ** 2
    for name, weight in sparse_weights(model).items():
        mean = total[name] / n_draws
        variance = square[name] / n_draws - mean**2
        expected, std = weight.dense_mean().detach(), weight.dense_std().detach()
        active = std > 0
        assert ((mean - expected)[active].abs() < 5 * std[active] / math.sqrt(n_draws)).all()
        torch.testing.assert_close(variance[active].sqrt(), std[active], rtol=5 / math.sqrt(2 * n_draws), atol=1e-5)


def test_a_draw_at_the_mean_is_the_network_without_noise(converted: tuple[nn.Module, Tensor]):
    model, x = converted
    model.eval()
    for weight in sparse_weights(model).values():
        weight.noisy = False
    torch.testing.assert_close(gossamer.draw(model, at_mean=True)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_draw_is_independent_of_the_model(converted: tuple[nn.Module, Tensor]):
    model, x = converted
    network = gossamer.draw(model)
    before, drawn_before = copy.deepcopy(model.state_dict()), copy.deepcopy(network.state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    network.train()(x).square().sum().backward()
    optimizer.step()
    changed = [name for name, tensor in network.state_dict().items() if not torch.equal(tensor, drawn_before[name])]
    assert changed
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    after = copy.deepcopy(network.state_dict())
    model.train()(x).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    torch.testing.assert_close(dict(network.state_dict()), dict(after), rtol=0, atol=0)


def test_a_draw_can_be_loaded_where_gossamer_is_not(converted: tuple[nn.Module, Tensor]):
    model, _ = converted
    assert b"gossamer" not in pickle.dumps(gossamer.draw(model))


def test_a_draw_can_be_converted_again_without_the_exclusions_of_the_first_time():
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), density=0.5, exclude=["0"])
    again = gossamer.bayesianize(gossamer.draw(model), density=0.5)
    assert set(sparse_weights(again)) == {"0", "1"}


def test_a_generator_fixes_the_draw_and_leaves_the_global_state_alone(converted: tuple[nn.Module, Tensor]):
    model, x = converted
    state = torch.get_rng_state()
    first, second, other = (gossamer.draw(model, torch.Generator().manual_seed(seed)).eval()(x) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_tied_weights_stay_tied():
    model = gossamer.bayesianize(Tied(), density=0.4)
    network = gossamer.draw(model)
    assert network.decoder.weight is network.embedding.weight
    plain = Tied()
    assert network.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(network.state_dict())


def test_modes_and_frozen_parameters_are_kept():
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 2)), density=0.5)
    model[0].requires_grad_(False).eval()
    network = gossamer.draw(model)
    assert [module.training for module in network] == [False, True, True]
    assert [parameter.requires_grad for parameter in network.parameters()] == [False, False, True, True]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_draw_has_the_dtype_of_the_model(dtype: torch.dtype):
    model = gossamer.bayesianize(nn.Linear(6, 4), density=0.5).to(dtype)
    assert gossamer.draw(model).weight.dtype == dtype
    assert gossamer.draw(model, torch.Generator().manual_seed(0)).weight.dtype == dtype


def test_compiled_and_wrapped_models_are_drawn_from_inside():
    compiled = functools.partial(torch.compile, backend="eager")
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), density=0.5)
    for wrapped in (compiled(model), compiled(nn.DataParallel(model)), nn.DataParallel(model)):
        network = gossamer.draw(wrapped, at_mean=True)
        assert type(network) is nn.Sequential
        torch.testing.assert_close(network[0].weight, model[0].dense_mean(), rtol=0, atol=0)
    model.compile(backend="eager")  # in place
    assert type(gossamer.draw(model)) is nn.Sequential


def test_a_point_network_and_a_plain_one_have_one_draw():
    model = gossamer.sparsify(nn.Sequential(nn.Linear(6, 4)), density=0.5)
    torch.testing.assert_close(gossamer.draw(model)[0].weight, model[0].dense_mean(), rtol=0, atol=0)
    plain = nn.Linear(6, 4)
    network = gossamer.draw(plain)
    assert network is not plain
    torch.testing.assert_close(network.weight, plain.weight, rtol=0, atol=0)


def test_posteriors_give_networks_in_evaluation_mode():
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4), nn.Dropout()), density=0.5)
    posterior = InLayers().posterior(model)
    assert isinstance(posterior, InLayers)
    weights = [network[0].weight.clone() for network in posterior.draws(3)]
    assert len({tuple(weight.flatten().tolist()) for weight in weights}) == 3
    assert not any(module.training for network in posterior.draws(1) for module in network.modules())
    point = gossamer.sparsify(nn.Linear(6, 4), density=0.5)
    assert isinstance(InLayers().posterior(point), SingleNetwork)
    assert len(list(Last().posterior(point).draws(4))) == 1
    assert model.training
    assert any(isinstance(weight, GaussianWeight) for weight in sparse_weights(model).values())


@pytest.mark.parametrize("density", [0.3, 1.0])
def test_a_network_that_was_laid_out_anew_can_be_drawn_again(density: float):
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)), density=density)
    drawn, other = DrawnNetwork(model), DrawnNetwork(model)
    drawn.network.to(memory_format=torch.channels_last)
    for seed in (0, 1):
        mine, plain = (one.redraw(torch.Generator().manual_seed(seed)) for one in (drawn, other))
        assert torch.equal(mine[2].weight, plain[2].weight)
        assert mine[2].weight.is_contiguous(memory_format=torch.channels_last)
    drawn.network.double()
    assert torch.equal(drawn.redraw(at_mean=True)[0].weight, other.redraw(at_mean=True)[0].weight.double())
