"""Losses and predictive densities against torch.distributions, and what is refused."""

import math

import pytest
import torch
from scipy import stats
from torch import distributions

from gossamer import Categorical, Gaussian, methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.lab import Settings, train
from gossamer.likelihoods import Weighted
from gossamer.metrics import scores_of
from gossamer.models import mlp
from gossamer.posterior import Prediction
from gossamer.train import fit
from gossamer.types import N_SAMPLES, Likelihood, Task

DRAWS, BATCH = 5, 7


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("space", [(), (3, 2)], ids=["classification", "segmentation"])
def test_categorical_agrees_with_torch_distributions(space: tuple[int, ...]):
    logits, y = torch.randn(DRAWS, BATCH, 4, *space), torch.randint(4, (BATCH, *space))
    reference = distributions.Categorical(logits=logits.movedim(2, -1)).log_prob(y)
    torch.testing.assert_close(Categorical().loss(logits[0], y), -reference[0].mean())
    predictive = Categorical().log_predictive(logits, y)
    assert predictive.shape == y.shape
    torch.testing.assert_close(predictive, reference.exp().mean(0).log())


def test_categorical_predictive_of_impossible_classes_is_finite():
    """The mean of probabilities that underflow is taken in logs."""
    outputs = torch.tensor([[[200.0, 0.0]], [[300.0, 0.0]]])
    predictive = Categorical().log_predictive(outputs, torch.tensor([1]))
    torch.testing.assert_close(predictive, torch.tensor([-200 - math.log(2)]))


@pytest.mark.parametrize("targets", [1, 3])
def test_gaussian_with_a_given_noise(targets: int):
    outputs, y = torch.randn(DRAWS, BATCH, targets), torch.randn(BATCH, targets)
    reference = distributions.Normal(outputs, 0.3).log_prob(y).sum(-1)
    torch.testing.assert_close(Gaussian(0.3).loss(outputs[0], y), -reference[0].mean())
    predictive = Gaussian(0.3).log_predictive(outputs, y)
    assert predictive.shape == (BATCH,)
    torch.testing.assert_close(predictive, reference.exp().mean(0).log())


@pytest.mark.parametrize("targets", [1, 3])
def test_gaussian_that_learns_its_noise(targets: int):
    outputs, y = torch.randn(DRAWS, BATCH, 2 * targets), torch.randn(BATCH, targets)
    std = torch.nn.functional.softplus(outputs[..., targets:])
    reference = distributions.Normal(outputs[..., :targets], std).log_prob(y).sum(-1)
    torch.testing.assert_close(Gaussian().loss(outputs[0], y), -reference[0].mean(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        Gaussian().log_predictive(outputs, y), reference.exp().mean(0).log(), rtol=1e-4, atol=1e-4
    )


def test_a_single_target_may_come_with_or_without_its_dimension():
    outputs, y = torch.randn(DRAWS, BATCH, 1), torch.randn(BATCH)
    likelihood = Gaussian(0.5)
    losses = [
        likelihood.loss(output, target) for output in (outputs[0], outputs[0].squeeze(-1)) for target in (y, y[:, None])
    ]
    torch.testing.assert_close(losses, [losses[0]] * 4)
    predictives = [
        likelihood.log_predictive(output, target)
        for output in (outputs, outputs.squeeze(-1))
        for target in (y, y[:, None])
    ]
    torch.testing.assert_close(predictives, [predictives[0]] * 4)


def test_targets_are_never_broadcast():
    """``(batch, 1) - (batch,)`` is ``(batch, batch)`` in torch: the classic silent mistake of regression."""
    with pytest.raises(ValueError, match=r"targets of shape \(3,\) for predictions of shape \(7, 2\)"):
        Gaussian(0.5).loss(torch.zeros(BATCH, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="targets of shape"):
        Gaussian(0.5).loss(torch.zeros(BATCH, 2), torch.zeros(BATCH))
    with pytest.raises(ValueError, match="targets of shape"):
        Gaussian(0.5).log_predictive(torch.zeros(DRAWS, BATCH, 1), torch.zeros(DRAWS, BATCH, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_are_read_in_float32(dtype: torch.dtype):
    outputs, y = torch.randn(DRAWS, BATCH, 2).to(dtype), torch.randint(2, (BATCH,))
    for likelihood, target in ((Categorical(), y), (Gaussian(), y.float()), (Gaussian(0.1), torch.randn(BATCH, 2))):
        predictive = likelihood.log_predictive(outputs, target)
        assert predictive.dtype == torch.float32
        torch.testing.assert_close(predictive, likelihood.log_predictive(outputs.float(), target))


def test_float64_stays_float64():
    outputs = torch.randn(DRAWS, BATCH, 2, dtype=torch.float64)
    assert Categorical().log_predictive(outputs, torch.zeros(BATCH, dtype=torch.long)).dtype == torch.float64
    assert Gaussian().log_predictive(outputs, torch.zeros(BATCH)).dtype == torch.float64


def test_the_loss_has_finite_gradients_at_extreme_noise():
    output = torch.tensor([[0.0, -100.0], [0.0, 100.0]], requires_grad=True)
    loss = Gaussian().loss(output, torch.zeros(2))
    loss.backward()
    assert loss.isfinite()
    assert output.grad.isfinite().all()


def test_the_least_noise_holds_for_each_target():
    likelihood = Gaussian(least=(0.5, 0.0))
    outputs = torch.tensor([[1.0, 2.0, -9.0, -9.0]])
    mean, std = likelihood.split(outputs)
    assert mean.tolist() == [[1.0, 2.0]]
    assert std.tolist() == [[0.5, Gaussian().split(outputs)[1][0, 1].item()]]
    target = torch.tensor([[1.0, 2.0]])
    expected = -math.log(0.5) - math.log(std[0, 1].item()) - math.log(2 * math.pi)
    assert likelihood.log_predictive(outputs[None], target).item() == pytest.approx(expected, rel=1e-5)


def test_an_empty_batch_has_an_empty_predictive():
    assert Categorical().log_predictive(torch.zeros(DRAWS, 0, 3), torch.zeros(0, dtype=torch.long)).shape == (0,)
    assert Gaussian(0.1).log_predictive(torch.zeros(DRAWS, 0, 1), torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_that_is_none_is_refused(noise_std: float):
    with pytest.raises(ValueError, match="noise_std must be positive"):
        Gaussian(noise_std)


@pytest.mark.parametrize("shape", [(BATCH, 3), (BATCH,)])
def test_an_output_that_has_no_two_halves_is_refused(shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="twice as many outputs as targets"):
        Gaussian().loss(torch.zeros(shape), torch.zeros(BATCH))


def test_a_weight_is_so_many_copies():
    weight = torch.tensor([1.0, 2.0, 5.0])
    copies = weight.long()
    for likelihood, output, y in (
        (Categorical(), torch.randn(3, 4), torch.tensor([[0.0], [3.0], [1.0]])),
        (Gaussian(), torch.randn(3, 4), torch.randn(3, 2)),
    ):
        weighted = Weighted(likelihood)
        packed = torch.cat([y, (weight / weight.mean()).unsqueeze(1)], 1)
        of_copies = likelihood.loss(
            output.repeat_interleave(copies, 0), weighted.targets(packed).repeat_interleave(copies, 0)
        )
        torch.testing.assert_close(weighted.loss(output, packed), of_copies)
        torch.testing.assert_close(
            weighted.log_predictive(output.unsqueeze(0), packed),
            likelihood.log_predictive(output.unsqueeze(0), weighted.targets(packed)),
        )


def test_a_target_out_of_reach_pulls_as_one_at_that_distance():
    torch.manual_seed(0)
    output, y = torch.randn(50, 2, dtype=torch.float64, requires_grad=True), 20 * torch.randn(50, 1).double()
    mean, std = Gaussian().split(output)
    near = torch.maximum(torch.minimum(y, mean + 5 * std), mean - 5 * std).detach()
    assert 0 < int((near != y).sum()) < 50
    (of_near,) = torch.autograd.grad(Gaussian().loss(output, near), output)
    (found,) = torch.autograd.grad(Gaussian(reach=5.0).loss(output, y), output)
    torch.testing.assert_close(found, of_near)
    with pytest.raises(ValueError, match="reach must be positive"):
        Gaussian(reach=0.0)


class Poisson(Likelihood):
    def distribution(self, output):
        return distributions.Poisson(output.exp())


class Heavy(Likelihood):
    """Two targets with Student's t, whose means and log scales are the outputs."""

    def distribution(self, output):
        mean, log_scale = output.chunk(2, -1)
        return distributions.StudentT(5.0, mean, log_scale.exp())


class Pinball(Likelihood):
    """Classes by independent logistic outputs: not the softmax."""

    kind = "classification"

    def loss(self, output, y):
        return -self.log_predictive(output[None], y).mean()

    def log_predictive(self, outputs, y):
        return self.probs(outputs, 2).mean(0).gather(1, y[:, None])[:, 0].log()

    def probs(self, outputs, dim):
        return outputs.sigmoid() / outputs.sigmoid().sum(dim, keepdim=True)


class LossAlone:
    def loss(self, output, y):
        return torch.nn.functional.cross_entropy(output, y)

    def log_predictive(self, outputs, y):
        return Categorical().log_predictive(outputs, y)


@pytest.fixture
def counts():
    """Outputs of three draws for forty examples, and targets."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 40, 1, generator=generator, dtype=torch.float64) / 2 + 1.5
    return outputs, torch.poisson(outputs[0].exp(), generator)


def test_a_distribution_alone_gives_loss_and_density(counts):
    outputs, y = counts
    of_each = stats.poisson.logpmf(y.numpy(), outputs.exp().numpy())[..., 0]
    assert float(Poisson().loss(outputs[0], y[:, 0])) == pytest.approx(-of_each[0].mean(), rel=1e-12)
    expected = torch.from_numpy(of_each).exp().mean(0).log()
    torch.testing.assert_close(Poisson().log_predictive(outputs, y), expected)
    with pytest.raises(ValueError, match=r"targets of shape \(39, 1\) for predictions of shape \(40, 1\)"):
        Poisson().log_predictive(outputs, y[1:])
    outputs, y = torch.randn(3, 7, 4), torch.randn(7, 2)
    expected = distributions.StudentT(5.0, outputs[..., :2], outputs[..., 2:].exp()).log_prob(y).sum(-1)
    torch.testing.assert_close(Heavy().log_predictive(outputs, y), expected.exp().mean(0).log())


def test_moments_of_a_distribution(counts):
    prediction = Prediction(counts[0], Poisson())
    rates = counts[0].exp()
    torch.testing.assert_close(prediction.mean, rates.mean(0))
    torch.testing.assert_close(prediction.std, (rates.mean(0) + rates.var(0, correction=0)).sqrt())
    assert list(scores_of(prediction)) == ["std", "epistemic_std"]


def test_intervals_and_distribution_function_from_samples(counts):
    """Each bound is a sample quantile: its level is off by √(p(1 - p)/n), here at most four of these, and one count."""
    outputs, y = counts
    mixture = lambda k: stats.poisson.cdf(k, outputs.exp().numpy()).mean(0)  # noqa: E731
    prediction = Prediction(outputs, Poisson())
    error = 4 * math.sqrt(0.05 * 0.95 / N_SAMPLES)
    for bound, level in zip(prediction.interval(0.9), (0.05, 0.95), strict=True):
        assert (mixture(bound.numpy()) > level - error).all()
        assert (mixture(bound.numpy() - 1) < level + error).all()
    expected = (mixture(y.numpy()) + mixture(y.numpy() - 1)) / 2
    assert Poisson().cdf(outputs, y).numpy() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(N_SAMPLES))
    before = torch.get_rng_state()
    assert torch.equal(prediction.interval(0.9)[1], prediction.interval(0.9)[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_crps_from_samples(counts):
    """Σ_k (F(k) - 1[k ≥ y])² for whole numbers; the error of the mean over forty is far below that of one score."""
    outputs, y = counts
    k = torch.arange(200).double()
    below = torch.from_numpy(stats.poisson.cdf(k.numpy(), outputs.exp().numpy())).mean(0)
    exact = float(((below - (k >= y).double()) ** 2).sum(1).mean())
    spread = float(outputs.exp().mean().sqrt())
    assert Poisson().crps(outputs, y) == pytest.approx(exact, abs=4 * spread / math.sqrt(N_SAMPLES * len(y)))


def test_the_defaults_agree_with_the_closed_forms_of_a_gaussian():
    class Sampled(Likelihood):
        def distribution(self, output):
            return distributions.Normal(output, 0.3)

    outputs, y = torch.randn(5, 50, 1), torch.randn(50, 1)
    exact, sampled = Gaussian(0.3), Sampled()
    torch.testing.assert_close(sampled.log_predictive(outputs, y), exact.log_predictive(outputs, y))
    assert (sampled.cdf(outputs, y) - exact.cdf(outputs, y)).abs().max() < 4 * 0.5 / math.sqrt(N_SAMPLES)
    assert sampled.crps(outputs, y) == pytest.approx(exact.crps(outputs, y), abs=4 * 1.1 / math.sqrt(N_SAMPLES * 50))


@pytest.fixture(scope="module")
def task():
    return digits.load()


def test_classes_with_probabilities_of_their_own(task):
    posterior = fit(methods.build("sgd", task, 30), mlp(64, (8,)), task._replace(likelihood=Pinball()), 30)
    measured = evaluate(posterior, task._replace(likelihood=Pinball()), n_draws=1)
    outputs = posterior.model(task.test[0]).detach()
    assert measured["nll"] == pytest.approx(float(Pinball().loss(outputs.double(), task.test[1])), rel=1e-6)
    probs = outputs.sigmoid() / outputs.sigmoid().sum(1, keepdim=True)
    assert measured["brier"] == pytest.approx(float((probs - torch.eye(10)[task.test[1]]).square().sum(1).mean()), 1e-4)


def test_a_likelihood_that_only_has_a_loss_trains_and_is_not_scored_by_a_guess(task, monkeypatch, tmp_path):
    alone = task._replace(likelihood=LossAlone())
    posterior = fit(methods.build("sgd", alone, 3), mlp(64, (8,)), alone, 3)
    with pytest.raises(
        TypeError, match=r"LossAlone can be trained with but not evaluated.*gossamer\.types\.Likelihood"
    ):
        evaluate(posterior, alone)
    monkeypatch.setattr(Settings, "load_task", lambda self: alone)
    with pytest.raises(TypeError, match="does not say what its targets are"):
        train(Settings("sgd", "digits", epochs=1, device="cpu"), tmp_path / "run", quiet=True)
    numbers = Task(task.train, task.val, task.test, Likelihood(), n_outputs=1)
    with pytest.raises(NotImplementedError, match=r"Likelihood needs distribution\(output\)"):
        evaluate(posterior, numbers, n_draws=1)
