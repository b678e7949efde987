"""SPLBNN: the gradient of its prior, its evidence against a conjugate answer, and the start that it keeps."""

import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.files import container
from gossamer.likelihoods import Gaussian
from gossamer.methods.splbnn import BestEvidence, MixturePenalty, MixturePrior, log_evidence
from gossamer.models import mlp
from gossamer.sparsity import Cut
from gossamer.train import Training, fit
from gossamer.types import Step, Task

N, P, NOISE = 60, 4, 0.5


def regression(seed=0, n_inputs=P, n=N):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n_inputs, generator=generator)
    y = x[:, :2] @ torch.tensor([[1.0], [-0.5]]) + NOISE * torch.randn(n, 1, generator=generator)
    return Task((x, y), (x, y), (x, y), Gaussian(noise_std=NOISE), n_outputs=1)


@pytest.mark.parametrize("values", [(1e-5, 0.01, 0.1), (0.3, 0.05, 1.0)])
def test_the_gradient_of_the_prior_is_that_of_the_paper(values):
    inclusion, spike, slab = values
    b = torch.tensor([-2.0, -0.06, -0.01, 0.0, 1e-6, 0.05, 0.5], dtype=torch.float64, requires_grad=True)
    MixturePrior(*values).log_density(b).backward()
    c1 = math.log(inclusion / (1 - inclusion)) + 0.5 * math.log(spike**2 / slab**2)
    p0 = 1 / (1 + torch.exp(c1 + 0.5 * (spike**-2 - slab**-2) * b.detach() ** 2))
    torch.testing.assert_close(b.grad, -b.detach() * (p0 / spike**2 + (1 - p0) / slab**2), rtol=1e-9, atol=0)


def test_at_the_threshold_spike_and_slab_are_as_likely():
    prior = MixturePrior(1e-4, 0.02, 0.5)
    at = torch.tensor(prior.threshold, dtype=torch.float64)
    slab = math.log(1e-4) + torch.distributions.Normal(0.0, 0.5).log_prob(at)
    spike = math.log(1 - 1e-4) + torch.distributions.Normal(0.0, 0.02).log_prob(at)
    torch.testing.assert_close(slab, spike)


def test_the_evidence_of_a_linear_model_is_the_marginal_likelihood():
    """With weights far from the spike the prior is λ N(0, s²), and the Laplace approximation of a Gaussian exact."""
    task, slab, inclusion = regression(), 0.7, 0.3
    prior = MixturePrior(inclusion, 1e-3, slab)
    x, y = (part.double() for part in task.train)
    precision = x.T @ x / NOISE**2 + torch.eye(P, dtype=torch.float64) / slab**2
    layer = nn.Linear(P, 1, bias=False)
    layer.weight.data = torch.linalg.solve(precision, x.T @ y / NOISE**2).T.double()
    assert layer.weight.abs().min() > 0.02  # twenty stds of the spike
    covariance = slab**2 * x @ x.T + NOISE**2 * torch.eye(N, dtype=torch.float64)
    marginal = torch.distributions.MultivariateNormal(torch.zeros(N, dtype=torch.float64), covariance)
    exact = float(marginal.log_prob(y[:, 0])) + P * math.log(inclusion)
    assert log_evidence(layer, task, prior) == pytest.approx(exact, rel=1e-9)


def test_the_penalty_is_the_slab_alone_until_the_spike_is_switched_on():
    model = gossamer.sparsify(nn.Linear(3, 2), density=1.0, init="pretrained")
    prior = MixturePrior(1e-3, 0.01, 1.0)
    penalty = MixturePenalty(prior, 10, spike_from=[5, 15], begins=[0, 10, 20])
    values = [penalty(model, step).item() for step in (1, 5, 6, 10, 11, 15, 16)]
    slab = -torch.distributions.Normal(0.0, 1.0).log_prob(torch.cat([model.mean, model.bias]).detach()).sum() / 10
    assert values[0] == pytest.approx(float(slab))
    assert [value == values[0] for value in values] == [True, True, False, False, True, True, False]


def test_it_finds_the_support_of_a_sparse_linear_model():
    task = regression(n_inputs=30, n=400)
    posterior = fit(methods.build("splbnn", task, 900), nn.Linear(30, 1), task, 900, batch_size=400)
    assert posterior.model.support.position.tolist() == [0, 1]
    x, y = task.train
    solution = torch.linalg.lstsq(x[:, :2], y).solution[:, 0]
    # The slab, N(0, 0.1²), shrinks by the ratio of its precision to that of the data, N/noise²: 100 to 1,600.
    shrunk = solution / (1 + NOISE**2 / (0.1**2 * 400))
    torch.testing.assert_close(posterior.model.mean.detach(), shrunk, atol=0.02, rtol=0)


def test_of_several_starts_the_one_with_the_best_evidence_is_kept():
    task = regression(n=200)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(P, 3), nn.Tanh(), nn.Linear(3, 1))
    method = methods.build("splbnn", task, 360, starts=3, lr=0.02, spike_std=0.03)
    training = Training(method, network, task, 360, batch_size=200)
    ends = {}
    for _ in training.run():
        if training.step % 120 == 0:
            ends[training.step] = gossamer.draw(training.model, at_mean=True)
    prior = MixturePrior(1e-5, 0.03, 0.1)
    evidences = [log_evidence(end, task, prior) for end in ends.values()]
    assert isinstance(training.collector, BestEvidence)
    assert training.collector.evidences == evidences
    assert len(set(evidences)) == 3  # the starts differ
    best = list(ends.values())[evidences.index(max(evidences))]
    kept = next(training.posterior().draws(1))
    for mine, other in zip(kept.parameters(), best.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("at", [60, 100, 121, 250])
def test_several_starts_resume_to_the_bit(at):
    """Before and after a cut of the first start, at the beginning of the second, after its end."""
    task = regression(n=200)

    def begin():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(P, 3), nn.Tanh(), nn.Linear(3, 1))
        method = methods.build("splbnn", task, 360, starts=3, lr=0.02, spike_std=0.03)
        return Training(method, network, task, 360, batch_size=200)

    whole = begin()
    list(whole.run(at))
    saved = container.to_bytes(whole.state_dict())
    list(whole.run())
    resumed = begin()
    resumed.load_state_dict(container.from_bytes(saved))
    list(resumed.run())
    assert resumed.collector.evidences == whole.collector.evidences
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_best_start_may_be_one_in_which_nothing_was_removed():
    task, prior = regression(), MixturePrior(1e-5, 0.01, 0.1)
    model = gossamer.sparsify(nn.Linear(P, 1), density=1.0, init="pretrained")
    first = gossamer.draw(model, at_mean=True)
    collector = BestEvidence(task, prior, [1])
    collector.observe(model, 1)
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    Cut(model, optimizer, lambda weight: torch.tensor([1.0, -1.0, -1.0, -1.0]), at=2)(
        Step(2, model, optimizer, lambda: torch.zeros(()))
    )
    assert torch.equal(next(collector.posterior(model).draws(1)).weight, first.weight)


def test_the_rest_is_stored_alone_and_compacts():
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("splbnn", task, 450, spike_std=0.02), mlp(64, (64, 64)), task, 450)
    active = gossamer.active_parameters(posterior.model)
    assert active < 64 * 64 * 2 + 640
    assert posterior.n_bytes <= 8 * active + 4 * 138
    means = gossamer.draw(posterior.model, at_mean=True).eval()
    small, x = gossamer.compact(means), task.test[0][:50]
    torch.testing.assert_close(small(x), means(x), rtol=1e-4, atol=1e-4)


def test_too_many_parameters_for_a_hessian_are_refused_by_name():
    task = digits.load()
    with pytest.raises(ValueError, match="give starts=1"):
        log_evidence(mlp(64, (64,)), task, MixturePrior(1e-5, 0.01, 1.0))
    with pytest.raises(ValueError, match="starts must be"):
        methods.build("splbnn", task, 10, starts=9)
