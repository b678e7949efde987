"""Networks and posteriors come back from one file as they were; a file that is not theirs is a ValueError."""

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import gossamer
from gossamer import methods
from gossamer.data import two_moons
from gossamer.deploy.files import _of_network
from gossamer.files import container
from gossamer.layers import PointWeight, SparseWeight, replica, sparse_weights
from gossamer.methods.bayes_compression import ScaledWeight
from gossamer.methods.laplace import LastLayerPosterior
from gossamer.methods.mc_dropout import Dropped, with_dropout
from gossamer.methods.rank1 import FactorPosterior, with_factors
from gossamer.methods.sbp import GatedWeight
from gossamer.methods.svbnn import SpikeSlabWeight
from gossamer.methods.vd import LogUniformWeight
from gossamer.models import mlp
from gossamer.posterior import (
    GaussianPosterior,
    InLayers,
    Mixture,
    Refresh,
    SingleNetwork,
    SnapshotPosterior,
    SwagPosterior,
    averaged,
)
from gossamer.posterior.mixture import pack
from gossamer.types import Posterior


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 3))


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def bayesian(**options) -> nn.Module:
    return gossamer.bayesianize(network(), **{"density": 0.4, **options})


def snapshots() -> SnapshotPosterior:
    first, second = bayesian(density=0.3), bayesian(density=0.5)
    return SnapshotPosterior(second, [pack(first), pack(second)])


def gaussian() -> GaussianPosterior:
    model = gossamer.sparsify(network(), density=0.5)
    return GaussianPosterior(model, {name: torch.rand_like(p) for name, p in model.named_parameters()})


def swag() -> SwagPosterior:
    n = sum(p.numel() for p in network().parameters())
    return SwagPosterior(network(), torch.randn(n), torch.rand(n), torch.randn(3, n), scale=0.25)


POSTERIORS = {
    "in layers": lambda: InLayers(bayesian()),
    "gradient": lambda: InLayers(bayesian(std="gradient", prior_std=0.3)),
    "reference": lambda: InLayers(bayesian(mode="reference")),
    "global": lambda: InLayers(bayesian(allocation="global")),
    "dense": lambda: InLayers(bayesian(density=1.0)),
    "partly": lambda: InLayers(bayesian(exclude=["2"])),
    "point": lambda: SingleNetwork(gossamer.sparsify(network(), density=0.3)),
    "plain": lambda: SingleNetwork(network()),
    "snapshots": snapshots,
    "gaussian": gaussian,
    "swag": swag,
    "last layer": lambda: LastLayerPosterior(network(), "2", torch.randn(39), torch.randn(39, 39)),
    "dropout": lambda: Dropped(with_dropout(network(), rate=0.3)),
    "factors": lambda: FactorPosterior(with_factors(network(), members=3)),
    "mixture": lambda: Mixture([InLayers(bayesian()), swag(), Mixture([SingleNetwork(network())])]),
}


def outputs(posterior: Posterior | nn.Module, n_draws: int = 4) -> Tensor:
    torch.manual_seed(1)
    x = torch.randn(5, 8)
    return gossamer.predict(posterior, x, n_draws).outputs


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_posterior_comes_back(name: str, tmp_path: Path):
    posterior = POSTERIORS[name]()
    expected = outputs(posterior)
    again = gossamer.load(gossamer.save(posterior, tmp_path / "net"), network())
    assert type(again) is type(posterior)
    assert torch.equal(outputs(again), expected)


@pytest.mark.parametrize("kind", [LogUniformWeight, ScaledWeight, SpikeSlabWeight, GatedWeight])
def test_weights_of_other_kinds(kind, tmp_path: Path):
    def random(dense, support):
        weight = kind.blank(support, dense.values)
        for parameter in weight.parameters():
            nn.init.normal_(parameter)
        return weight

    posterior = InLayers(gossamer.sparsity.convert.convert(network(), random, density=0.5))
    expected = outputs(posterior)
    assert torch.equal(outputs(gossamer.load(gossamer.save(posterior, tmp_path / "net"), network())), expected)


def test_a_network_comes_back_and_trains_on(tmp_path: Path):
    model = bayesian(allocation="global", prior_std=0.7)
    gossamer.calibrate(model, torch.randn(50, 8), torch.randint(3, (50,)), widths=[0.5])
    again = gossamer.load(gossamer.save(model, tmp_path / "net"), network())
    assert isinstance(again, nn.Module)
    assert torch.equal(outputs(again), outputs(model))
    for name, weight in sparse_weights(again).items():
        other = sparse_weights(model)[name]
        assert weight.support.shares_budget
        assert (weight.prior_std, weight.calibration) == (other.prior_std, other.calibration)
    optimizer = torch.optim.Adam(gossamer.param_groups(again), lr=0.01)
    gossamer.Curvature(again, optimizer, n_data=100)
    again(torch.randn(4, 8)).sum().backward()
    optimizer.step()


def test_into_a_network_that_is_converted_already(tmp_path: Path):
    model = bayesian(density=0.3)
    file = gossamer.save(model, tmp_path / "net")
    assert torch.equal(outputs(gossamer.load(file, bayesian(density=0.9))), outputs(model))
    with pytest.raises(ValueError, match=r"network/weight is CurvatureWeight, .* has others; give the plain network"):
        gossamer.load(file, gossamer.sparsify(network(), density=0.3))
    plain = gossamer.save(network(), tmp_path / "plain")
    with pytest.raises(ValueError, match="is converted; give the plain one"):
        gossamer.load(plain, model)


def test_an_average_and_a_bare_layer(tmp_path: Path):
    model = bayesian()
    average = averaged(model)
    average.update_parameters(model)
    again = gossamer.load(gossamer.save(average, tmp_path / "net"), network())
    assert torch.equal(outputs(again), outputs(average.module))
    layer = gossamer.bayesianize(nn.Linear(8, 3), density=0.5)
    assert torch.equal(outputs(gossamer.load(gossamer.save(layer, tmp_path / "net"), nn.Linear(8, 3))), outputs(layer))


def test_half_precision_halves_the_numbers(tmp_path: Path):
    model = gossamer.bayesianize(nn.Linear(1000, 100), density=0.1)
    n = gossamer.active_parameters(model)
    half, full = (gossamer.save(model, tmp_path / str(d), dtype=d).stat().st_size for d in ("bf16", None))
    assert full - half == 2 * 2 * n + 2 * 100  # two numbers per active weight, and the biases
    assert half < (2 * 2 + 2) * n + 3000  # positions take a byte or two, not four
    again = gossamer.load(tmp_path / "bf16", nn.Linear(1000, 100))
    assert again.weight.mean.dtype == torch.float32
    torch.testing.assert_close(again.mean, model.mean, rtol=2**-8, atol=0)
    torch.testing.assert_close(again.std, model.std, rtol=2**-8, atol=0)
    assert again.weight.prior_std == model.weight.prior_std


@pytest.mark.parametrize(("convert", "most"), [(gossamer.bayesianize, 6), (gossamer.sparsify, 4)])
def test_five_sparse_networks_are_smaller_than_one_dense_network(convert, most: int, tmp_path: Path):
    """Two bytes for each mean and each curvature, one or two for each position; biases and names are in the file, too.

    At 5 % that is at most 5 · 0.05 · 6/4 of a dense network in float32, and less where a byte holds most positions.
    """

    def dense() -> nn.Module:
        return gossamer.models.mlp(784, (300, 100))

    mixture = Mixture([InLayers().posterior(convert(dense(), density=0.05)) for _ in range(5)])
    n_active = sum(gossamer.active_parameters(member.model) for member in mixture.posteriors)
    n_dense = 4 * sum(parameter.numel() for parameter in dense().parameters())
    n_file = gossamer.save(mixture, tmp_path / "net", dtype="bf16").stat().st_size
    assert n_file < (most - 0.5) * n_active  # mean gaps of 20: a byte each but for a few
    assert n_file < n_dense / 3
    again = gossamer.load(tmp_path / "net", dense())
    assert isinstance(again, Mixture)
    for before, after in zip(mixture.posteriors, again.posteriors, strict=True):
        stored = sparse_weights(after.model)
        for name, weight in sparse_weights(before.model).items():
            assert torch.equal(stored[name].support.position, weight.support.position)
            for vector in weight.vectors:
                found, expected = getattr(stored[name], vector), getattr(weight, vector)
                torch.testing.assert_close(found, expected, rtol=2**-8, atol=0)
    assert gossamer.predict(again, torch.randn(3, 784), n_draws=20).outputs.shape[1:] == (3, 10)


def trained(**options) -> Posterior:
    """By curvature, for so long that σ is drawn towards what squared gradients say."""
    task = two_moons.load()
    method = methods.build("ssvi", task, 30, density=0.5, update_period=5, **options)
    return gossamer.fit(method, mlp(2, (16, 16), 2), task, 30)


def drawn(posterior: Posterior) -> Tensor:
    torch.manual_seed(7)
    return torch.cat([parameters_to_vector(one.parameters()) for one in posterior.draws(4)]).detach()


@pytest.mark.parametrize(
    "options", [{}, {"members": 2}, {"cycles": 2}, {"average": 0.3}, {"members": 2, "prior": "own"}]
)
def test_a_file_has_the_curvature_that_predictions_use_and_nothing_of_training(options, tmp_path: Path):
    posterior = trained(**options)
    before = drawn(posterior)
    file = gossamer.save(posterior, tmp_path / "net")
    assert not any("grad_square" in name for name in load_file(file))
    again = gossamer.load(file, mlp(2, (16, 16), 2))
    assert isinstance(again, type(posterior))
    assert torch.equal(drawn(again), before)
    for one, other in zip(posterior.networks(), again.networks(), strict=True):
        for name, weight in sparse_weights(one).items():
            assert torch.equal(sparse_weights(other)[name].std, weight.std)
            assert weight.prior_spread == sparse_weights(other)[name].prior_spread
            assert torch.equal(weight.prior_mean, sparse_weights(other)[name].prior_mean)


def test_the_curvature_of_a_file_is_not_the_running_mean(tmp_path: Path):
    posterior = trained()
    weights = sparse_weights(posterior.model)
    assert any(not torch.equal(weight.shrunk, weight.curvature) for weight in weights.values())
    again = sparse_weights(gossamer.load(gossamer.save(posterior, tmp_path / "net"), mlp(2, (16, 16), 2)).model)
    for name, weight in weights.items():
        assert torch.equal(again[name].curvature, weight.shrunk)
        assert torch.equal(again[name].shrunk, weight.shrunk)


def test_snapshots_draw_as_the_networks_that_they_were(tmp_path: Path):
    model = trained().model
    kept = SnapshotPosterior(replica(model), [pack(model)])
    assert not any("grad_square" in name for name in kept.kept[0])
    assert torch.equal(drawn(kept), drawn(InLayers(model)))


@pytest.mark.parametrize("n_numbers", [8, 12])
def test_files_of_earlier_curvatures_are_read(n_numbers: int, tmp_path: Path):
    """With fewer numbers beside the vectors than now, and of the latest with the squares."""
    model = trained().model
    for weight in sparse_weights(model).values():
        weight.set_std(weight.std)
    expected = {name: weight.std for name, weight in sparse_weights(model).items()}
    part = _of_network(model)
    state = model.state_dict()
    part["states"] = [
        {
            name: entry[:n_numbers] if name.endswith("_extra_state") else entry
            for name, entry in state.items()
            if n_numbers == 12 or not name.endswith("grad_square")
        }
    ]
    container.write(tmp_path / "net", "gossamer network", 1, {"content": part})
    again = gossamer.load(tmp_path / "net", mlp(2, (16, 16), 2))
    for name, weight in sparse_weights(again).items():
        assert torch.equal(weight.std, expected[name])


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001, 0.0003])
def test_a_position_takes_two_bytes_at_most(density: float, tmp_path: Path):
    layer = gossamer.sparsify(nn.Linear(2000, 1000, bias=False), density=density)
    n_active = gossamer.active_parameters(layer)
    n_file = gossamer.save(layer, tmp_path / "net", dtype="bf16").stat().st_size
    assert n_file <= (2 + 2) * n_active + 900  # names and shapes


class Own(Posterior):
    def __init__(self) -> None:
        self.model = network()

    def draws(self, n: int):
        return (network() for _ in range(n))


def test_fixed_draws_of_any_posterior(tmp_path: Path):
    with pytest.raises(TypeError, match=r"a Own cannot be saved as it is: .* from_tree, or save draws of it, .*=20"):
        gossamer.save(Own(), tmp_path / "net")
    again = gossamer.load(gossamer.save(Own(), tmp_path / "net", n_draws=3), network())
    assert len(list(again.draws(10))) == 3
    with pytest.raises(ValueError, match="without n_draws"):
        gossamer.save(POSTERIORS["dropout"](), tmp_path / "net", n_draws=3)


def test_a_kind_of_weight_or_posterior_that_no_reader_could_make(tmp_path: Path):
    class Nameless(InLayers):
        pass

    with pytest.raises(TypeError, match=r"Nameless cannot be saved, .* define it in a module"):
        gossamer.save(Nameless(network()), tmp_path / "net")

    class NoBlank(PointWeight):
        blank = vars(SparseWeight)["blank"]

    model = gossamer.sparsity.convert.convert(
        network(), lambda dense, support: NoBlank(support, support.gather(dense.values))
    )
    with pytest.raises(TypeError, match=r"a NoBlank cannot be saved as it is: .* blank\(support, like\)"):
        gossamer.save(model, tmp_path / "net")


@pytest.mark.parametrize("name", ["mixture", "dropout", "factors"])
def test_files_of_format_1_predict_what_they_did(name: str):
    """Written by 0.3.0.dev, with classes by their bare names; the mixture has one member of each kind."""
    stored = Path(__file__).parent / "stored"
    again = gossamer.load(stored / f"{name}.safetensors", nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    torch.manual_seed(1)
    with gossamer.kernels.use("dense"):  # as they were drawn then, by torch's generator
        outputs = gossamer.predict(again, torch.linspace(-1, 1, 6).view(2, 3), n_draws=22).outputs
    expected = torch.tensor(json.loads((stored / "expected.json").read_text("utf-8"))[name])
    torch.testing.assert_close(outputs.sum(1), expected)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("0.weight.mean", math.nan),
        ("0.weight.mean", math.inf),
        ("0.weight.curvature", math.nan),
        ("0.weight.curvature", -1.0),
        ("1.running_mean", math.nan),
        ("1.running_mean", math.inf),
        ("1.running_var", -1.0),
    ],
)
def test_numbers_that_no_training_leaves_are_refused(entry: str, value: float, tmp_path: Path):
    """Means, curvatures and statistics that are not finite, and curvatures below minus the prior's."""
    model = gossamer.bayesianize(with_norm(), density=0.5)
    model.state_dict()[entry].view(-1)[0] = value
    file = gossamer.save(model, tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"net\.safetensors: .*(no numbers \(NaN\)|no training leaves)"):
        gossamer.load(file, with_norm())


def test_batch_normalisation_that_is_refreshed(tmp_path: Path):
    x = torch.randn(100, 8)
    posterior = InLayers(gossamer.bayesianize(with_norm(), density=0.5), refresh=Refresh(x))
    file = gossamer.save(posterior, tmp_path / "net")
    with pytest.raises(ValueError, match=r"pass refresh=.*, or save fixed draws, .*n_draws=20"):
        gossamer.load(file, with_norm())
    assert torch.equal(outputs(gossamer.load(file, with_norm(), refresh=Refresh(x))), outputs(posterior))
    torch.manual_seed(2)
    drawn = [copy.deepcopy(network) for network in posterior.draws(3)]
    torch.manual_seed(2)
    fixed = gossamer.load(gossamer.save(posterior, tmp_path / "net", n_draws=3), with_norm())
    for one, other in zip(fixed.draws(3), drawn, strict=True):
        assert torch.equal(one(x), other(x))


def test_kronecker_factors_are_multiplied_out(tmp_path: Path):
    root = torch.randn(39, 39)
    root = root @ root.T / 390  # of the size of weights
    kron = SimpleNamespace(bmm=lambda rows, exponent: rows @ root)
    posterior = LastLayerPosterior(network(), "2", torch.randn(39), kron)
    again = gossamer.load(gossamer.save(posterior, tmp_path / "net"), posterior.model)
    torch.testing.assert_close(outputs(again), outputs(posterior))


def test_other_networks_are_refused(tmp_path: Path):
    file = gossamer.save(bayesian(), tmp_path / "net")
    for other, words in [
        (nn.Sequential(nn.Linear(8, 12), nn.ReLU()), r"network/layers names '2', which the network does not have"),
        (nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)), r"states/0/0\.bias has the shape \(12,\)"),
        (nn.ReLU(), "network/layers cannot be converted"),
        (with_norm(), r"network/layers names '2', which the network does not have"),
    ]:
        with pytest.raises(ValueError, match=f"net: .*{words}"):
            gossamer.load(file, other)
    with pytest.raises(TypeError, match="save takes a posterior or a network, not a dict"):
        gossamer.save({}, tmp_path / "net")
    with pytest.raises(ValueError, match="dtype must be 'float32', 'bf16' or None"):
        gossamer.save(bayesian(), tmp_path / "net", dtype="int8")


# ---------------------------------------------------------------------- files that somebody has changed

VALUES = st.sampled_from([
    None, True, -1, 0, 2, 2**40, 2**70, 1.5, float("nan"), "", "SwagPosterior", "GatedWeight", "gossamer.layers", [],
    {}, [2**40], {"shape": [2**40], "position": torch.tensor([1]), "value": torch.ones(1)},
    {"shape": [12, 8], "position": torch.tensor([-1]), "value": torch.ones(1)}, {"other": 3},
    torch.ones(3), torch.ones(0), torch.ones(2, 2), torch.tensor(1.0), torch.tensor([5, 3, 1]), torch.zeros(1, 0, 5),
    torch.arange(100), torch.arange(96, dtype=torch.int32), torch.tensor([True]), torch.zeros(8, dtype=torch.float64),
    torch.full((4,), torch.nan, dtype=torch.float64), torch.full((39,), -1.0),
])  # fmt: skip


def places(node, path=()):
    """Every place in a tree."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def found(node):
    """Everything in a tree."""
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from found(child)


def changed(tree, data):
    """The tree after up to three changes: a value replaced, removed or copied from elsewhere."""
    tree = copy.deepcopy(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        known = list(places(tree))
        *path, last = data.draw(st.sampled_from(known))
        holder = tree
        for key in path:
            holder = holder[key]
        change = data.draw(st.sampled_from(["replace", "replace", "remove", "copy"]))
        if change == "remove":
            del holder[last]
        elif change == "replace":
            holder[last] = copy.deepcopy(data.draw(VALUES))
        else:
            holder[last] = copy.deepcopy(data.draw(st.sampled_from(list(found(tree)))))
        if not list(places(tree)):
            break
    return tree


@pytest.mark.parametrize("name", POSTERIORS)
@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_changed_file_is_an_error_that_names_it_or_a_posterior(name: str, tmp_path: Path, data):
    """With a checksum that is right, as somebody would make it on purpose."""
    file = tmp_path / "net.safetensors"
    if not file.exists():
        gossamer.save(POSTERIORS[name](), file)
        (tmp_path / "whole").write_bytes(file.read_bytes())
    tree = container.from_bytes((tmp_path / "whole").read_bytes())
    file.write_bytes(container.to_bytes(changed(tree, data)))
    again, complaint = None, ""
    try:
        again = gossamer.load(file, network())
    except ValueError as error:
        complaint = str(error)
    if again is None:
        assert str(file) in complaint
        assert any(fix in complaint for fix in ("; ", ": read it with", ": upgrade"))
        return
    for drawn in again.draws(2) if isinstance(again, Posterior) else [again]:
        assert drawn(torch.randn(2, 8)).shape == (2, 3)


def test_bytes_that_were_changed_name_the_file(tmp_path: Path):
    file = gossamer.save(bayesian(), tmp_path / "net.safetensors")
    whole = file.read_bytes()
    for place in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"net\.safetensors is damaged, or not .*copy it again"):
            gossamer.load(file, network())
    file.write_bytes(json.dumps({}).encode())
    with pytest.raises(ValueError, match="is damaged"):
        gossamer.load(file, network())
