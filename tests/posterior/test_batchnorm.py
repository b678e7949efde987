"""Statistics of batch normalisation, made anew: those of the data, with nothing else changed."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.posterior import LocalPasses, Refresh, refresh_batchnorm


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Dropout(0.5), nn.Flatten())


def test_the_statistics_are_those_of_the_data_and_the_modes_are_back():
    model, x = network(), torch.randn(12, 2, 6, 6)
    model.eval()
    model[2].train()  # a mode of its own
    before = torch.get_rng_state()
    refresh_batchnorm(model, x.split(4))
    assert torch.equal(torch.get_rng_state(), before)  # dropout was silent
    z = [model[0](part) for part in x.split(4)]
    torch.testing.assert_close(model[1].running_mean, torch.stack([part.mean((0, 2, 3)) for part in z]).mean(0))
    torch.testing.assert_close(model[1].running_var, torch.stack([part.var((0, 2, 3)) for part in z]).mean(0))
    assert model[1].momentum == 0.3
    assert [module.training for module in model] == [False, False, True, False]
    assert int(model[1].num_batches_tracked) == 3


def test_modes_and_momenta_are_back_after_an_exception():
    model = network().eval()
    with pytest.raises(RuntimeError):
        refresh_batchnorm(model, [torch.zeros(1, 7)])
    assert model[1].momentum == 0.3
    assert not model[1].training


def test_networks_without_batch_normalisation_are_not_even_called():
    class Loud(nn.Module):
        def forward(self, x):
            raise AssertionError

    refresh_batchnorm(nn.Sequential(Loud(), nn.BatchNorm1d(3, track_running_stats=False)), [torch.zeros(2, 3)])


def test_batches_are_of_equal_size():
    model, x = nn.Sequential(nn.BatchNorm1d(3)), torch.randn(9, 3)
    Refresh(x, batch_size=4)(model)  # not 4, 4 and 1
    assert int(model[0].num_batches_tracked) == 3
    torch.testing.assert_close(model[0].running_mean, x.mean(0))


def test_a_part_of_many_examples_is_enough_and_every_draw_sees_the_same():
    """Sorted as some data are: the first of them alone would give other statistics."""
    x = torch.linspace(-1, 1, 4000).unsqueeze(1) + 0.1 * torch.randn(
        4000, 1, generator=torch.Generator().manual_seed(0)
    )
    models = [nn.Sequential(nn.BatchNorm1d(1)) for _ in range(3)]
    for model, most in zip(models, (1000, 1000, 10_000), strict=True):
        Refresh(x, most=most)(model)
    few, again, every = (model[0] for model in models)
    assert torch.equal(few.running_mean, again.running_mean)
    assert int(few.num_batches_tracked) == 4
    torch.testing.assert_close(every.running_mean, x.mean(0), rtol=0, atol=1e-5)
    assert float((few.running_mean - x.mean(0)).abs()) < 4 * float(x.std()) / 1000**0.5
    assert not torch.equal(few.running_mean, every.running_mean)


def test_a_draw_is_refreshed_at_the_cost_of_predicting_512_inputs():
    """ResNet-18 takes five seconds for them on two cores."""
    model, rows = nn.Sequential(nn.BatchNorm1d(3)), []
    model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    Refresh(torch.randn(20_000, 3))(model)
    assert rows == [256, 256]


def test_passes_with_local_noise_are_refreshed_too_and_the_model_is_left_alone():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model, x = gossamer.bayesianize(plain, density=0.5), 5 + torch.randn(400, 3)
    network, again = LocalPasses(model, Refresh(x)).draws(2)
    assert network is again
    assert not model[1].running_mean.any()
    with torch.no_grad():
        clean = gossamer.draw(model, at_mean=True)[0](x)
    error = 4 * model[0].std.max() * x.square().sum(1).mean().sqrt() / 400**0.5
    assert float((network[1].running_mean - clean.mean(0)).abs().max()) < float(error)
