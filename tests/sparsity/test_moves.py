"""Moves under every optimizer of torch: the state of an entry follows it to its new slot, new entries start at zero."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import GaussianWeight, sparse_weights
from gossamer.schedules import constant
from gossamer.sparsity import selection
from gossamer.sparsity.moves import Moved, WeightBatch, forget_histories, move
from gossamer.sparsity.selection import Segments

OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adadelta": {},
    "ASGD": {},
    "Rprop": {},
    "Adafactor": {},
    "SGD fused": {"momentum": 0.9, "fused": True},
    "AdamW fused": {"amsgrad": True, "fused": True},
}
OTHERS = {
    "LBFGS": "its state runs over all parameters: tested below",
    "SparseAdam": "takes sparse gradients only",
    "Muon": "takes matrices only",
}


GRADIENT = partial(gossamer.bayesianize, std="gradient")


def test_every_optimizer_of_torch_is_in_the_table():
    kinds = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    kinds = {name for name in kinds if issubclass(getattr(torch.optim, name), torch.optim.Optimizer)}
    assert kinds - {"Optimizer"} <= set(OPTIMIZERS) | set(OTHERS)


def network():
    torch.manual_seed(0)
    return gossamer.bayesianize(
        nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 4)), density=0.4, std="gradient"
    )


def dense(vector, position):
    """By flat position, so that an entry is found wherever its slot is."""
    return dict(zip(position.tolist(), vector.tolist(), strict=True))


def vectors(model, optimizer):
    """(weight, parameter, key) -> dense values of every state tensor with one number an entry, and the other state."""
    follows, stays = {}, {}
    for name, weight in sparse_weights(model).items():
        for vector in weight.vectors:
            parameter = weight.get_parameter(vector)
            for key, value in {"": parameter.detach(), **optimizer.state[parameter]}.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    follows[name, vector, key] = dense(value, weight.support.position)
                else:
                    stays[name, vector, key] = float(value)
    return follows, stays


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("row", OPTIMIZERS)
def test_state_follows_its_entry(row, scope):
    model = network()
    kind = getattr(torch.optim, row.split()[0])
    optimizer = kind(gossamer.param_groups(model), lr=0.01, **OPTIMIZERS[row])
    options = {"update_period": 4, "replacement_rate": constant(0.4), "scope": scope}
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, **options)
    x, y = torch.randn(32, 12), torch.randn(32, 4)
    loss = torch.zeros(())  # held until the next one is there, and with it the graph, as in everyone's loop
    n_relocated = n_new = 0
    for number in range(1, 21):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean() + gossamer.kl(model) / 1000
        loss.backward()
        optimizer.step()
        before, scalars = vectors(model, optimizer)
        slots = {name: weight.support.position.tolist() for name, weight in sparse_weights(model).items()}
        assert subspace.step() is (number in (4, 8, 12))
        after, scalars_after = vectors(model, optimizer)
        assert scalars_after == scalars
        for (name, vector, key), values in after.items():
            old = before[name, vector, key]
            if key:
                assert values == {position: old.get(position, 0.0) for position in values}
            else:  # the parameter itself
                assert all(value == old[position] for position, value in values.items() if position in old)
                n_new += len(values.keys() - old.keys())
        for name, weight in sparse_weights(model).items():
            old_slot = {position: slot for slot, position in enumerate(slots[name])}
            n_relocated += sum(old_slot.get(p, s) != s for s, p in enumerate(weight.support.position.tolist()))
        assert loss.isfinite()
    assert min(n_relocated, n_new) > 10
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("batched", [False, True])
def test_the_states_of_several_optimizers_follow(batched, monkeypatch):
    """SGD for the means, Adam for the stds: both must find the entries where they went."""
    monkeypatch.setattr(selection, "DEVICES", {"cpu"} if batched else set())
    model = network()
    weights = sparse_weights(model)
    means, stds = [weight.mean for weight in weights.values()], [weight.raw_std for weight in weights.values()]
    first = torch.optim.SGD([*means, model[0].bias, model[2].bias], lr=0.01, momentum=0.9)
    second = torch.optim.Adam(stds, lr=0.01)
    options = {"update_period": 2, "replacement_rate": constant(0.4), "until": 1.0}
    subspace = gossamer.Subspace(model, [first, second], total_steps=20, **options)
    x, y = torch.randn(32, 12), torch.randn(32, 4)

    def states():
        found = {}
        for name, weight in sparse_weights(model).items():
            position = weight.support.position
            found[name, "momentum"] = dense(first.state[weight.mean]["momentum_buffer"], position)
            for key in ("exp_avg", "exp_avg_sq"):
                found[name, key] = dense(second.state[weight.raw_std][key], position)
        return found

    n_new = 0
    for number in range(1, 9):
        first.zero_grad()
        second.zero_grad()
        ((model(x) - y).square().mean() + gossamer.kl(model) / 1000).backward()
        first.step()
        second.step()
        before = states()
        assert subspace.step() is (number % 2 == 0)
        for key, values in states().items():
            assert values == {position: before[key].get(position, 0.0) for position in values}
            n_new += len(values.keys() - before[key].keys())
    assert n_new > 10


def test_layers_that_no_optimizer_holds_stay_as_they_are():
    model = network()
    head = model[2]
    optimizer = torch.optim.SGD([*model[0].parameters()], lr=0.01)
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, update_period=1, replacement_rate=constant(0.4))
    state = {name: value.clone() for name, value in head.state_dict().items()}
    start = model[0].support.position.clone()
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(32, 12)).square().mean().backward()
        optimizer.step()
        assert subspace.step()
    assert not torch.equal(model[0].support.position, start)
    assert all(torch.equal(value, state[name]) for name, value in head.state_dict().items())
    assert all(set(entry["active"]) == {"0"} for entry in subspace.record)
    optimizer.add_param_group({"params": list(head.parameters())})  # unfrozen later on
    model(torch.randn(32, 12)).square().mean().backward()
    subspace.step()
    model(torch.randn(32, 12)).square().mean().backward()
    subspace.step()
    assert set(subspace.record[-1]["active"]) == {"0", "2"}


@pytest.mark.parametrize("convert", [GRADIENT, gossamer.sparsify])
@pytest.mark.parametrize("max_iter", [1, 4])
def test_lbfgs_forgets_its_history_and_goes_on(convert, max_iter):
    torch.manual_seed(0)
    model = convert(nn.Linear(12, 4, bias=False), density=0.4)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=max_iter)
    options = {"update_period": 3, "replacement_rate": constant(0.4), "removal": "magnitude"}
    subspace = gossamer.Subspace(model, optimizer, total_steps=30, addition="mean_gradient", **options)
    x, y = torch.randn(32, 12), torch.randn(32, 4)
    losses = []

    def closure():
        optimizer.zero_grad()
        torch.manual_seed(1)  # a deterministic function of the weights, as L-BFGS wants it
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(30):
        losses.append(float(optimizer.step(closure).detach()))
        updated = subspace.step()
        first = optimizer.state[model.mean]
        assert (len(first) == 0) is updated
    assert len(subspace.record) == 7
    assert losses[-1] < 0.9 * losses[0]


def test_a_move_without_optimizer_and_a_gradient_is_enough(hand_made):
    layer = hand_made.layer
    layer.mean.grad = torch.arange(6.0)
    batch = WeightBatch({"": layer.weight})
    to = Moved.to(batch, torch.tensor([2, 3, 8]), Segments([3], torch.device("cpu")))
    assert to.is_new.tolist() == [False, True, False]
    move(batch, to, batch.regrown(torch.ones(6, dtype=torch.bool), None))
    assert hand_made.by_position(layer.mean) == {2: -1.0, 3: 0.0, 8: -4.0}
    assert layer.mean.grad.tolist() == [1.0, 0.0, 4.0]
    assert layer.weight.raw_std.grad is None
    hand_made.loss().backward()
    assert layer.mean.grad.tolist() == pytest.approx([1.8, 0.2, 3.6])


def test_storage_stays_where_it_is_when_the_count_does(hand_made):
    """What CUDA graphs, compiled code and flattened gradients hold on to."""
    layer = hand_made.layer
    optimizer = torch.optim.Adam(layer.parameters())
    hand_made.loss().backward()
    optimizer.step()
    tensors = [layer.support.position, layer.mean, layer.mean.grad, *optimizer.state[layer.mean].values()]
    addresses = [tensor.data_ptr() for tensor in tensors]
    batch = WeightBatch({"": layer.weight})
    regrown = batch.regrown(torch.ones(6, dtype=torch.bool), None)
    move(batch, Moved.to(batch, torch.tensor([1, 2, 3, 4, 5, 6])), regrown, [optimizer])
    tensors = [layer.support.position, layer.mean, layer.mean.grad, *optimizer.state[layer.mean].values()]
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert layer.support.position.tolist() == [1, 2, 3, 4, 5, 6]


def test_only_histories_are_forgotten():
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.Adam(parameters)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()
    forget_histories(optimizer)
    assert all(set(optimizer.state[parameter]) == {"step", "exp_avg", "exp_avg_sq"} for parameter in parameters)


class Own(GaussianWeight):
    """A kind that nobody here knows."""


@pytest.mark.parametrize("convert", [GRADIENT, gossamer.bayesianize, gossamer.sparsify])
def test_stats(convert, mlp):
    weights = sparse_weights(mlp(convert))
    joint = WeightBatch(weights).stats()
    assert torch.equal(joint.mean, torch.cat([weight.mean for weight in weights.values()]))
    if convert is gossamer.sparsify:
        assert joint.std is None
    else:
        torch.testing.assert_close(joint.std, torch.cat([weight.std for weight in weights.values()]).detach())
        assert not joint.std.requires_grad


@pytest.mark.parametrize("devices", [set(), {"cpu"}])
@pytest.mark.parametrize("regrow_std", [None, "mean", "mean_raw", 0.3])
@pytest.mark.parametrize("convert", [GRADIENT, gossamer.bayesianize, gossamer.sparsify])
def test_regrown(convert, regrow_std, devices, mlp, monkeypatch):
    monkeypatch.setattr(selection, "DEVICES", devices)
    weights = sparse_weights(mlp(convert))
    for weight in weights.values():
        if weight.std is not None:
            weight.set_std(torch.rand_like(weight.mean) + 0.1)
    masks = [torch.rand(len(weight.mean)) < 0.6 for weight in weights.values()]
    together = WeightBatch(weights).regrown(torch.cat(masks), regrow_std)
    for number, (weight, mask) in enumerate(zip(weights.values(), masks, strict=True)):
        expected = weight.regrown(mask, regrow_std)
        torch.testing.assert_close({name: values[number] for name, values in together.items()}, expected)


def test_only_weights_of_one_known_kind_are_one(mlp):
    def are_one_kind(*weights):
        return WeightBatch(dict(enumerate(weights))).is_one_kind

    first, second = sparse_weights(mlp()).values()
    assert are_one_kind(first, second)
    assert not are_one_kind(first, *sparse_weights(mlp(gossamer.sparsify)).values())
    first.mode = "reference"
    assert not are_one_kind(first, second)
    first.mode = "default"
    assert not are_one_kind(first, second.to(torch.float64))
    assert not are_one_kind(Own(first.support, first.mean.detach(), first.std.detach(), prior_std=1.0))


def test_an_optimizer_that_was_not_given_is_noticed():
    """Its moments would stay where they are while the entries move."""
    model = gossamer.bayesianize(nn.Linear(20, 10), density=0.2, std="gradient")
    means = torch.optim.SGD([model.weight.mean], lr=0.1)
    with pytest.warns(UserWarning, match=r"no optimizer of this subspace holds .*raw_std"):
        gossamer.Subspace(model, means, total_steps=10)
    model.weight.raw_std.requires_grad_(False)
    gossamer.Subspace(model, means, total_steps=10)
