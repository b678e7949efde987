"""A sparse posterior on a pretrained network."""

import copy
import importlib
import io
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gossamer
from gossamer.layers import DeltaWeight, sparse_weights
from gossamer.posterior import InLayers, Mixture

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)  # the processes import what they run by its name
adapted_ranks = importlib.import_module("adapted_ranks")
sys.path.remove(FOLDER)

X = torch.randn(8, 12, generator=torch.Generator().manual_seed(3))


class Conv1D(nn.Module):
    """As in transformers: a linear layer whose weight is stored as ``(in, out)``."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, n_out, n_in):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) / 5)
        self.bias = nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return y.view(*x.shape[:-1], -1)


class Text(nn.Module):
    """An embedding that the output layer shares, attention, a convolution, a Conv1D and a head."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(12, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.mix = Conv1D(16, 16)
        self.out = nn.Linear(16, 12, bias=False)
        self.out.weight = self.words.weight
        self.classifier = nn.Linear(12, 3)

    def forward(self, x):
        x = self.words((10 * x).long().clamp(0, 11))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2).contiguous()
        return self.classifier(self.out(torch.relu(self.mix(x))).mean(1))


def mlp(dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential()
    net.body, net.act, net.wide, net.act2 = nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU()
    net.classifier = nn.Linear(40, 3)
    return net.to(dtype)


def text(dtype=torch.float32):
    torch.manual_seed(0)
    return Text().to(dtype).eval()


NETS = {"mlp": (mlp, "linear"), "text": (text, ("linear", "embedding", "attention", "conv"))}


def still(model):
    """Take all noise away."""
    for weight in sparse_weights(model).values():
        weight.noise_scale = 0.0
    return model


def stirred(model, seed=1):
    """Changes and stds that are not what the conversion left."""
    torch.manual_seed(seed)
    for weight in sparse_weights(model).values():
        weight.mean.data.normal_(std=0.1)
        weight.set_std(torch.rand(weight.support.n_active) / 10 + 0.01)
    return model


class Loop:
    """A training whose subspace moves, step by step."""

    def __init__(self, model, steps=20, lr=0.01, **options):
        self.model, self.n = model.train(), 0
        self.optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=lr)
        self.curvature = gossamer.Curvature(model, self.optimizer, n_data=100)
        self.subspace = gossamer.Subspace(model, self.optimizer, total_steps=steps, update_period=3, **options)

    def steps(self, n):
        for _ in range(n):
            torch.manual_seed(self.n)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(X), torch.arange(8) % 3).backward()
            self.optimizer.step()
            self.subspace.step()
            self.n += 1
        return self


# ---------------------------------------------------------------------- what it starts from


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("net", NETS)
def test_without_changes_and_noise_it_predicts_as_the_base_to_the_bit(net, dtype):
    make, targets = NETS[net]
    x = X.to(dtype)
    expected = make(dtype)(x)
    model = still(gossamer.adapt(make(dtype), 0.05, targets=targets))
    assert len(sparse_weights(model)) == {"mlp": 2, "text": 5}[net]
    assert torch.equal(model(x), expected)
    assert torch.equal(gossamer.draw(model)(x), expected)
    assert {weight.dtype for weight in sparse_weights(model).values()} == {dtype}
    assert {weight.mean.dtype for weight in sparse_weights(model).values()} == {torch.float32}


@pytest.mark.parametrize("net", NETS)
def test_the_base_is_shared_and_everything_else_is_frozen(net):
    make, targets = NETS[net]
    plain = make()
    places = {parameter.data_ptr() for parameter in plain.parameters()}
    model = gossamer.adapt(plain, 0.05, targets=targets)
    assert {weight.base.data_ptr() for weight in sparse_weights(model).values()} <= places
    twin = copy.deepcopy(model)
    for mine, other in zip(sparse_weights(model).values(), sparse_weights(twin).values(), strict=True):
        assert mine.base is other.base
        assert mine.mean is not other.mean
    trains = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.rpartition(".")[2] for name in trains if "classifier" not in name} == {"mean"}
    assert {"classifier.weight", "classifier.bias"} <= trains
    assert not [name for name in model.state_dict() if "base" in name]


def test_a_pass_is_that_of_base_plus_change():
    model = stirred(gossamer.adapt(text(), 0.3, targets=NETS["text"][1]))
    expected = gossamer.draw(model, at_mean=True)(X)
    for weight in sparse_weights(model).values():
        weight.noisy = False
    torch.testing.assert_close(model(X), expected)
    assert model.out.weight is model.words.weight  # tied weights stay tied


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_noise_has_the_moments_of_draws(noise):
    torch.manual_seed(0)
    layer = stirred(gossamer.adapt(nn.Linear(12, 5), 0.3, dense=(), noise=noise)).train()
    with torch.no_grad():
        y = torch.stack([layer(X) for _ in range(4000)])
        mean = F.linear(X, layer.dense_mean(), layer.bias)
        std = F.linear(X.square(), layer.dense_std().square()).sqrt()
    assert float(((y.mean(0) - mean) / std.clamp_min(1e-9)).abs().max()) < 4.5 / 4000**0.5
    torch.testing.assert_close(y.std(0), std, rtol=0.06, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_linear_regression_has_the_conjugate_posterior_at_its_active_entries(temperature):
    torch.manual_seed(0)
    n, n_in, n_out, decay = 256, 20, 20, 0.01
    # Orthogonal columns, so that the entries of a row are independent given the data.
    x = torch.linalg.qr(torch.randn(n, n_in))[0] * n**0.5 * torch.logspace(-0.3, 0.3, n_in)
    layer = gossamer.adapt(nn.Linear(n_in, n_out, bias=False), 0.2, dense=(), init_std=0.01)
    base, support = layer.weight.base.clone(), layer.support
    y = x @ (base + support.scatter(torch.randn(support.n_active))).T + torch.randn(n, n_out)
    optimizer = torch.optim.SGD(gossamer.param_groups(layer), lr=0.01, momentum=0.9)
    gossamer.Curvature(layer, optimizer, n_data=n, temperature=temperature, weight_decay=decay, memory=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000)
    for _ in range(3000):
        optimizer.zero_grad()
        ((layer(x) - y).square().sum(1).mean() / 2).backward()
        optimizer.step()
        schedule.step()
    precision = (x.square().mean(0) + decay).expand(n_out, -1)
    best = support.gather((y - x @ base.T).T @ x / n / precision)
    std = support.gather((temperature / n / precision).sqrt())
    # As in tests/optim/test_known_curvature.py: h averages over a third of the noisy estimates.
    error = (layer.std.detach() / std).log()
    assert float(error.abs().median()) < 0.03
    assert abs(float(error.mean())) < 0.015
    assert float(((layer.mean.detach() - best) / std).square().mean().sqrt()) < 0.2
    assert torch.equal(layer.weight.base, base)


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_the_budget_is_exact_at_every_step_and_what_is_removed_is_as_before(allocation):
    plain = mlp()
    before = {name: parameter.clone() for name, parameter in plain.named_parameters()}
    model = gossamer.adapt(plain, 0.05, allocation=allocation)
    first = {name: weight.support.position.tolist() for name, weight in sparse_weights(model).items()}
    loop = Loop(model)
    for _ in range(15):
        loop.steps(1)
        assert gossamer.active_parameters(model) == round(0.05 * 480) + round(0.05 * 1600)
    merged = gossamer.draw(model, at_mean=True)
    for name, weight in sparse_weights(model).items():
        moved = set(first[name]) - set(weight.support.position.tolist())
        assert moved
        off = torch.ones(weight.shape, dtype=torch.bool)
        off.view(-1)[weight.support.position.long()] = False
        now = merged.get_submodule(name).weight
        assert torch.equal(now[off], before[f"{name}.weight"][off])
        assert not torch.equal(now, before[f"{name}.weight"])
    assert torch.equal(model.body.bias, before["body.bias"])
    assert not torch.equal(model.classifier.bias, before["classifier.bias"])


def test_a_new_entry_starts_with_the_average_of_what_adam_scales_by():
    loop = Loop(gossamer.adapt(mlp(), 0.05)).steps(2)
    weight = loop.model.body.weight
    before = weight.support.position.clone()
    loop.steps(1)
    new = ~torch.isin(weight.support.position, before)
    state = loop.optimizer.state[weight.mean]
    assert bool(new.any())
    assert not bool(state["exp_avg"][new].any())
    assert not bool(weight.mean[new].any())
    assert float(state["exp_avg_sq"][new].std(correction=0)) == 0 < float(state["exp_avg_sq"][new][0])


def test_a_training_resumes_to_the_bit():
    one = Loop(gossamer.adapt(mlp(), 0.05)).steps(5)
    buffer = io.BytesIO()
    torch.save([one.model.state_dict(), one.optimizer.state_dict(), one.subspace.state_dict()], buffer)
    buffer.seek(0)
    of_model, of_optimizer, of_subspace = torch.load(buffer)
    two = Loop(gossamer.adapt(mlp(), 0.05, generator=torch.Generator().manual_seed(9)))
    two.model.load_state_dict(of_model)
    two.optimizer.load_state_dict(of_optimizer)
    two.subspace.load_state_dict(of_subspace)
    two.n = one.n
    one.steps(8)
    two.steps(8)
    for (name, mine), other in zip(one.model.state_dict().items(), two.model.state_dict().values(), strict=True):
        assert torch.equal(mine, other), name


def test_the_loss_does_not_jump_at_an_update():
    # What is removed returns to its pretrained value: by then the subspace has found entries that matter more.
    torch.manual_seed(0)
    x, y = torch.randn(256, 12), torch.randint(3, (256,))
    model = gossamer.adapt(mlp(), 0.1).train()
    optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=0.01)
    gossamer.Curvature(model, optimizer, n_data=256, temperature=1e-3)
    subspace = gossamer.Subspace(model, optimizer, total_steps=200, update_period=10)

    @torch.no_grad()
    def at_the_means():
        return float(F.cross_entropy(gossamer.draw(model, at_mean=True)(x), y))

    jumps, steps = [], []
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before = at_the_means()
        optimizer.step()
        between, moves = at_the_means(), len(subspace.record)
        subspace.step()
        steps.append(abs(between - before))
        if len(subspace.record) > moves:
            jumps.append((at_the_means() - between) / between)
    assert len(jumps) > 10
    assert max(jumps) < 0.05
    assert sum(jumps) / len(jumps) < 0.02


def test_changes_are_colder_than_a_network_from_scratch():
    for make, n_data, expected in ((gossamer.adapt, 10_000, 1e-3), (gossamer.bayesianize, 10_000, 0.05)):
        model = make(mlp(), 0.05)
        optimizer = torch.optim.Adam(gossamer.param_groups(model))
        assert gossamer.Curvature(model, optimizer, n_data=n_data).temperature == expected


class DenseTensors(TorchDispatchMode):
    """Counts the tensors as large as a weight that are alive at once, other than those that were there before."""

    def __init__(self, size, known):
        super().__init__()
        self.size, self.known, self.alive, self.most = size, known, [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.nbytes() >= self.size and storage.data_ptr() not in self.known:
                    self.alive.append(StorageWeakRef(storage))
        self.alive = [one for one in self.alive if not one.expired()]
        self.most = max(self.most, len({one.cdata for one in self.alive}))
        return result


@pytest.mark.parametrize("noise", ["weights", "local"])
def test_nothing_dense_is_made_but_at_updates_a_layer_at_a_time(noise):
    at_updates = {}
    for n_layers in (2, 16):
        torch.manual_seed(0)
        side, x = 128, torch.randn(4, 128)
        plain = nn.Sequential(*[nn.Linear(side, side) for _ in range(n_layers)])
        known = {parameter.data_ptr() for parameter in plain.parameters()}
        model = gossamer.adapt(plain, 0.003, dense=(), noise=noise).train()
        optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=0.01)
        gossamer.Curvature(model, optimizer, n_data=100)
        subspace = gossamer.Subspace(model, optimizer, total_steps=100, update_period=4, until=1)
        most = []
        for _ in range(12):
            with DenseTensors(side * side, known) as made:  # bytes: a mask counts, too
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                subspace.step()
            most.append(made.most)
        assert [step for step, n in enumerate(most, 1) if n] == [4, 8, 12]
        at_updates[n_layers] = max(most)
    assert at_updates[2] == at_updates[16]  # the gradient of one layer and its candidates, however many layers


def test_accumulated_gradients_are_those_of_the_whole_batch():
    y, means = torch.arange(8) % 3, []
    for parts in (1, 4):
        model = still(stirred(gossamer.adapt(mlp(), 0.05))).train()
        optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
        gossamer.Curvature(model, optimizer, n_data=100, temperature=1e-12)
        for rows in torch.arange(8).chunk(parts):
            (F.cross_entropy(model(X[rows]), y[rows]) / parts).backward()
        optimizer.step()
        assert {weight.n_estimates for weight in sparse_weights(model).values()} == {1}
        means.append(torch.cat([weight.mean.detach() for weight in sparse_weights(model).values()]))
    torch.testing.assert_close(means[0], means[1], rtol=0, atol=1e-6)


def test_a_compiled_network_trains_as_the_plain_one():
    ends = []
    for compiled in (False, True):
        loop = Loop(gossamer.adapt(mlp(), 0.05, generator=torch.Generator().manual_seed(2)))
        network = loop.model
        loop.model = torch.compile(network, backend="aot_eager") if compiled else network
        loop.steps(7)
        ends.append(network.state_dict())
    for (name, one), other in zip(ends[0].items(), ends[1].values(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_ranks_agree(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    torch.multiprocessing.spawn(adapted_ranks.worker, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert not torch.equal(first["start"], second["start"])
    assert first["moves"] >= 2
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert torch.equal(first["base"], second["base"])


@pytest.mark.parametrize("where", ["autocast", "checkpoint"])
def test_under_autocast_and_gradient_checkpointing(where):
    model = Loop(gossamer.adapt(mlp(), 0.05)).model
    torch.manual_seed(0)
    if where == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            y = model(X)
        assert y.dtype == torch.bfloat16
    else:
        y = torch.utils.checkpoint.checkpoint(model, X, use_reentrant=False)
    y.float().square().mean().backward()
    assert all(bool(weight.mean.grad.isfinite().all()) for weight in sparse_weights(model).values())


def test_the_dense_rest_may_be_a_posterior_too():
    plain = mlp()
    expected = plain(X)
    model = gossamer.adapt(plain, 0.05, rest="posterior")
    assert model.classifier.weight.support.is_dense
    assert gossamer.active_parameters(model) == 24 + 80 + 120
    assert torch.equal(still(model)(X), expected)


def test_the_rest_of_the_library_works():
    model = Loop(gossamer.adapt(mlp(), 0.05)).steps(4).model
    average = gossamer.averaged(model)
    average.update_parameters(model)
    assert torch.equal(average.module.wide.weight.mean, model.wide.weight.mean)
    assert gossamer.predict(model, X, n_draws=3).probs.shape == (8, 3)
    with torch.no_grad():
        assert float(gossamer.kl(model)) > 0
    fitted = gossamer.calibrate(model, X, torch.arange(8) % 3, n_draws=2)
    assert fitted is not None
    assert gossamer.density(model) == (24 + 80 + 120) / (480 + 1600 + 120)
    total = gossamer.summary(model).total
    assert (total.active, total.total) == (24 + 80 + 120, 480 + 1600 + 120)
    frozen = gossamer.adapt(mlp(), 0.05, targets="body")
    assert gossamer.density(frozen) == gossamer.summary(frozen).total.density == (24 + 120) / 2200


# ---------------------------------------------------------------------- patches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("net", NETS)
def test_a_patch_makes_the_draw_and_leaves_no_trace(net, dtype):
    make, targets = NETS[net]
    x, plain = X.to(dtype), make(dtype)
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    model = stirred(gossamer.adapt(make(dtype), 0.05, targets=targets))
    model.classifier.bias.data.add_(1)
    for seed in (None, 7):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        drawn = gossamer.draw(model, generator, at_mean=seed is None).eval()
        with gossamer.patched(plain, gossamer.patch(model, seed)):
            assert torch.equal(plain(x), drawn(x))
            assert all(torch.equal(one, two) for one, two in zip(plain.parameters(), drawn.parameters(), strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in plain.state_dict().items())


def test_a_patch_for_another_network():
    changes = gossamer.patch(gossamer.adapt(mlp(), 0.05))
    with pytest.raises(ValueError, match="another network"), gossamer.patched(nn.Linear(3, 2), changes):
        pass
    with pytest.raises(ValueError, match=r"gossamer.adapt"):
        gossamer.patch(gossamer.bayesianize(mlp()))


# ---------------------------------------------------------------------- what cannot be adapted


def test_a_layer_that_cannot_be_adapted_is_named_once():
    net = mlp()
    net.wide = nn.utils.parametrizations.weight_norm(net.wide)
    with pytest.warns(UserWarning, match=r"not adapted.*wide.*recomputed") as caught:
        model = gossamer.adapt(net, 0.05)
    assert len(caught) == 1
    assert list(sparse_weights(model)) == ["body"]


def test_targets_by_kind_name_and_function():
    def names(**options):
        return list(sparse_weights(gossamer.adapt(text(), 0.05, **options)))

    assert names(targets="conv") == ["conv"]
    assert names(targets="mi*") == ["mix"]
    assert names(targets=lambda name, module: module.__class__ is nn.Conv1d) == ["conv"]
    with pytest.warns(UserWarning, match="tied"):  # its table is the embedding's, which is no target
        assert names(targets="linear") == ["mix"]


class Quantized(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)


BAD = {
    "is no part": lambda: gossamer.adapt(mlp(), dense="head"),
    "did you mean 'classifier'": lambda: gossamer.adapt(mlp(), dense="clasifier"),
    "neither a kind of layer": lambda: gossamer.adapt(mlp(), targets="query"),
    "no layer is a target: targets='conv', and the layers of this model are linear": (
        lambda: gossamer.adapt(mlp(), targets="conv")
    ),
    "all targeted layers are frozen": lambda: gossamer.adapt(mlp().requires_grad_(False)),
    "density=0.0001 leaves none of the 2,080": lambda: gossamer.adapt(mlp(), 0.0001),
    r"density must be a number in \(0, 1\]": lambda: gossamer.adapt(mlp(), 5),
    "0.weight is quantized.*torch.int8.*load the network in": lambda: gossamer.adapt(nn.Sequential(Quantized())),
    "prior_std must be a positive number": lambda: gossamer.adapt(mlp(), prior_std=-1),
    "init_std must be a positive number": lambda: gossamer.adapt(mlp(), init_std=0.0),
    "must be one of 'point', 'posterior'": lambda: gossamer.adapt(mlp(), rest="all"),
    "already converted": lambda: gossamer.adapt(gossamer.adapt(mlp())),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_names_its_fix(message):
    with pytest.raises(ValueError, match=message) as caught:
        BAD[message]()
    assert "\n" not in str(caught.value)


def test_a_base_that_was_changed_is_noticed():
    plain = mlp()
    weight = plain.wide.weight
    model = gossamer.adapt(plain, 0.05)
    model(X)
    with torch.no_grad():
        weight.mul_(2)
    for use in (lambda: model(X), lambda: gossamer.draw(model), lambda: model.double()):
        with pytest.raises(RuntimeError, match=r"was changed after gossamer\.adapt"):
            use()


def test_a_state_of_another_base_is_refused_by_name():
    state = gossamer.adapt(mlp(), 0.05).state_dict()
    other = mlp()
    other.wide.weight.data[3, 4] += 1e-3
    with pytest.raises(ValueError, match=r"^wide.weight is another pretrained weight"):
        gossamer.adapt(other, 0.05).load_state_dict(state)


def saved(model, tmp_path, **options):
    return gossamer.save(model, tmp_path / "delta.safetensors", **options)


@pytest.mark.parametrize("rest", ["point", "posterior"])
@pytest.mark.parametrize("net", NETS)
def test_a_file_has_the_changes_alone(net, rest, tmp_path):
    make, targets = NETS[net]
    model = stirred(gossamer.adapt(make(), 0.05, targets=targets, rest=rest))
    model.classifier.bias.data.add_(1)
    again = gossamer.load(saved(model, tmp_path), make())
    assert {type(weight) for weight in sparse_weights(again).values()} == {DeltaWeight}
    assert torch.equal(still(again)(X), still(model)(X))
    trains = [[name for name, one in net.named_parameters() if one.requires_grad] for net in (model, again)]
    assert trains[0] == trains[1]
    assert not [name for name, entry in model.state_dict().items() if name.startswith("body.bias") and entry.dim()]


def test_the_size_of_a_file(tmp_path):
    net = nn.Sequential()
    net.table, net.body, net.classifier = nn.Embedding(1000, 512), nn.Linear(512, 1024), nn.Linear(1024, 3)
    n_bytes = sum(one.nbytes for one in net.parameters())
    model = gossamer.adapt(net, 0.005)
    assert saved(model, tmp_path).stat().st_size < 0.02 * n_bytes
    assert saved(model, tmp_path, dtype="bf16").stat().st_size < 0.01 * n_bytes


@pytest.mark.parametrize("changed", ["wide.weight", "wide.bias"])
def test_a_file_for_another_base_is_refused_by_name(changed, tmp_path):
    file = saved(gossamer.adapt(mlp(), 0.05), tmp_path)
    other = mlp()
    other.get_parameter(changed).data.view(-1)[3] += 1e-3
    with pytest.raises(ValueError, match=rf"{changed} is another pretrained weight than the one that was adapted"):
        gossamer.load(file, other)


def test_members_on_one_base_are_a_mixture(tmp_path):
    members = [InLayers(stirred(gossamer.adapt(mlp(), 0.05), seed)) for seed in range(3)]
    mixture = Mixture(members)
    again = gossamer.load(saved(mixture, tmp_path), mlp())
    for one, two in zip(mixture.posteriors, again.posteriors, strict=True):
        assert torch.equal(one.mean_network()(X), two.mean_network()(X))


def test_a_copy_by_pickle_and_another_precision():
    model = stirred(gossamer.adapt(mlp(), 0.05))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert torch.equal(still(again)(X), still(model)(X))
    assert model.bfloat16().wide.weight.base.dtype == torch.bfloat16
