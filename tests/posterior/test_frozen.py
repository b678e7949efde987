"""Networks to deploy: the same answers, and positions and values in one file."""

from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer
from gossamer.posterior import InLayers, Mixture, Refresh


def converted(seed: int = 0, density: float = 0.1) -> nn.Module:
    torch.manual_seed(seed)
    return gossamer.bayesianize(network(), density=density)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )


def seeded(model: nn.Module, seed: int = 3) -> InLayers:
    return InLayers(model, torch.Generator().manual_seed(seed))


X = torch.randn(7, 2, 6, 6)


@pytest.mark.parametrize("density", [0.1, 0.6, 1.0])
def test_draws_are_those_that_a_prediction_would_make(density: float):
    model = converted(density=density)
    fixed = gossamer.frozen(seeded(model), n_draws=9)
    expected = gossamer.predict(seeded(model), X, 9).outputs
    for _ in range(2):
        torch.testing.assert_close(fixed(X), expected)
    torch.testing.assert_close(fixed(X[:1]), expected[:, :1])
    mean = gossamer.frozen(model)
    torch.testing.assert_close(mean(X), gossamer.draw(model, at_mean=True).eval()(X))
    before = fixed(X)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert torch.equal(fixed(X), before)


def test_a_file_holds_positions_once(tmp_path: Path):
    fixed = gossamer.frozen(seeded(converted()), n_draws=9)
    file = gossamer.save(fixed, tmp_path / "draws.safetensors")
    again = gossamer.load(file, network())
    torch.testing.assert_close(gossamer.frozen(again, 9)(X), fixed(X))
    torch.testing.assert_close(gossamer.predict(again, X, 20).outputs, fixed(X))
    torch.testing.assert_close(torch.stack([one(X) for one in again.draws(9)]), fixed(X))
    n = gossamer.active_parameters(converted())
    assert file.stat().st_size < 4 * 12 * n + 6000
    assert len(gossamer.frozen(again, 2)(X)) == 2


def test_a_mean_network_in_a_file(tmp_path: Path):
    mean = gossamer.frozen(converted())
    file = gossamer.save(mean, tmp_path / "mean.safetensors")
    torch.testing.assert_close(gossamer.load(file, network()).eval()(X), mean(X))


def test_an_adapted_network_is_frozen_to_the_plain_one_at_its_means():
    model = gossamer.adapt(network(), 0.1, dense=())
    torch.testing.assert_close(gossamer.frozen(model)(X), gossamer.draw(model, at_mean=True).eval()(X))


def test_mixtures_and_what_cannot_be_frozen():
    mixture = Mixture([seeded(converted(seed)) for seed in range(3)])
    assert gossamer.frozen(mixture, n_draws=6)(X).shape == (6, 7, 5)
    with pytest.raises(ValueError, match=r"save\(posterior, file, n_draws=20\)"):
        gossamer.frozen(InLayers(converted(), refresh=Refresh(X)), n_draws=2)
    with pytest.raises(ValueError, match="n_draws must be at least 1"):
        gossamer.frozen(converted(), n_draws=0)
    with pytest.raises(TypeError, match="takes a network or a posterior"):
        gossamer.frozen("network")
    with pytest.raises(ValueError, match="no mean network"):
        gossamer.frozen(mixture)


@pytest.mark.slow
def test_an_exported_file_stores_each_value_once(tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 5)), density=0.05)
    x, n_draws = torch.randn(4, 64), 20
    file = gossamer.export(seeded(model), tmp_path / "draws.onnx", x, what="draws", n_draws=n_draws)
    (found,) = runtime.InferenceSession(str(file)).run(None, {"x": x.numpy()})
    expected = gossamer.predict(seeded(model), x, n_draws).outputs
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5)
    assert file.stat().st_size < 4 * (n_draws + 2) * gossamer.active_parameters(model) + 100_000
