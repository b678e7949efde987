"""Networks kept during training: at the right steps, without their zeros, and drawn as they were."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.posterior import Refresh, SingleNetwork, Snapshots, ends_of_cycles, predict
from gossamer.posterior.mixture import pack, packed_bytes, unpack
from gossamer.schedules import cyclical
from gossamer.train import checkpoint


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def shift(model, by):
    """Another network of the same structure, told by its last bias."""
    with torch.no_grad():
        model[-1].bias.fill_(by)


@settings(deadline=None, derandomize=True)
@given(cycles=st.integers(1, 7), steps=st.integers(7, 400))
def test_the_end_of_a_cycle_is_where_the_rate_is_lowest(cycles, steps):
    ends = ends_of_cycles(steps, cycles)
    assert len(ends) == cycles
    assert ends[-1] == steps
    rate = cyclical(1.0, steps, cycles)
    for end in ends:  # the rate of step number n is rate(n - 1)
        assert rate(end) > rate(end - 1) or end - 1 == 0 or steps == cycles


def test_several_a_cycle_are_a_fiftieth_of_it_apart():
    assert ends_of_cycles(2000, 4, per_cycle=3) == [
        end - before for end in (500, 1000, 1500, 2000) for before in (20, 10, 0)
    ]
    assert ends_of_cycles(100, 3, per_cycle=2) == [33, 34, 66, 67, 99, 100]


@pytest.mark.parametrize(("steps", "per_cycle", "spacing"), [(8, 3, None), (100, 3, 30), (100, 0, 1), (100, 1, 0)])
def test_snapshots_that_do_not_fit_are_refused(steps, per_cycle, spacing):
    with pytest.raises(ValueError, match=r"do not fit into cycles of .* train longer, or take fewer"):
        ends_of_cycles(steps, 4, per_cycle, spacing)


def collect(model, steps, at, **options):
    snapshots = Snapshots(at, **options)
    for step in range(1, steps + 1):
        shift(model, step)
        snapshots.observe(model, step)
    return snapshots


def drawn_steps(posterior, n):
    return [int(drawn[-1].bias[0]) for drawn in posterior.draws(n)]


def test_it_keeps_the_networks_of_its_steps_and_draws_them_evenly():
    model = network()
    posterior = collect(model, 12, at=range(1, 13)).posterior(model)
    assert drawn_steps(posterior, 12) == list(range(1, 13))
    assert drawn_steps(posterior, 100) == list(range(1, 13))  # there are no more
    assert drawn_steps(posterior, 4) == [3, 6, 9, 12]
    assert drawn_steps(posterior, 1) == [12]
    assert drawn_steps(collect(model, 12, at=[3, 12]).posterior(model), 5) == [3, 12]


def test_a_draw_is_a_network_in_evaluation_mode_and_the_model_is_left_alone():
    model = network()
    posterior = collect(model, 4, at=[1, 2]).posterior(model)
    before = copy.deepcopy(model.state_dict())
    for drawn in posterior.draws(2):
        assert not any(module.training for module in drawn.modules())
        with torch.no_grad():
            drawn[0].weight.zero_()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert drawn_steps(posterior, 2) == [1, 2]


def test_before_the_first_snapshot_it_is_the_network_itself():
    assert isinstance(Snapshots(at=[5]).posterior(network()), SingleNetwork)


def test_it_goes_on_from_a_checkpoint(tmp_path):
    whole = collect(network(), 12, at=[2, 4, 9])
    model, first = network(), Snapshots(at=[2, 4, 9])
    for step in range(1, 7):
        shift(model, step)
        first.observe(model, step)
    checkpoint.save(tmp_path, first.state_dict(), 6)
    second = Snapshots(at=[2, 4, 9])
    second.load_state_dict(checkpoint.load(tmp_path))
    for step in range(7, 13):
        shift(model, step)
        second.observe(model, step)
    assert drawn_steps(second.posterior(model), 3) == [2, 4, 9]
    x = torch.randn(5, 6)
    for one, other in zip(whole.posterior(model).draws(3), second.posterior(model).draws(3), strict=True):
        assert torch.equal(one(x), other(x))


def test_a_state_is_of_its_moment():
    model = network()
    snapshots = collect(model, 3, at=[2])
    state = snapshots.state_dict()
    snapshots.at = frozenset([4])
    snapshots.observe(model, 4)
    assert (len(state["kept"]), len(snapshots.kept)) == (1, 2)


def test_it_pickles_and_predicts():
    model = network()
    posterior = collect(model, 6, at=[2, 4, 6]).posterior(model)
    x = torch.randn(7, 6)
    prediction = predict(pickle.loads(pickle.dumps(posterior)), x, n_draws=3)
    assert prediction.samples.shape == (3, 7, 3)
    torch.testing.assert_close(prediction.outputs, predict(posterior, x, n_draws=3).outputs)


def test_a_pruned_network_is_kept_without_its_zeros():
    model = nn.Linear(100, 50)
    with torch.no_grad():
        model.weight.mul_(torch.rand(50, 100) < 0.1)
    n_kept = int((model.weight != 0).sum())
    snapshots = Snapshots(at=[1])
    snapshots.observe(model, 1)
    assert snapshots.posterior(model).n_bytes == 8 * n_kept + 4 * 50  # a value and a position each, and the biases
    drawn = next(snapshots.posterior(model).draws(1))
    assert torch.equal(drawn.weight, model.weight)


@pytest.mark.parametrize("density", [0.0, 0.3, 0.49, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_packing_keeps_every_number_and_never_takes_more(density, dtype):
    torch.manual_seed(0)
    layer = nn.Module()
    values = (torch.randn(30, 40) * 100 * (torch.rand(30, 40) < density)).to(dtype)
    layer.register_buffer("x", values)
    layer.register_buffer("number", torch.tensor(3, dtype=dtype))
    packed = pack(layer)
    state = unpack(packed)
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())
    assert all(state[name].dtype == dtype for name in state)
    assert packed_bytes(packed) <= values.element_size() * (values.numel() + 1)
    values.zero_()  # a copy, not a view
    assert all(torch.equal(unpack(packed)[name], state[name]) for name in state)


class Counting(nn.Linear):
    """A layer with a state that is no tensor."""

    calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_states_that_are_no_tensors_are_kept_too():
    model = Counting(2, 2)
    snapshots = Snapshots(at=[1, 2])
    for model.calls in (1, 2):
        snapshots.observe(model, model.calls)
    assert [drawn.calls for drawn in snapshots.posterior(model).draws(2)] == [1, 2]


def test_a_sparse_network_is_kept_as_its_active_entries():
    torch.manual_seed(0)
    model = gossamer.sparsify(nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 3)), density=0.1)
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    options = {"update_period": 2, "replacement_rate": 0.5, "removal": "magnitude"}
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, **options)
    snapshots, x, y = Snapshots(at=[1, 5, 9]), torch.randn(16, 40), torch.randint(3, (16,))
    expected = []
    for step in range(1, 10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        subspace.step()
        snapshots.observe(model, step)
        if step in snapshots.at:
            expected.append({name: weight.dense_mean().detach() for name, weight in sparse_weights(model).items()})
    posterior = snapshots.posterior(model)
    for drawn, dense in zip(posterior.draws(3), expected, strict=True):
        assert type(drawn[0]) is nn.Linear
        assert torch.equal(drawn[0].weight, dense["0"])
        assert torch.equal(drawn[2].weight, dense["2"])
    n_active = gossamer.active_parameters(model)
    assert posterior.n_bytes <= 3 * (8 * n_active + 4 * 53)
    assert not torch.equal(expected[0]["0"] != 0, expected[2]["0"] != 0)  # the subspace moved in between


def test_batch_normalisation_is_refreshed_for_each_draw():
    model, x = network(), torch.randn(200, 6) * 3 + 1
    refresh = Refresh(x, transform=lambda batch: batch / 2, batch_size=200)
    posterior = collect(model, 3, at=[1, 3], refresh=refresh).posterior(model)
    for drawn in posterior.draws(2):
        z = drawn[0](x / 2)
        torch.testing.assert_close(drawn[1].running_mean, z.mean(0))
        torch.testing.assert_close(drawn[1].running_var, z.var(0))
        assert not drawn[1].training
