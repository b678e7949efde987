"""Weights drawn for a pass: always given back, shared by the passes of a step, and never a silent mistake."""

import pytest
import torch
from torch import nn

from gossamer.optim import CVAdam, sampled


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.fixture
def optimizer(network):
    return CVAdam(network.parameters(), 0.1, n_data=50, init_std=0.1, generator=torch.Generator().manual_seed(0))


def weights(network):
    return nn.utils.parameters_to_vector(network.parameters()).detach().clone()


def loss(network):
    return network(torch.ones(1, 4)).square().mean()


def test_weights_are_drawn_inside_and_the_means_are_back_outside(network, optimizer):
    means = weights(network)
    with optimizer.sampled():
        assert not torch.equal(weights(network), means)
    assert torch.equal(weights(network), means)


class TroubleError(Exception):
    pass


def test_the_means_are_back_after_an_exception(network, optimizer):
    means = weights(network)
    with pytest.raises(TroubleError), optimizer.sampled():
        raise TroubleError
    assert torch.equal(weights(network), means)
    with optimizer.sampled():  # and it works again
        loss(network).backward()
    optimizer.step()
    assert not torch.equal(weights(network), means)


def test_the_means_are_back_after_an_exception_in_a_closure(network, optimizer):
    means = weights(network)

    def closure():
        raise TroubleError

    with pytest.raises(TroubleError):
        optimizer.step(closure)
    assert torch.equal(weights(network), means)


def test_the_means_are_back_when_drawing_fails(network, optimizer, monkeypatch):
    means, like, n = weights(network), optimizer.noise.like, 0

    def fails_at_the_second(tensor):
        nonlocal n
        n += 1
        if n == 2:
            raise TroubleError
        return like(tensor)

    monkeypatch.setattr(optimizer.noise, "like", fails_at_the_second)
    with pytest.raises(TroubleError), optimizer.sampled():
        pytest.fail("the block must not be entered")
    assert torch.equal(weights(network), means)


def test_a_draw_lasts_until_the_step(network, optimizer):
    def draw(train=True):
        with optimizer.sampled(train=train):
            loss(network).backward()
            return weights(network)

    first = draw()
    assert torch.equal(draw(), first)
    assert not torch.equal(draw(train=False), first)
    assert torch.equal(draw(), first)
    optimizer.step()
    second = draw()
    assert not torch.equal(second, first)
    optimizer.zero_grad()
    assert not torch.equal(draw(), second)


def test_blocks_may_be_nested(network, optimizer):
    means = weights(network)
    with optimizer.sampled():
        outer = weights(network)
        with sampled(optimizer):
            assert torch.equal(weights(network), outer)
        assert torch.equal(weights(network), outer)
        optimizer.zero_grad()  # the draw is still in use
        loss(network).backward()
    assert torch.equal(weights(network), means)
    optimizer.step()


def test_gradients_of_the_means_are_refused(network, optimizer):
    loss(network).backward()
    with pytest.raises(RuntimeError, match=r"inside `with optimizer.sampled\(\):`, then step\(\)"):
        optimizer.step()


def test_a_step_inside_the_block_is_refused(network, optimizer):
    means = weights(network)
    with optimizer.sampled():
        loss(network).backward()
        with pytest.raises(RuntimeError, match=r"step\(\) belongs after the block"):
            optimizer.step()
    assert torch.equal(weights(network), means)


def test_draws_have_the_stds_it_tells(network, optimizer):
    means, draws = weights(network), []
    for _ in range(2000):
        with optimizer.sampled(train=False):
            draws.append(weights(network) - means)
    stds = torch.cat([optimizer.std(p).flatten() for p in network.parameters()])
    torch.testing.assert_close(stds, torch.full_like(stds, 0.1))
    z = torch.stack(draws) / stds
    assert z.square().mean().item() == pytest.approx(1, abs=4.5 * (2 / z.numel()) ** 0.5)
    assert z.mean().item() == pytest.approx(0, abs=4.5 / z.numel() ** 0.5)


def test_the_draw_is_in_the_state_between_pass_and_step(network, optimizer):
    """So that it follows a subspace that moves in between, and a checkpoint taken there continues."""
    with optimizer.sampled():
        loss(network).backward()
    state = optimizer.state_dict()
    assert all("noise" in one for one in state["state"].values())
    optimizer.step()
    assert not any("noise" in one for one in optimizer.state_dict()["state"].values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init_std": 5.0, "global_scale": 1.0}, "init_std must be between 0 and the global scale, 1; got 5.0"),
        ({"init_std": 0.0}, "init_std must be between 0 and the global scale"),
        ({"weight_decay": 0.0}, r"without a prior \(weight_decay=0\) give global_scale"),
        ({"temperature": 0.0}, r"temperature must be a number in \(0, inf\)"),
        ({"mode": "reference", "init_std": 0.1}, "leave init_std out"),
        ({"mode": "reference", "global_scale": 0.1}, "leave global_scale out"),
    ],
)
def test_settings_that_contradict_are_named(network, settings, message):
    with pytest.raises(ValueError, match=message):
        CVAdam(network.parameters(), 0.1, n_data=50, **settings)


def test_the_global_scale_is_the_prior_of_the_temperature(network):
    for temperature in (1.0, 0.25):
        group = CVAdam(network.parameters(), 0.1, n_data=50, weight_decay=0.02, temperature=temperature).param_groups[0]
        assert group["global_scale"] == pytest.approx(temperature**0.5)


def test_without_data_the_posterior_becomes_the_prior():
    """A constant loss: σ comes to α of the tempered prior only as a limit, so α is given larger."""
    torch.manual_seed(0)
    w = torch.full((500,), 0.3, requires_grad=True)
    optimizer = CVAdam([w], 1.0, n_data=20, weight_decay=0.05, scale_lr=0.05, global_scale=4.0, init_std=0.5)
    for _ in range(600):
        optimizer.zero_grad()
        with optimizer.sampled():
            (0 * w).sum().backward()
        optimizer.step()
    torch.testing.assert_close(optimizer.std(w), torch.ones(500), rtol=1e-3, atol=0)  # 1/√(N d)
    assert float(w.detach().abs().max()) < 1e-2
