"""Passes of draws that form no network: the same predictions as those of the drawn networks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import gossamer
from gossamer.models import resnet18
from gossamer.posterior import InLayers, Mixture, SingleNetwork
from gossamer.posterior.passes import DrawnPasses
from tests.posterior.test_draw import KINDS


def by_networks(model: nn.Module, x: Tensor, n_draws: int, seed: int) -> Tensor:
    posterior = InLayers(model, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return torch.stack([network(x) for network in posterior.draws(n_draws)])


def predicted(model: nn.Module, x: Tensor, n_draws: int, seed: int, **options) -> Tensor:
    return gossamer.predict(model, x, n_draws, generator=torch.Generator().manual_seed(seed), **options).outputs


@pytest.mark.parametrize("density", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_drawn_networks(kind: str, density: float):
    torch.manual_seed(0)
    build, batch = KINDS[kind]
    model, x = gossamer.bayesianize(build(), density=density), batch()
    torch.testing.assert_close(predicted(model, x, 9, 3), by_networks(model, x, 9, 3), rtol=1e-4, atol=1e-5)
    mean = gossamer.predict(model, x, kind="mean").outputs
    torch.testing.assert_close(mean[0], gossamer.draw(model, at_mean=True).eval()(x), rtol=1e-4, atol=1e-5)


def test_changes_of_a_pretrained_network():
    torch.manual_seed(0)
    model = gossamer.adapt(plain(), density=0.2, dense=())
    x = torch.randn(8, 6)
    torch.testing.assert_close(predicted(model, x, 9, 3), by_networks(model, x, 9, 3))
    assert predicted(model, x, 9, 3).std(0).min() > 0


def test_a_residual_network_and_other_batches():
    torch.manual_seed(0)
    model, x = gossamer.bayesianize(resnet18(), density=0.05), torch.randn(5, 3, 32, 32)
    outputs = predicted(model, x, 4, 1)
    torch.testing.assert_close(outputs, by_networks(model, x, 4, 1), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(predicted(model, x, 4, 1, batch_size=2), outputs, rtol=1e-3, atol=1e-4)
    assert torch.equal(predicted(model, x, 4, 1), outputs), "the same call gives the same bits"


class Stubborn(nn.Module):
    """What ``torch.vmap`` refuses: a choice by the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.passes = nn.Linear(6, 4), []

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(len(x))
        y = self.layer(x)
        return y if y.sum() > 0 else -y


def test_a_network_that_cannot_be_mapped_is_drawn_one_by_one():
    torch.manual_seed(0)
    model, x = gossamer.bayesianize(Stubborn(), density=0.5), torch.randn(3, 6)
    torch.testing.assert_close(predicted(model, x, 5, 0), by_networks(model, x, 5, 0))
    assert model.passes == []


def test_errors_of_the_network_are_its_own():
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4)), density=0.5)
    with pytest.raises((RuntimeError, ValueError), match=r"7|shape"):
        gossamer.predict(model, torch.randn(3, 7))


def test_predictions_follow_the_model():
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)), density=0.2)
    x, optimizer = torch.randn(8, 6), torch.optim.Adam(model.parameters(), lr=0.1)
    for change in (
        lambda: None,
        lambda: (model(x).square().mean().backward(), optimizer.step()),
        lambda: model[0].support.set_position(torch.arange(48)),
        lambda: setattr(model, "1", nn.Tanh()),
        lambda: model[1].register_forward_hook(lambda module, args, y: 3 * y),
        lambda: model.load_state_dict(gossamer.bayesianize(plain(), density=0.5).state_dict()),
        lambda: setattr(model[2], "bias", nn.Parameter(torch.ones(3))),
    ):
        change()
        torch.testing.assert_close(predicted(model, x, 3, 2), by_networks(model, x, 3, 2))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))


def test_the_structure_is_made_once(monkeypatch: pytest.MonkeyPatch):
    made = []
    monkeypatch.setattr(DrawnPasses, "__init__", lambda self, *a, **k: (made.append(1), init(self, *a, **k))[1])
    model = gossamer.bayesianize(plain(), density=0.2)
    for _ in range(3):
        gossamer.predict(model, torch.randn(2, 6))
    assert len(made) == 1
    assert model.training


init = DrawnPasses.__init__


def test_threads_have_passes_of_their_own():
    torch.manual_seed(0)
    model, x = gossamer.bayesianize(plain(), density=0.2), torch.randn(9, 6)
    alone = [predicted(model, x, 20, seed) for seed in range(8)]
    barrier = threading.Barrier(4)

    def ask(seed: int) -> Tensor:
        barrier.wait()
        return predicted(model, x, 20, seed)

    with ThreadPoolExecutor(4) as pool:
        for got, wanted in zip(pool.map(ask, range(8)), alone, strict=True):
            torch.testing.assert_close(got, wanted)


def test_the_mean_of_posteriors():
    torch.manual_seed(0)
    model, x = gossamer.bayesianize(plain(), density=0.2), torch.randn(4, 6)
    wanted = gossamer.draw(model, at_mean=True)(x).unsqueeze(0)
    for posterior in (model, InLayers(model), SingleNetwork(model), Mixture([InLayers(model)])):
        torch.testing.assert_close(gossamer.predict(posterior, x, kind="mean").outputs, wanted)
    with pytest.raises(ValueError, match="no mean network"):
        gossamer.predict(Mixture([InLayers(model)] * 2), x, kind="mean")
