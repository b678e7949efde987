"""Losses and predictive densities against torch.distributions, and what is refused."""

import math

import pytest
import torch
from torch import distributions

from gossamer import Categorical, Gaussian
from gossamer.likelihoods import Weighted

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
