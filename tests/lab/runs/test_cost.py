"""Results come from what training did: a method of a newcomer, and the densities that every step really had."""

import sys
from dataclasses import replace

import pytest
from torch import nn

from gossamer import load_run, methods
from gossamer.lab import Interrupted, Settings, resume, train
from gossamer.lab.cli import main
from gossamer.lab.runs.accounting import density_of, work_of
from gossamer.layers import sparse_weights
from gossamer.models import mlp
from gossamer.train import Training
from gossamer.types import Rule

NEWCOMER = '''"""Sparse evolutionary training: the smallest weights go, random ones come."""

import torch
from gossamer import sparsify
from gossamer.posterior import Last
from gossamer.schedules import cosine
from gossamer.sparsity import Subspace
from gossamer.types import Method


def newcomer(task, steps, *, lr: float = 0.1, density: float = 0.1, period: int = 5) -> Method:
    """Sparse evolutionary training.

    Args:
        lr: Learning rate.
        density: Share of active weights.
        period: Steps between updates.
    """
    return Method(
        prepare=lambda model: sparsify(model, density=density),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        lr=cosine(lr, steps),
        collector=Last,
        rules=lambda model, optimizer: [
            Subspace(model, optimizer, total_steps=steps, update_period=period, removal="magnitude", addition="random")
        ],
    )
'''


@pytest.fixture
def newcomer(tmp_path, monkeypatch):
    """A method file that somebody has just added, whose options are its own."""
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "newcomer.py").write_text(NEWCOMER)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
    yield "newcomer"
    sys.modules.pop("gossamer.methods.newcomer", None)


def test_a_new_method_trains_resumes_and_compares(newcomer, tmp_path, capsys):
    options = {"density": 0.2}
    whole = train(Settings(newcomer, "digits", epochs=2, n_draws=1, options=options), tmp_path / "whole", quiet=True)
    with pytest.raises(Interrupted):
        train(Settings(newcomer, "digits", epochs=2, n_draws=1, options=options), tmp_path / "run", stop_after=0)
    again = resume(tmp_path / "run", quiet=True)
    assert again.result()["metrics"] == whole.result()["metrics"]
    assert again.result()["cost"]["training_macs"] == whole.result()["cost"]["training_macs"]
    flags = ["--epochs", "1", "--n-draws", "1", "--seeds", "1", "--quiet", "--out", str(tmp_path / "compared")]
    assert main(["compare", f"sgd,{newcomer}", *flags]) == 0
    assert newcomer in capsys.readouterr().out


@pytest.mark.parametrize("method", ["sgd", "vi", "ssvi", "rigl", "set", "sm", "dsr", "snip", "magnitude", "em_mcmc"])
def test_training_is_charged_the_densities_that_its_steps_had(method, settings, tmp_path, monkeypatch):
    """Σ over steps of c d_t f, and (1 - d_t) f where the dense gradient is formed; c is 6 for Gaussian weights.

    Sparse momentum forms it in all steps up to the last update: its memory is longer than the period.
    """
    density, formed, advance = [], [], Training.advance
    by_gradient = method in ("ssvi", "rigl")

    def watched(self):
        weights = sparse_weights(self.model)
        density.append({name: weight.support.n_active / weight.support.size for name, weight in weights.items()})
        before = sum(len(rule.record) for rule in self.rules)
        values = advance(self)
        updated = by_gradient and sum(len(rule.record) for rule in self.rules) > before
        formed.append(updated or (method == "sm" and self.step <= 44))  # of 45, with an update at every fourth
        return values

    monkeypatch.setattr(Training, "advance", watched)
    run = train(settings(method), tmp_path / "run", quiet=True)
    result = run.result()
    products = 6 if method in ("vi", "ssvi") else 3
    total = 0.0
    for layer in result["layers"]:
        shares = [step.get(layer["name"], 1.0) for step in density]
        updates = [(1 - share) * moved for share, moved in zip(shares, formed, strict=True)]
        total += layer["dense_macs"] * (products * sum(shares) + sum(updates)) / len(density)
    assert result["cost"]["training_macs_per_example"] == pytest.approx(total, rel=1e-12)
    if method in ("magnitude", "em_mcmc"):  # it starts dense, and only its last steps are as sparse as it ends
        last = 3 * sum(layer["dense_macs"] * density[-1][layer["name"]] for layer in result["layers"])
        assert density[0] == dict.fromkeys(density[0], 1.0)
        assert total > 1.5 * last


def test_feedback_is_charged_the_pruned_network_and_the_gradients_of_all_weights(settings, tmp_path, monkeypatch):
    """Of f MACs: d_t for the output, d_t for the gradient of the input, and 1 for that of the weights, cut or not.

    When the mask is final, the weights that it cuts are gone, and a step costs 3 d_t.
    """
    macs, advance = {"1": 64 * 256, "3": 256 * 256, "5": 256 * 10}, Training.advance
    costs = []

    def watched(self):
        weights = sparse_weights(self.model).items()
        used = {name: int(weight.dense_mean().count_nonzero()) / weight.support.size for name, weight in weights}
        stored = {name: weight.support.n_active / weight.support.size for name, weight in weights}
        costs.append(sum(f * (2 * used[name] + stored[name]) for name, f in macs.items()))
        return advance(self)

    monkeypatch.setattr(Training, "advance", watched)
    run = train(settings("dpf"), tmp_path / "run", quiet=True)
    assert run.result()["cost"]["training_macs_per_example"] == pytest.approx(sum(costs) / len(costs), rel=1e-12)
    assert costs[0] == 3 * sum(macs.values())
    assert costs[-1] == pytest.approx(0.3 * costs[0] / 3, rel=0.3)  # a tenth, and more of the small layers
    densities = [row["density"] for row in run.metrics()]
    assert densities[0] < 0.6  # of the network, though all weights are stored until the mask is final
    assert densities[-1] == pytest.approx(0.1, abs=1e-3)


class HoldsMost(Rule):
    """Holds three quarters of the weights at zero."""

    @property
    def held(self):
        return {"1": (384, 0), "3": (60, 0)}

    def __call__(self, step):
        return False


def test_what_is_held_at_zero_in_a_plain_network_is_not_charged(settings):
    task = settings("sgd").load_task()
    method = replace(methods.build("sgd", task, 10), rules=lambda model, optimizer: [HoldsMost()])
    training = Training(method, mlp(64, (8,)), task, 10)
    training.advance()
    assert work_of({}, training) == {"1": (128, 0), "3": (20, 0)}
    assert density_of(training) == 0.25


def test_drawn_weights_take_half_the_products(settings, tmp_path):
    cost = {}
    for noise in ("local", "weights"):
        told = settings("vi", options={"noise": noise}, epochs=1)
        cost[noise] = train(told, tmp_path / noise, quiet=True).result()["cost"]["training_macs_per_example"]
    assert cost["local"] == 2 * cost["weights"]


def test_a_checkpoint_of_an_earlier_version_is_continued(settings, tmp_path):
    """Its tally has not counted the work of its steps: the later ones stand for all."""
    from gossamer.train import checkpoint

    with pytest.raises(Interrupted):
        train(settings("rigl"), tmp_path / "run", quiet=True, stop_after=0)
    folder = tmp_path / "run" / "checkpoint"
    state = checkpoint.load(folder)
    for name in ("steps", "active", "formed"):
        del state["tally"][name]
    checkpoint.save(folder, state, state["training"]["step"])
    assert resume(tmp_path / "run", quiet=True).result()["cost"]["training_macs"] > 0


def test_the_operations_of_an_ensemble_are_those_of_all_members(tmp_path):
    told = {"epochs": 4, "n_draws": 2, "device": "cpu", "n_val": 239}
    alone = train(Settings("sgd", "digits", **told), tmp_path / "alone", quiet=True).result()["cost"]
    options = {"members": 2}
    pair = train(Settings("ensemble", "digits", **told, options=options), tmp_path / "pair", quiet=True).result()[
        "cost"
    ]
    assert pair["training_macs"] == alone["training_macs"] == 3 * 84_480 * 959 * 4  # two members of two epochs
    assert pair["parameter_bytes"] == 2 * alone["parameter_bytes"]
    assert pair["active_parameters"] == pair["total_parameters"] == 2 * 84_480  # the weights of both
    assert pair["density"] == 1
    assert pair["inference_macs"] == alone["inference_macs"] == 84_480  # one drawn network


def test_the_weights_of_several_posteriors_of_one_training_are_those_of_all(tmp_path):
    options = {"density": 0.1, "members": 3}
    told = Settings("ssvi", "digits", epochs=3, n_draws=3, device="cpu", options=options)
    cost = train(told, tmp_path / "run", quiet=True).result()["cost"]
    assert (cost["active_parameters"], cost["total_parameters"]) == (3 * 8_448, 3 * 84_480)


def test_the_density_of_snapshots_is_the_mean_of_those_that_predict(tmp_path):
    """Units die until the end, so that the last network is the smallest."""
    options = {"sampler": "sgld", "samples": 3, "update_period": 1, "start": 0.8}
    run = train(Settings("mbnn", "digits", epochs=8, n_draws=3, device="cpu", options=options), tmp_path, quiet=True)
    shares, macs = [], []
    for network in load_run(tmp_path).posterior.draws(3):
        weights = [layer.weight for layer in network.modules() if isinstance(layer, nn.Linear)]
        macs.append(sum(int(weight.count_nonzero()) for weight in weights))  # of linear layers, one per weight
        shares.append(macs[-1] / sum(weight.numel() for weight in weights))
    cost = run.result()["cost"]
    assert len(set(shares)) == 3
    assert cost["density"] == pytest.approx(sum(shares) / 3, rel=1e-12)
    assert cost["inference_macs"] == pytest.approx(sum(macs) / 3, rel=1e-12)


def test_shared_weights_with_factors_are_charged(tmp_path):
    told = Settings("rank1", "digits", epochs=1, n_draws=2, device="cpu")
    result = train(told, tmp_path / "run", quiet=True).result()
    assert result["cost"]["training_macs_per_example"] == 3 * 84_480
    assert [layer["total"] for layer in result["layers"]] == [64 * 256, 256 * 256, 2560]


def test_few_training_examples_on_demand(tmp_path):
    few = Settings("sgd", "digits", n_train=100)
    assert few.load_task().n_data == 100
    assert (
        few.load_task().train[1].tolist() == Settings("vi", "digits", n_train=100, seed=1).load_task().train[1].tolist()
    )
    with pytest.raises(ValueError, match="n_train must be from 1 to the 959 training examples; got 960"):
        Settings("sgd", "digits", n_val=239, n_train=960).load_task()


def test_passes_of_a_rule_are_charged(settings, tmp_path, monkeypatch):
    """HMC: a trajectory of L leapfrog steps takes L + 1 gradients of all examples, beside the batch of the step."""
    told = {"epochs": 1, "batch_size": 480, "n_draws": 1, "device": "cpu", "model": "mlp", "n_val": 239}
    options = {"sampler": "hmc", "leapfrog": 3, "samples": 1, "start": 1.0}
    monkeypatch.setattr("gossamer.methods.mbnn.MOVES_PER_TRAJECTORY", 0)
    alone = train(Settings("sgd", "digits", **told), tmp_path / "sgd", quiet=True).result()["cost"]
    cost = train(Settings("mbnn", "digits", **told, options=options), tmp_path / "run", quiet=True).result()["cost"]
    assert cost["training_macs_per_example"] == alone["training_macs_per_example"]
    assert cost["training_macs"] == cost["training_macs_per_example"] * 959 * (1 + 2 * (3 + 1))  # in two steps
