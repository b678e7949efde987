"""Draws and predictions of a network that cannot be deep-copied, or that several threads use at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import replica


class Holding(nn.Module):
    """Keeps what nobody can copy, and an activation with its graph."""

    def __init__(self, path) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 3)
        self.lock, self.file = threading.Lock(), path.open("w")
        self.seen, self.cache = [], None

    def forward(self, x):
        with self.lock:
            self.cache = self.body(x)
        self.seen.append(len(x))
        return self.head(self.cache)


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    model = gossamer.bayesianize(Holding(tmp_path / "log"), density=0.5)
    model(torch.randn(5, 4))  # fills the cache with a tensor that has a graph
    yield model
    model.file.close()


@pytest.mark.parametrize("kind", ["weights", "local"])
def test_predictions_of_a_network_that_holds_what_cannot_be_copied(model, kind):
    cache = model.cache
    assert gossamer.predict(model, torch.randn(6, 4), n_draws=3, kind=kind).probs.shape == (6, 3)
    assert model.cache is cache
    assert model.seen == [5], "passes of a draw reach the model"
    assert model.training


def test_a_draw_is_independent_of_the_model(model):
    network = gossamer.draw(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.add_(1)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_replica_keeps_ties_and_references():
    model = nn.Module()
    model.first, model.second = nn.Linear(3, 3), nn.Linear(3, 3)
    model.second.weight = model.first.weight
    model.order, model.rnn, model.alias = [model.second, model.first], nn.GRU(3, 3), model.first
    model.first.register_forward_hook(lambda module, args, y: y + 1)
    twin = replica(model)
    assert twin.second.weight is twin.first.weight is not model.first.weight
    assert twin.order == [twin.second, twin.first]
    assert twin.alias is twin.first
    x = torch.randn(2, 1, 3)
    for name in ("first", "rnn"):
        torch.testing.assert_close(getattr(twin, name)(x), getattr(model, name)(x))
    twin.first._forward_hooks.clear()
    assert model.first._forward_hooks
    assert set(twin.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("seeded", [True, False])
def test_local_predictions_from_several_threads(seeded):
    """Each thread gets what it would get alone; mode, noise and the global generator are as before."""
    torch.manual_seed(0)
    model, x = (
        gossamer.bayesianize(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)), 0.5),
        torch.randn(9, 6),
    )
    modes = []
    model.register_forward_hook(lambda module, args, y: modes.append(module.training))

    def ask(seed):
        generator = torch.Generator().manual_seed(seed) if seeded else None
        return gossamer.predict(model, x, n_draws=20, kind="local", generator=generator).outputs

    alone = [ask(seed) for seed in range(8)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert model.training
    assert not any(modes)
    if seeded:
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(together, alone)  # other threads may round in another order
