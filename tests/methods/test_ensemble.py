"""ensemble: its members are those that their method trains alone, and its prediction is their mixture."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.files import container
from gossamer.layers import replica, sparse_weights
from gossamer.models import mlp
from gossamer.posterior import Mixture
from gossamer.train import Training, fit
from gossamer.train.members import SEEDS_APART, renew

STEPS, MEMBERS = 60, 3

# Posteriors in layers, in the optimizer, in a collector; supports that move and that shrink; a method that adapts.
OPTIONS = {
    "sgd": {},
    "ssvi": {"density": 0.2, "update_period": 4},
    "rigl": {"density": 0.2, "update_period": 4},
    "cv_adam": {},
    "ivon": {"density": 0.2, "update_period": 4},
    "swag": {"rank": 3},
    "em_mcmc": {"density": 0.3},
    "mc_dropout": {},
    "vd": {},  # dense at first, cut later
    "dpf": {"density": 0.2},  # holds entries back until it lets go of them
}


@pytest.fixture(scope="module")
def task():
    return digits.load()


def network():
    torch.manual_seed(0)
    return mlp(64, (16,))


def build(task, member, **options):
    given = {"member": member, "members": MEMBERS, "member_options": OPTIONS[member]}
    return methods.build("ensemble", task, STEPS, **given | options)


def drawn(posterior):
    torch.manual_seed(3)
    return [nn.utils.parameters_to_vector(one.parameters()).detach().clone() for one in posterior.draws(1)]


@pytest.mark.parametrize("member", OPTIONS)
def test_members_are_those_that_are_trained_alone(task, member):
    posterior = fit(build(task, member), network(), task, STEPS, batch_size=50)
    assert isinstance(posterior, Mixture)
    assert len(posterior.posteriors) == MEMBERS
    for number, together in enumerate(posterior.posteriors):
        seed, start = number * SEEDS_APART, network()
        if number:
            torch.manual_seed(seed)
            renew(start)
        method = methods.build(member, task, STEPS // MEMBERS, **OPTIONS[member])
        alone = fit(method, start, task, STEPS // MEMBERS, batch_size=50, seed=seed)
        assert type(alone) is type(together)
        assert torch.equal(*(torch.cat(drawn(one)) for one in (alone, together)))


def of_ssvi(task, **options):
    return methods.build("ssvi", task, STEPS, density=0.2, update_period=4, members=2, **options)


@pytest.mark.parametrize("options", [{}, {"cycles": 3}, {"std": "gradient"}])
def test_members_of_ssvi_are_trained_in_full_and_alone(task, options):
    posterior = fit(of_ssvi(task, **options), network(), task, STEPS, batch_size=50)
    assert isinstance(posterior, Mixture)
    for number, together in enumerate(posterior.posteriors):
        seed, start = number * SEEDS_APART, network()
        if number:
            torch.manual_seed(seed)
            renew(start)
        method = methods.build("ssvi", task, STEPS, density=0.2, update_period=4, **options)
        alone = fit(method, start, task, STEPS, batch_size=50, seed=seed)
        assert type(alone) is type(together)
        assert torch.equal(*(torch.cat(drawn(one)) for one in (alone, together)))
    first, second = (sparse_weights(one.model)["1"].support.position for one in posterior.posteriors)
    assert not torch.equal(first, second)
    x = task.transform(task.test[0])
    assert gossamer.predict(posterior, x, n_draws=20).mutual_information.mean() > 0.001


@pytest.mark.parametrize("stop", [STEPS - 1, STEPS, STEPS + 1, STEPS + 23])
def test_members_of_ssvi_resume_to_the_bit(task, stop):
    def start():
        return Training(of_ssvi(task), network(), task, STEPS, batch_size=50)

    whole = start()
    losses = [float(values["loss"]) for values in whole.run()]
    assert len(losses) == whole.steps == 2 * STEPS
    first = start()
    for _ in first.run(stop):
        pass
    state = container.from_bytes(container.to_bytes(first.state_dict()))
    second = start()
    second.load_state_dict(state)
    assert [float(values["loss"]) for values in second.run()] == losses[stop:]
    for one, other in zip(whole.posterior().posteriors, second.posterior().posteriors, strict=True):
        assert torch.equal(torch.cat(drawn(one)), torch.cat(drawn(other)))


def test_the_prediction_is_the_mean_over_the_members(task):
    posterior = fit(build(task, "sgd"), network(), task, STEPS)
    x = task.transform(task.test[0][:9])
    parts = [gossamer.predict(one, x, n_draws=1).probs for one in posterior.posteriors]
    assert torch.equal(gossamer.predict(posterior, x, n_draws=MEMBERS).probs, torch.stack(parts).mean(0))
    assert not torch.equal(parts[0], parts[1])


@pytest.mark.parametrize("member", ["ssvi", "ivon", "swag"])
@pytest.mark.parametrize("stop", [19, 20, 33, 60])
def test_it_resumes_to_the_bit(task, member, stop):
    def start():
        return Training(build(task, member), network(), task, STEPS, batch_size=50)

    whole = start()
    losses = [float(values["loss"]) for values in whole.run()]
    first = start()
    for _ in first.run(stop):
        pass
    state = container.from_bytes(container.to_bytes(first.state_dict()))
    second = start()
    second.load_state_dict(state)
    assert [float(values["loss"]) for values in second.run()] == losses[stop:]
    assert first.updates + second.updates == whole.updates
    for one, other in zip(whole.posterior().posteriors, second.posterior().posteriors, strict=True):
        assert torch.equal(torch.cat(drawn(one)), torch.cat(drawn(other)))


def test_before_its_first_member_is_trained_it_is_that_member(task):
    training = Training(build(task, "sgd"), network(), task, STEPS)
    counts = []
    for _ in training.run():
        counts.append(len(training.posterior().posteriors))
    assert counts == [1] * 39 + [2] * 20 + [3]
    assert training.lr == pytest.approx(methods.build("sgd", task, 20).lr(19))


def test_steps_of_updates_are_those_of_the_whole_training(task):
    training = Training(build(task, "rigl"), network(), task, STEPS)
    for _ in training.run():
        pass
    assert [update["step"] for update in training.updates] == [4, 8, 12, 24, 28, 32, 44, 48, 52]


def test_the_last_member_takes_the_steps_that_are_left(task):
    method = methods.build("ensemble", task, 11, members=2)
    training = Training(method, network(), task, 11)
    rates = [training.lr for _ in training.run()]
    assert rates[:5] == rates[5:10]
    assert rates[10] == 0


def test_pretrained_members_start_from_the_given_weights(task):
    start = network()
    given = replica(start)
    training = Training(build(task, "sgd", fresh=False, members=2), start, task, STEPS)
    for _ in training.run(30):
        pass
    training.succession.finish(training.model, training.collector, training.inner_optimizer)
    training._begin_again()
    for one, other in zip(training.model.parameters(), given.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 0}, "members must be between 1 and the number of steps; got 0 members in 60 steps"),
        ({"member": "sdg"}, "unknown method 'sdg'; did you mean 'sgd'"),
        ({"member": "ensemble"}, "an ensemble with more members: raise members"),
        ({"member": "multiswag", "member_options": {}}, "an ensemble with more members: raise members"),
        ({"member": "ssvi", "member_options": {"members": 2}}, "an ensemble with more members: raise members"),
        ({"member_options": {"densty": 0.1}, "member": "ssvi"}, "unknown option of ssvi 'densty'; did you mean 'den"),
    ],
)
def test_wrong_options_are_named(task, options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("ensemble", task, STEPS, **options)


def test_multiswag_is_an_ensemble_of_swag(task):
    options = {"rank": 3, "lr": 0.05}
    multi = fit(methods.build("multiswag", task, STEPS, **options), network(), task, STEPS)
    by_hand = build(task, "swag", member_options=options)
    for one, other in zip(multi.posteriors, fit(by_hand, network(), task, STEPS).posteriors, strict=True):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.deviations, other.deviations)


def orthogonal():
    layer = nn.Linear(8, 8)
    nn.init.orthogonal_(layer.weight)
    return layer


def forgetful():
    """An LSTM whose forget gates start open, as their papers have it."""
    layer = nn.LSTM(4, 6)
    nn.init.ones_(layer.bias_ih_l0.data[6:12])
    return layer


def scaled():
    layer = nn.Linear(30, 30)
    nn.init.normal_(layer.weight, std=1.0)
    return layer


class Token(nn.Module):
    """Random weights that it cannot draw again."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(5))


@pytest.mark.parametrize("build", [orthogonal, forgetful, scaled, Token])
def test_weights_of_another_law_are_never_drawn_by_torchs(build):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"build=….*fresh=False"):
        renew(nn.Sequential(build()))


def test_a_single_bias_tells_nothing_of_its_law():
    torch.manual_seed(0)
    network = nn.Linear(50, 1)
    before = network.bias.clone()
    renew(network)
    assert not torch.equal(network.bias, before)


def test_layers_of_torchs_law_are_drawn_again():
    """With constants, repeated zeros (padding) and more entries than float32 has numbers in their range."""
    for seed in range(20):
        torch.manual_seed(seed)
        layers = [nn.Linear(64, 10), nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.LSTM(8, 8), nn.Embedding(9, 4, 0)]
        network = nn.ModuleList([*layers, *([nn.Linear(2000, 1500)] if seed < 2 else [])])
        before = [parameter.clone() for parameter in network.parameters()]
        renew(network)
        for one, other in zip(before, network.parameters(), strict=True):
            assert torch.equal(one, other) == bool((one == one.flatten()[0]).all())


def test_members_start_from_networks_that_are_built_anew(task):
    """Orthogonal weights stay so, and differ from member to member."""

    def build():
        network = mlp(64, (16,))
        nn.init.orthogonal_(network[1].weight)
        return network

    torch.manual_seed(0)
    training = Training(build_ensemble(task), build(), task, STEPS, build=build)
    first = training.model[1].weight.detach().clone()
    for _ in training.run(STEPS // 3):
        pass
    training.succession.finish(training.model, training.collector, training.inner_optimizer)
    training._begin_again()
    second = training.model[1].weight.detach()
    torch.testing.assert_close(second @ second.T, torch.eye(16), rtol=0, atol=1e-5)
    assert not torch.equal(first.sort().values, second.sort().values)
    alone = build_seeded(build, SEEDS_APART)
    assert torch.equal(second, alone[1].weight)  # as a run with the seed of that member begins


def build_ensemble(task):
    return methods.build("ensemble", task, STEPS, member="sgd", members=3)


def build_seeded(build, seed):
    torch.manual_seed(seed)
    return build()


def test_without_the_function_that_built_it_a_network_of_another_law_is_refused(task):
    torch.manual_seed(0)
    network = mlp(64, (16,))
    nn.init.orthogonal_(network[1].weight)
    with pytest.raises(ValueError, match=r"'1\.weight' does not follow the law by which its layer draws weights"):
        fit(build_ensemble(task), network, task, STEPS)
