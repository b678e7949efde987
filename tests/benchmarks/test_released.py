"""The style of the released code computes what our own layers compute in reference mode, with dense tensors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from benchmarks.released import KL_WEIGHT, ReleasedLayer, ReleasedSteps, released
from gossamer.layers import param_groups, sparse_weights

N_DATA, STEPS, PERIOD = 500, 1000, 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 5),
    ).double()


@pytest.fixture
def pair():
    """Our network and the same in the released style."""
    models = [
        gossamer.bayesianize(network(), density=0.3, mode="reference", generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    ]
    return models[0], released(models[1])


@pytest.fixture
def batch():
    torch.manual_seed(2)
    return torch.randn(8, 3, 8, 8, dtype=torch.float64), torch.randint(5, (8,))


def loss_of(model, x, y):
    torch.manual_seed(3)  # dense kernels draw layer by layer, as the released style does
    with gossamer.kernels.use("dense"):
        return F.cross_entropy(model(x), y)


def layers_of(other):
    return [module for module in other.modules() if isinstance(module, ReleasedLayer)]


def test_loss_and_gradients_are_those_of_reference_mode(pair, batch):
    ours, other = pair
    mine = loss_of(ours, *batch) + KL_WEIGHT / N_DATA * gossamer.kl(ours)
    theirs = loss_of(other, *batch) + KL_WEIGHT / N_DATA * sum(layer.kl() for layer in layers_of(other))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)
    mine.backward()
    theirs.backward()
    for weight, layer in zip(sparse_weights(ours).values(), layers_of(other), strict=True):
        for name in ("mean", "raw_std"):
            own, dense = getattr(weight, name).grad, getattr(layer, name).grad
            torch.testing.assert_close(weight.support.scatter(own), dense, rtol=1e-9, atol=1e-14)
    for own, dense in zip(ours[1].parameters(), other[1].parameters(), strict=True):
        torch.testing.assert_close(own.grad, dense.grad, rtol=1e-9, atol=1e-14)


def test_steps_and_updates_are_those_of_reference_mode(pair, batch):
    """Steps of SGD with momentum and weight decay, the last of them spent on an update."""
    # A KL of next to nothing: theirs is part of the gradient by which an entry just removed may come back, ours is not.
    many = 10**9
    ours, other = pair
    optimizer = torch.optim.SGD(param_groups(ours, weight_decay=5e-4), lr=0.01, momentum=0.9)
    subspace = gossamer.Subspace(ours, optimizer, total_steps=STEPS, update_period=PERIOD)
    steps = ReleasedSteps(other, many, STEPS, PERIOD)
    moved, before = [], []
    for step in range(PERIOD):
        before = [layer.mask.clone() for layer in layers_of(other)]
        optimizer.zero_grad()
        torch.manual_seed(step)
        with gossamer.kernels.use("dense"):
            loss = F.cross_entropy(ours(batch[0]), batch[1]) + KL_WEIGHT / many * gossamer.kl(ours)
        loss.backward()
        if not subspace.step():
            optimizer.step()
        torch.manual_seed(step)
        moved.append(steps.step(*batch))
    assert moved == [False] * (PERIOD - 1) + [True]
    assert sum(sum(update["replaced"].values()) for update in subspace.record) > 10
    for weight, layer, old in zip(sparse_weights(ours).values(), layers_of(other), before, strict=True):
        assert torch.equal(weight.support.scatter(torch.ones_like(weight.mean)) == 1, layer.mask)
        torch.testing.assert_close(weight.dense_mean(), layer.mean, rtol=1e-9, atol=1e-14)
        raw_std, new = weight.support.scatter(weight.raw_std), layer.mask & ~old
        torch.testing.assert_close(raw_std[~new], layer.raw_std[~new], rtol=1e-9, atol=1e-14)
        # A mean over those that stay: theirs has those that were removed and came back among them.
        torch.testing.assert_close(raw_std[new], layer.raw_std[new], rtol=0.05, atol=0)
        assert new.any() == layer.is_sparse


def test_what_is_masked_stays_zero_in_weights_and_momenta(pair, batch):
    steps = ReleasedSteps(pair[1], N_DATA, STEPS, PERIOD)
    for _ in range(5):
        steps.step(*batch)
    for layer in steps.layers:
        for parameter in (layer.mean, layer.raw_std):
            assert not parameter[~layer.mask].any()
            assert not steps.optimizer.state[parameter]["momentum_buffer"][~layer.mask].any()
    assert [layer.is_sparse for layer in steps.layers] == [False, True, True]
