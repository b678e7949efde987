"""One table of all methods, and what each of them must do. A new method is a new row."""

import copy
import pickle
import statistics
from importlib.util import find_spec

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.layers import GaussianWeight, active_parameters, sparse_weights
from gossamer.models import mlp
from gossamer.posterior import predict
from gossamer.train import Training, fit
from gossamer.train.capture import why_not
from gossamer.train.capture.steps import NO_KL

STEPS = 150

# density: share of active weights, None for plain networks; draws_differ: whether there is more than one to draw;
# captured: whether its training steps can be CUDA graphs, or the start of the reason; options: if not the defaults;
# needs: the package of its extra.
EVERY_METHOD = {
    "sgd": {"density": None, "draws_differ": False, "captured": True},
    "vi": {"density": 1.0, "draws_differ": True, "captured": True},
    "ssvi": {"density": 0.1, "draws_differ": True, "captured": True},
    "rigl": {"density": 0.1, "draws_differ": False, "captured": True},
    "set": {"density": 0.1, "draws_differ": False, "captured": True},
    "sm": {"density": 0.1, "draws_differ": False, "captured": "SparseMomentum as it is set changes shapes"},
    "dsr": {"density": 0.3, "draws_differ": False, "captured": "Reparameterization as it is set changes shapes"},
    "snip": {"density": 0.1, "draws_differ": False, "captured": True},
    "magnitude": {"density": None, "draws_differ": False, "captured": "Prune as it is set changes shapes"},
    "dpf": {"density": None, "draws_differ": False, "captured": "Prune as it is set changes shapes"},
    "cv_adam": {"density": None, "draws_differ": True, "captured": "CVAdam steps are not captured"},
    "cv_sghmc": {"density": None, "draws_differ": True, "captured": "SGHMC steps are not captured"},
    "aeb": {"density": None, "draws_differ": True, "captured": "EmpiricalBayes as it is set changes shapes"},
    "mbnn": {"density": None, "draws_differ": True, "captured": NO_KL},
    "csgld": {"density": None, "draws_differ": True, "captured": "SGLD steps are not captured"},
    "csghmc": {"density": None, "draws_differ": True, "captured": "SGHMC steps are not captured"},
    "ivon": {"density": None, "draws_differ": True, "captured": "IVON steps are not captured"},
    "mc_dropout": {"density": None, "draws_differ": True, "captured": True},
    "ensemble": {
        "density": None,
        "draws_differ": True,
        "captured": True,
        "options": {"member": "mc_dropout", "members": 2, "member_options": {"rate": 0.1}},
    },
    "multiswag": {"density": None, "draws_differ": True, "captured": True},
    "laplace": {"density": None, "draws_differ": True, "captured": True, "needs": "laplace"},
    "rank1": {"density": None, "draws_differ": True, "captured": NO_KL},
    "swag": {"density": None, "draws_differ": True, "captured": True},
    "em_mcmc": {"density": None, "draws_differ": True, "captured": "Prune as it is set changes shapes"},
    "bayes_compression": {"density": None, "draws_differ": True, "captured": NO_KL},
    "sbp": {"density": None, "draws_differ": False, "captured": NO_KL},
    "splbnn": {"density": None, "draws_differ": False, "captured": NO_KL},
    "svbnn": {"density": None, "draws_differ": True, "captured": NO_KL},
    "vd": {"density": None, "draws_differ": True, "captured": NO_KL},
}
METHODS = {name: row for name, row in EVERY_METHOD.items() if "needs" not in row or find_spec(row["needs"])}


@pytest.fixture(scope="module")
def task():
    return digits.load()


@pytest.fixture(scope="module")
def fits(task):
    """Every method trained once, with its losses and the number of active weights after each step."""
    results = {}
    for name in METHODS:
        losses = []
        posterior = run(name, task, lambda step, values, losses=losses: losses.append(float(values["nll"])))
        results[name] = (posterior, losses)
    return results


def run(name, task, record=None, steps=STEPS):
    density = METHODS[name]["density"]
    options = {"density": density} if density not in (None, 1.0) else METHODS[name].get("options", {})
    torch.manual_seed(0)
    return fit(methods.build(name, task, steps, **options), mlp(64, (64, 64)), task, steps, record=record, seed=0)


def test_the_table_names_every_method():
    assert sorted(EVERY_METHOD) == methods.names()


@pytest.mark.parametrize("name", METHODS)
def test_captured_steps_are_told_from_others(task, name):
    """A missing GPU is the last reason that is reported."""
    training = Training(methods.build(name, task, STEPS), mlp(64, (8,)), task, STEPS)
    reason = why_not(training.model, training.inner_optimizer, training.penalty, training.rules)
    captured = METHODS[name]["captured"]
    assert reason.startswith("the network is not on a GPU" if captured is True else captured)


@pytest.mark.parametrize("name", ["vd", "bayes_compression", "sbp", "svbnn", "splbnn"])
def test_weights_with_divergences_of_their_own_train_in_bf16(task, name):
    """Convolutions and batch normalisation too: gates and divergences stay in float32, products are cast."""
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    losses = []
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    method = methods.build(name, task, 60)
    fit(method, network, task, 60, fabric, record=lambda step, values: losses.append(float(values["nll"])))
    assert statistics.mean(losses[-10:]) < 0.5 * losses[0]


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_falls(fits, name):
    """That of the data: a penalty may begin at zero and rise."""
    losses = fits[name][1]
    assert len(losses) == STEPS
    assert statistics.mean(losses[-20:]) < 0.5 * statistics.mean(losses[:5])


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(fits, task, name):
    assert evaluate(fits[name][0], task, n_draws=5)["accuracy"] > 0.8


@pytest.mark.parametrize("name", METHODS)
def test_predictions_are_probabilities(fits, task, name):
    prediction = predict(fits[name][0], task.test[0][:7], n_draws=3)
    n_draws = fits[name][0].n_drawn(3) if METHODS[name]["draws_differ"] else 1
    assert (n_draws > 1) == METHODS[name]["draws_differ"]  # as many of each member of a mixture as there can be
    assert prediction.samples.shape == (n_draws, 7, 10)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(7))
    assert bool((prediction.mutual_information > 0).any()) == METHODS[name]["draws_differ"]


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_network(task, name):
    posterior, again = (run(name, task, steps=50) for _ in range(2))
    for first, second in zip(posterior.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", METHODS)
def test_it_draws_from_noise_of_its_own(task, name):
    """Data that are simulated between two trainings differ, and no number drawn there changes the second one."""
    method, networks = methods.build(name, task, 50, **METHODS[name].get("options", {})), [mlp(64, (8,))]
    networks.append(copy.deepcopy(networks[0]))
    torch.manual_seed(123)
    expected = torch.rand(4)
    torch.manual_seed(123)
    found, trained = [], []
    for network in networks:
        trained.append(fit(method, network, task, 50, record=lambda step, values: None, seed=7).model.state_dict())
        found.append(torch.rand(2))
    assert torch.equal(torch.cat(found), expected)
    for first, second in zip(trained[0].values(), trained[1].values(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name]["density"] is not None])
def test_the_budget_is_exact_at_every_step(task, name):
    counts = []
    options = {} if name == "vi" else {"density": METHODS[name]["density"]}
    method = methods.build(name, task, STEPS, **options)
    model = mlp(64, (64, 64))
    fit(method, model, task, STEPS, record=lambda step, values: counts.append(active_parameters(model)))
    total = 64 * 64 + 64 * 64 + 64 * 10
    assert set(counts) == {round(METHODS[name]["density"] * total)}


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name]["density"] is not None])
def test_inactive_entries_are_exactly_zero(fits, name):
    posterior = fits[name][0]
    weights = sparse_weights(posterior.model)
    drawn = next(iter(posterior.draws(1)))
    for layer, weight in weights.items():
        dense = drawn.get_submodule(layer).weight.detach().flatten()
        inactive = torch.ones(dense.numel(), dtype=torch.bool)
        if weight.support.position is None:
            continue
        inactive[weight.support.position.long()] = False
        assert not dense[inactive].any()
        assert not weight.dense_std().flatten()[inactive].any()


@pytest.mark.parametrize("name", METHODS)
def test_a_fitted_posterior_pickles(fits, task, name):
    posterior = fits[name][0]
    copy = pickle.loads(pickle.dumps(posterior))
    for first, second in zip(posterior.model.parameters(), copy.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert predict(copy, task.test[0][:3], n_draws=2).probs.shape == (3, 10)


@pytest.mark.parametrize("name", ["vi", "ssvi"])
def test_reference_mode_does_not_learn_its_stds_and_the_default_does(task, name):
    drift = {}
    for mode in ("default", "reference"):
        torch.manual_seed(0)
        method = methods.build(name, task, STEPS, mode=mode, **({"update_period": STEPS} if name == "ssvi" else {}))
        model = mlp(64, (64, 64))
        first = {}

        def remember(step, values, model=model, first=first):
            if step == 1:
                first.update({n: w.std.detach().clone() for n, w in sparse_weights(model).items()})

        fit(method, model, task, STEPS, record=remember)
        changes = [
            (weight.std.detach().log() - first[layer].log()).abs().mean()
            for layer, weight in sparse_weights(model).items()
            if isinstance(weight, GaussianWeight)
        ]
        drift[mode] = float(sum(changes) / len(changes))
    assert drift["default"] > 0.1  # σ moved by a tenth of itself and more
    assert drift["reference"] < 0.01
