"""laplace: what is said without its extra, and with it the covariance of a logistic regression in closed form."""

import importlib.util
import pickle

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import digits, two_moons
from gossamer.evaluate import evaluate
from gossamer.likelihoods import Gaussian
from gossamer.methods.laplace import LastLayerFit
from gossamer.models import conv_net
from gossamer.posterior import predict
from gossamer.train import fit
from gossamer.types import Task

HAS_EXTRA = importlib.util.find_spec("laplace") is not None
with_extra = pytest.mark.skipif(not HAS_EXTRA, reason="needs laplace-torch: pip install 'gossamer[laplace]'")
DELTA = 0.7


def test_without_the_extra_the_error_names_the_install_line(monkeypatch):
    task = digits.load()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'gossamer\[laplace\]'"):
        methods.build("laplace", task, 10)


@pytest.fixture
def problem():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    return two_moons.load(), network


def closed_form(task: Task, network: nn.Module) -> torch.Tensor:
    """(Σ Jᵀ Λ J + δI)⁻¹ with Λ = diag(p) - p pᵀ and J = (φᵀ ⊗ I, I), in the order of weight and bias."""
    features = network[:2](task.transform(task.train[0])).detach().double()
    probs = network[2].double()(features).softmax(1).detach()
    network.float()
    precision = DELTA * torch.eye(8, dtype=torch.float64)
    for phi, p in zip(features, probs, strict=True):
        jacobian = torch.cat([torch.kron(torch.eye(2, dtype=torch.float64), phi), torch.eye(2, dtype=torch.float64)], 1)
        precision += jacobian.T @ (p.diag() - torch.outer(p, p)) @ jacobian
    return precision.inverse()


@with_extra
def test_the_covariance_is_the_closed_form(problem):
    task, network = problem
    expected = closed_form(task, network)
    posterior = LastLayerFit(task, "full", DELTA).posterior(network)
    torch.testing.assert_close((posterior.spread @ posterior.spread.T).double(), expected, rtol=1e-3, atol=1e-5)
    diagonal = LastLayerFit(task, "diag", DELTA).posterior(network)
    torch.testing.assert_close(diagonal.spread.double(), expected.inverse().diag().rsqrt(), rtol=1e-3, atol=1e-5)


@with_extra
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_draws_differ_in_the_last_layer_alone(problem, structure):
    task, network = problem
    state = torch.get_rng_state()
    posterior = LastLayerFit(task, structure).posterior(network)
    assert torch.equal(torch.get_rng_state(), state)
    first, second = ([p.clone() for p in drawn.parameters()] for drawn in posterior.draws(2))
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [True, True, False, False]
    again = pickle.loads(pickle.dumps(posterior))
    x = task.transform(task.test[0][:5])
    torch.manual_seed(0)
    outputs = predict(posterior, x, n_draws=3).outputs
    torch.manual_seed(0)
    assert torch.equal(predict(again, x, n_draws=3).outputs, outputs)


@with_extra
def test_regression_with_a_known_noise():
    """Of a linear model the posterior is exact: (XᵀX/s² + δI)⁻¹."""
    torch.manual_seed(0)
    x, noise = torch.randn(50, 3), 0.3
    task = Task((x, x.sum(1, keepdim=True)), *[(x[:0], x[:0, :1])] * 2, Gaussian(noise_std=noise), 1)
    network = nn.Sequential(nn.Identity(), nn.Linear(3, 1, bias=False))
    posterior = LastLayerFit(task, "full", DELTA).posterior(network)
    expected = (x.T @ x / noise**2 + DELTA * torch.eye(3)).inverse()
    torch.testing.assert_close(posterior.spread @ posterior.spread.T, expected, rtol=1e-3, atol=1e-6)


@with_extra
def test_the_width_is_chosen_by_held_out_examples(problem):
    """The chosen prior has the lowest NLL of a few around it, by more than the noise of 400 draws."""
    task, network = problem
    nll = {}
    for precision in (None, 0.01, 1e5):
        posterior = LastLayerFit(task, "full", precision).posterior(network)
        torch.manual_seed(0)
        nll[precision] = evaluate(posterior, task, n_draws=400, split="val")["nll"]
    assert nll[None] <= min(nll.values()) + 0.01


@with_extra
def test_it_learns_and_is_wider_than_its_mean():
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("laplace", task, 200, tuning="marglik"), conv_net(), task, 200)
    result = evaluate(posterior, task, n_draws=20, split="val")
    assert result["accuracy"] > 0.9
    assert result["mutual_information"] > 1e-4


@with_extra
def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="structure must be 'full', 'kron' or 'diag'; got 'block'"):
        methods.build("laplace", digits.load(), 10, structure="block")
    task = digits.load()
    with pytest.raises(ValueError, match="tuning must be 'held_out' or 'marglik'; got 'val'"):
        methods.build("laplace", task, 10, tuning="val")
    with pytest.raises(ValueError, match="hold some out with n_val, or give tuning='marglik'"):
        methods.build("laplace", task._replace(val=(task.val[0][:0], task.val[1][:0])), 10)
    task = task._replace(likelihood=Gaussian())
    with pytest.raises(ValueError, match="numbers with a known noise"):
        methods.build("laplace", task, 10)
