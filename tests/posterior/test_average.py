"""Averages over training: what they keep, and copies of networks that are no averages."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gossamer
from gossamer.layers import PointWeight, Support
from gossamer.layers.modules import SparseLinear
from gossamer.layers.weight import resize
from gossamer.posterior.average import InAverage
from gossamer.train import checkpoint


def layer(position, mean):
    weight = PointWeight(Support((1, 6), torch.tensor(position)), torch.tensor(mean))
    return SparseLinear(nn.Linear(6, 1, bias=False), {"weight": weight})


def move(model, position, mean):
    model.weight.mean.data.copy_(torch.tensor(mean))
    model.support.set_position(torch.tensor(position))


def test_the_average_of_two_networks_by_hand():
    """(1, 2, 0) and (0, 4, 6), kept at the positions of the second: (4 + 2)/2 and 6/2."""
    model = layer([0, 1], [1.0, 2.0])
    average = gossamer.averaged(model)
    average.update_parameters(model)
    move(model, [1, 2], [4.0, 6.0])
    average.update_parameters(model)
    assert average.module.dense_mean().tolist() == [[0.0, 3.0, 3.0, 0.0, 0.0, 0.0]]
    assert int(average.n_averaged) == 2


def test_another_number_of_entries():
    model = layer([0, 1, 5], [1.0, 2.0, 8.0])
    average = gossamer.averaged(model, decay=0.5)
    average.update_parameters(model)
    resize(model.weight, 2)
    move(model, [1, 2], [4.0, 6.0])
    average.update_parameters(model)
    assert average.module.dense_mean().tolist() == [[0.0, 3.0, 3.0, 0.0, 0.0, 0.0]]


def test_a_model_that_is_pruned_from_dense():
    model = gossamer.sparsify(nn.Linear(4, 2, bias=False), density=1.0, init="pretrained")
    average = gossamer.averaged(model)
    average.update_parameters(model)
    before = model.dense_mean().detach().clone()
    gossamer.sparsity.moves.remove(model.weight, model.mean.abs() > model.mean.abs().median())
    average.update_parameters(model)
    torch.testing.assert_close(average.module.dense_mean(), before * (model.dense_mean() != 0))


def test_a_plain_network_is_averaged_as_torch_does():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    for use_buffers in (False, True):
        mine, other = gossamer.averaged(model, use_buffers=use_buffers), AveragedModel(model, use_buffers=use_buffers)
        for _ in range(3):
            model(torch.randn(8, 3))
            with torch.no_grad():
                model[0].weight.add_(1)
            mine.update_parameters(model)
            other.update_parameters(model)
        for name, tensor in other.state_dict().items():
            if tensor.is_floating_point():
                torch.testing.assert_close(mine.state_dict()[name], tensor)


def test_the_decay_is_checked():
    with pytest.raises(ValueError, match="decay is the weight of the past"):
        gossamer.averaged(nn.Linear(2, 2), decay=1.0)


def test_torch_averages_that_start_after_the_last_move_are_right():
    """The copy is older than the moves, but its first update copies everything."""
    model = layer([0, 1], [1.0, 2.0])
    average = AveragedModel(model)
    move(model, [1, 2], [4.0, 6.0])
    for _ in range(3):
        average.update_parameters(model)
    assert average(torch.eye(6)).flatten().tolist() == [0.0, 4.0, 6.0, 0.0, 0.0, 0.0]
    move(model, [0, 5], [1.0, 1.0])
    average(torch.eye(6))  # the average of before is as right as it was
    average.update_parameters(model)
    with pytest.raises(RuntimeError, match=r"gossamer\.averaged"):
        average(torch.eye(6))


def test_averaged_positions_are_noticed():
    model = gossamer.sparsify(nn.Linear(50, 50), density=0.3)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)  # truncates integers
    for _ in range(3):
        average.update_parameters(model)
    with pytest.raises(RuntimeError, match=r"gossamer\.averaged"):
        average(torch.eye(50))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_that_train_and_move_on_their_own_are_left_in_peace(duplicate):
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Linear(6, 3), density=0.5)
    twin, x = duplicate(model), torch.randn(8, 6)

    def steps(network):
        optimizer = torch.optim.SGD(gossamer.param_groups(network), lr=0.1)
        gossamer.Curvature(network, optimizer, n_data=100)
        subspace = gossamer.Subspace(network, optimizer, total_steps=12, update_period=2, replacement_rate=0.5)
        for _ in range(6):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
            subspace.step()

    steps(model)
    twin(x)
    steps(twin)
    steps(model)
    twin(x)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.dense_mean(), model.dense_mean())
    twin(x)


def moved(model, step):
    """Another network at each step, with entries that move; the same one whoever asks."""
    torch.manual_seed(step)
    with torch.no_grad():
        model.mean.normal_()
        model.weight.set_std(0.1 + torch.rand_like(model.mean))
        model.bias.normal_()
        n = model.support.n_active
        model.support.set_position(torch.randperm(model.support.size)[:n].sort().values.to(torch.int32))
    return model


@pytest.mark.parametrize("stops", [1, 4, 6, 9])
def test_the_average_of_a_training_goes_on_from_a_checkpoint_to_the_bit(stops, tmp_path):
    def start():
        torch.manual_seed(0)
        return gossamer.bayesianize(nn.Linear(12, 5), density=0.3), InAverage(begin=4, every=2)

    model, whole = start()
    for step in range(1, 13):
        whole.observe(moved(model, step), step)
    model, first = start()
    for step in range(1, stops + 1):
        first.observe(moved(model, step), step)
    checkpoint.save(tmp_path, {"model": model.state_dict(), "collector": first.state_dict()}, stops)
    state = checkpoint.load(tmp_path)
    model, second = start()
    model.load_state_dict(state["model"])
    second.load_state_dict(state["collector"])
    assert same_state(second.state_dict(), first.state_dict())
    for step in range(stops + 1, 13):
        second.observe(moved(model, step), step)
    assert int(second.average.n_averaged) == 5
    assert same_state(second.state_dict(), whole.state_dict())


def test_an_average_is_loaded_whatever_length_the_weights_had_at_its_time():
    model = gossamer.bayesianize(nn.Linear(12, 5), density=0.3)
    collector = InAverage(begin=1, every=1)
    collector.observe(model, 1)
    other, again = gossamer.bayesianize(nn.Linear(12, 5), density=0.6), InAverage(begin=1, every=1)
    again.load_state_dict(collector.state_dict())
    assert torch.equal(again.posterior(other).model.dense_mean(), model.dense_mean())
    again.observe(other, 2)
    expected = torch.where(other.dense_mean() != 0, (model.dense_mean() + other.dense_mean()) / 2, 0)
    torch.testing.assert_close(again.average.module.dense_mean(), expected)


def same_state(one, other):
    one, other = one["average"], other["average"]
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
