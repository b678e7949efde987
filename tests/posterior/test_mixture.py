"""Ensembles: draws spread over members, and members kept at the ends of the cycles of one training."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer import evaluate
from gossamer.data import two_moons
from gossamer.layers import sparse_weights
from gossamer.posterior import InLayers, Mixture, SingleNetwork, SnapshotPosterior, Snapshots
from gossamer.posterior.mixture import pack, shares
from gossamer.train import checkpoint


def named(value):
    """A posterior whose networks are told by their bias, and whose weight is drawn."""
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Linear(6, 3), density=0.5)
    with torch.no_grad():
        model.bias.fill_(value)
    return InLayers(model, torch.Generator().manual_seed(value))


def biases(posterior, n):
    return [int(network.bias[0]) for network in posterior.draws(n)]


def test_draws_are_spread_evenly_over_the_members():
    mixture = Mixture([named(value) for value in range(4)])
    assert biases(mixture, 8) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert biases(mixture, 7) == [0, 1, 2, 3]  # as many of each, and no more than were asked for
    assert biases(mixture, 2) == [1, 3]
    assert biases(mixture, 1) == [3]
    assert len({float(network.weight.detach().sum()) for network in mixture.draws(8)}) == 8


@pytest.mark.parametrize("members", [1, 3, 7])
def test_shares_are_even_and_complete(members):
    for n in range(1, 30):
        found = shares(n, members)
        assert sum(found) == n
        assert max(found) - min(found) <= 1


def test_what_it_holds_and_predicts():
    members = [named(value) for value in range(3)]
    mixture, x = Mixture(members), torch.randn(5, 6)
    assert mixture.model is members[0].model
    assert mixture.n_bytes == sum(member.n_bytes for member in members)
    prediction = gossamer.predict(mixture, x, n_draws=6)
    again = [named(value) for value in range(3)]
    parts = [gossamer.predict(member, x, n_draws=2).outputs for member in again]
    assert torch.equal(prediction.outputs, torch.cat(parts))


def test_members_of_one_network_each():
    mixture = Mixture([SingleNetwork(named(value).model) for value in range(4)])
    assert biases(mixture, 20) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="at least one posterior"):
        Mixture([])


def point(value):
    return SingleNetwork(named(value).model)


def kept(*values):
    """Fixed networks that are told by their bias."""
    plain = [nn.Linear(6, 3) for _ in values]
    for value, network in zip(values, plain, strict=True):
        nn.init.constant_(network.bias, value)
    return SnapshotPosterior(plain[0], [pack(network) for network in plain])


@pytest.mark.parametrize("n", [6, 7, 20, 41])
@pytest.mark.parametrize(
    "members",
    [
        [lambda: point(0), lambda: named(1)],
        [lambda: named(0), lambda: point(1), lambda: named(2)],
        [lambda: kept(0, 0, 0), lambda: named(1)],
        [lambda: Mixture([point(0), point(0), named(0)]), lambda: point(1), lambda: kept(2, 2)],
        [lambda: Mixture([point(0), point(0)]), lambda: Mixture([point(1), point(1), point(1)])],
    ],
)
def test_every_member_weighs_the_same_whatever_it_is(members, n):
    mixture = Mixture([member() for member in members])
    found = biases(mixture, n)
    counts = [found.count(value) for value in range(len(members))]
    assert len(set(counts)) == 1
    assert sum(counts) == mixture.n_drawn(n) <= n
    again = Mixture([member() for member in members])
    of_predict = gossamer.predict(again, torch.zeros(1, 6), n_draws=n).outputs[:, 0, 0].tolist()
    assert of_predict == [float(value) for value in found]


def test_a_network_that_counts_often_is_computed_once():
    passes = []
    one = point(0)
    one.model.register_forward_hook(lambda module, args, output: passes.append(module))
    outputs = gossamer.predict(Mixture([one, named(1)]), torch.zeros(2, 6), n_draws=10).outputs
    assert outputs.shape == (10, 2, 3)
    assert len(passes) == 1
    prediction = evaluate.predict_inputs(Mixture([one, named(1)]), two_moons.load(), torch.zeros(2, 6), n_draws=10)
    assert prediction.outputs.shape[0] == 10
    assert len(passes) == 2


def test_members_without_noise_disagree():
    mixture = Mixture([SingleNetwork(nn.Linear(6, 3)) for _ in range(5)])
    prediction = gossamer.predict(mixture, 10 * torch.randn(4, 6), n_draws=20)
    assert prediction.outputs.shape[0] == 5
    assert bool((prediction.mutual_information > 0.01).all())


class Cycles:
    """A training whose active entries move, with snapshots of the whole posterior."""

    def __init__(self, std="curvature"):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(10, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 3))
        self.model = gossamer.bayesianize(network, density=0.2, std=std)
        self.optimizer = torch.optim.SGD(gossamer.param_groups(self.model), lr=0.1, momentum=0.9)
        if std == "curvature":
            self.rule = gossamer.Curvature(self.model, self.optimizer, n_data=64)
        options = {"update_period": 2, "replacement_rate": 0.5}
        self.subspace = gossamer.Subspace(self.model, self.optimizer, total_steps=12, **options)
        self.collector = Snapshots(at=gossamer.posterior.ends_of_cycles(12, 3))
        self.x, self.y = torch.randn(64, 10), torch.randint(3, (64,))
        self.kept = []

    def run(self, steps):
        for step in steps:
            torch.manual_seed(step)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
            self.subspace.step()
            self.collector.observe(self.model, step)
            if step in self.collector.at:
                self.kept.append(copy.deepcopy(self.model))
        return self

    def state(self):
        parts = (self.model, self.optimizer, self.subspace, self.collector)
        return {type(part).__name__: part.state_dict() for part in parts}

    def load(self, state):
        for part in (self.model, self.optimizer, self.subspace, self.collector):
            part.load_state_dict(state[type(part).__name__])
        return self


@pytest.mark.parametrize("std", ["curvature", "gradient"])
def test_snapshots_keep_whole_posteriors(std):
    training = Cycles(std).run(range(1, 13))
    posterior, x = training.collector.posterior(training.model), training.x
    torch.manual_seed(3)
    outputs = gossamer.predict(posterior, x, n_draws=6).outputs
    torch.manual_seed(3)
    expected = gossamer.predict(Mixture([InLayers(model) for model in training.kept]), x, n_draws=6).outputs
    assert torch.equal(outputs, expected)
    assert not torch.equal(outputs[0], outputs[1])  # two draws of the first member
    positions = [sparse_weights(model)["0"].support.position for model in training.kept]
    assert not torch.equal(positions[0], positions[1])
    # Less than three replicas: what the draws need, without gradients or momentum.
    assert posterior.n_bytes <= 3 * 1.1 * InLayers(training.model).n_bytes


def test_members_go_on_from_a_checkpoint_to_the_bit(tmp_path):
    whole = Cycles().run(range(1, 13))
    checkpoint.save(tmp_path, Cycles().run(range(1, 7)).state(), 6)
    resumed = Cycles().load(checkpoint.load(tmp_path)).run(range(7, 13))
    assert len(resumed.collector.kept) == len(whole.collector.kept) == 3
    outputs = []
    for training in (whole, resumed):
        torch.manual_seed(3)
        posterior = training.collector.posterior(training.model)
        outputs.append(gossamer.predict(posterior, whole.x, n_draws=9).outputs)
    assert torch.equal(*outputs)


def test_before_the_first_snapshot_it_is_the_posterior_as_it_is():
    training = Cycles()
    posterior = training.collector.posterior(training.model)
    assert len({float(network[0].weight.detach().sum()) for network in posterior.draws(4)}) == 4
