"""Captured steps are the plain steps: the same numbers, in another order of work."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import CropFlip
from gossamer.layers import WeightedKL, sparse_weights
from gossamer.likelihoods import Categorical
from gossamer.train import Training
from gossamer.train.capture import CapturedSteps, CaptureError, FlatWeights, why_not
from gossamer.types import Task, as_penalty, no_penalty

gpu = pytest.mark.gpu


def images(n: int = 70) -> Task:
    torch.manual_seed(0)
    x, y = torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8), torch.randint(0, 4, (n,))
    split = (x, y)
    return Task(split, split, split, Categorical(), 4, transform=_scale, augment=CropFlip(padding=1))


def _scale(x):
    return x.float() / 128 - 1


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


def perceptron() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 30, bias=False), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 4))


class Attentive(nn.Module):
    """Rows of an image as tokens, in all three ways that attention uses its packed projection."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(24, 4, 32, dropout=0.0, batch_first=True)
        self.cross = nn.MultiheadAttention(24, 2, batch_first=True)
        self.three = nn.MultiheadAttention(24, 2, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = x.transpose(1, 2).flatten(2)
        y = self.encoder(x)
        y = y + self.cross(y, x, x, need_weights=False)[0]
        y = y + self.three(y, x, x + 1, need_weights=False)[0]
        return self.head(y.mean(1))


def attentive() -> nn.Module:
    torch.manual_seed(1)
    return Attentive()


def training(
    method="ssvi", steps=21, device="cpu", precision="32-true", captures=False, build=network, **options
) -> Training:
    task = images()
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    parts = methods.build(method, task, steps, **options)
    return Training(parts, build(), task, steps, fabric, batch_size=16, seed=3, captures=captures)


def worked(plain: Training, **options) -> Training:
    """The same training by working weights, without a graph."""
    plain.taking = CapturedSteps(
        plain.model, plain.inner_optimizer, plain.task, plain.method.penalty, torch.float32, **options
    )
    return plain


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ssvi", {"density": 0.3, "update_period": 5, "build": perceptron, "noise": "local"}),
        ("ssvi", {"density": 0.3, "update_period": 5, "build": perceptron, "std": "gradient"}),
        ("ssvi", {"density": 0.3, "update_period": 5, "build": perceptron, "mode": "reference"}),
        (
            "ssvi",
            {"density": 0.3, "update_period": 4, "build": perceptron, "addition": "mean_gradient", "noise": "local"},
        ),
        ("vi", {"build": perceptron}),
        # By SGD: Adam would make much of the bias of the keys, whose gradient is round-off.
        ("ssvi", {"density": 0.3, "update_period": 5, "build": attentive, "mode": "reference"}),
        ("rigl", {"density": 0.3, "update_period": 5, "build": attentive}),
        # The noise of images lies in memory in another order, so here it is next to nothing.
        ("ssvi", {"density": 0.3, "update_period": 5, "temperature": 1e-14, "removal": "magnitude"}),
        ("ssvi", {"density": 0.3, "update_period": 5, "init_std": 1e-7, "kl_weight": 1e-9, "std": "gradient"}),
        ("ssvi", {"density": 0.3, "update_period": 5, "init_std": 1e-7, "mode": "reference"}),
        ("rigl", {"density": 0.3, "update_period": 5}),
        ("sgd", {}),
    ],
)
def test_working_weights_give_the_plain_steps(method, options):
    with gossamer.kernels.use("dense"):  # whose noise is torch's, drawn layer by layer as that of working weights
        plain, other = training(method, **options), training(method, **options)
        worked(other, captures=False, compiles=False)
        for step in range(1, 22):
            torch.manual_seed(step)
            expected = plain.advance()
            torch.manual_seed(step)
            actual = other.advance()
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert other.taking is not other.eager
    for (name, mine), theirs in zip(other.model.state_dict().items(), plain.model.state_dict().values(), strict=True):
        # Adam makes much of a gradient that is round-off, and estimates of the curvature are those of the noise drawn.
        of_noise = {1e-7: "raw_std", 1e-14: ("curvature", "_extra_state")}
        quiet = options.get("init_std", options.get("temperature"))
        if not name.endswith(of_noise.get(quiet, "?")):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)
    if other.rules and method != "vi":  # a dense network has nothing to move
        assert other.rules[-1].record == plain.rules[-1].record
        assert sum(sum(update["replaced"].values()) for update in other.rules[-1].record) > 0


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_a_captured_training_continues_where_it_was_saved(noise):
    options = {"density": 0.3, "update_period": 4, "noise": noise}
    one, two = training(**options), training(**options)
    worked(one, captures=False, compiles=False)
    for _ in range(6):
        one.advance()
    state = copy.deepcopy(one.state_dict())
    assert all(isinstance(group["lr"], float) for group in state["optimizer"]["param_groups"])
    two.load_state_dict(state)
    worked(two, captures=False, compiles=False)
    for step in range(8):
        torch.manual_seed(step)
        expected = one.advance()
        torch.manual_seed(step)
        torch.testing.assert_close(two.advance(), expected, rtol=0, atol=0)


def share_noise(giver: Training, taker: Training) -> None:
    """Let the plain passes of ``taker`` draw with the ε that the working copy of ``giver`` has just drawn."""
    copy_ = giver.taking.working
    lengths = [len(weight.mean) for weight in copy_.weights]
    parts = dict(zip(sparse_weights(taker.model).values(), copy_.noise.split(lengths), strict=True))
    for weight, noise in parts.items():
        weight.sample = lambda weight=weight, noise=noise: torch.addcmul(weight.mean, weight.std, noise)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        # In a cold posterior the first sums of estimates cancel, and what is left of them is round-off.
        ("ssvi", {"density": 0.3, "update_period": 5, "temperature": 1.0}),
        ("ssvi", {"density": 0.3, "update_period": 5, "std": "gradient"}),
        ("ssvi", {"density": 0.3, "update_period": 5, "mode": "reference"}),
        ("ssvi", {"density": 0.3, "update_period": 4, "addition": "mean_gradient", "temperature": 1.0}),
        ("vi", {"build": perceptron}),
    ],
)
def test_drawn_working_weights_give_the_plain_steps(method, options):
    plain, other = (training(method, noise="weights", **options) for _ in range(2))
    worked(other, captures=False, compiles=False)
    share_noise(other, plain)
    seen = []
    for _ in range(21):
        actual = other.advance()
        torch.testing.assert_close(plain.advance(), actual, rtol=1e-4, atol=1e-5)
        seen.append(other.taking.working.noise.clone())
    assert other.taking is not other.eager
    for (name, mine), theirs in zip(other.model.state_dict().items(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)
    noisy = [noise for noise in seen if noise.any()]
    assert len({tuple(noise.tolist()) for noise in noisy}) == len(noisy)
    n_updates = len(other.rules[-1].record) if other.rules else 0
    assert len(seen) - len(noisy) == (n_updates if options.get("addition") == "mean_gradient" else 0)
    if other.rules and method != "vi":  # a dense network has nothing to move
        assert other.rules[-1].record == plain.rules[-1].record
        assert sum(sum(update["replaced"].values()) for update in other.rules[-1].record) > 0


def test_drawn_working_weights_have_no_variances_and_local_passes_in_between_are_plain():
    other = worked(training(density=0.3, noise="weights", init_std=0.5), captures=False, compiles=False)
    other.advance()
    working = other.taking.working
    assert [tuple(leaf.shape) for leaf in working.leaves] == [w.support.shape for w in working.weights]
    assert len(working.dense) == 1
    x = _scale(other.batches[0][0])
    other.model.eval()
    torch.manual_seed(0)
    y = other.model(x)
    working.close()
    torch.manual_seed(0)
    torch.testing.assert_close(other.model(x), y)


def test_a_working_copy_has_one_kind_of_noise():
    model = nn.Sequential(
        gossamer.bayesianize(nn.Linear(6, 4), noise="weights"), gossamer.bayesianize(nn.Linear(4, 2), noise="local")
    )
    with pytest.raises(ValueError, match="one kind of noise"):
        FlatWeights(model, torch.float32)


def test_the_dense_weights_are_those_of_the_active_vectors():
    model = gossamer.bayesianize(network(), density=0.2)
    working = FlatWeights(model, torch.float32)
    for weight in sparse_weights(model).values():
        assert torch.equal(weight.dense_copy.mean, weight.dense_mean())
        torch.testing.assert_close(weight.dense_copy.variance, weight.dense_std() ** 2)
        if weight.dense_copy.mean.dim() == 4:
            assert weight.dense_copy.mean.is_contiguous(memory_format=torch.channels_last)
    working.close()
    assert all(weight.dense_copy is None for weight in sparse_weights(model).values())


def test_the_noise_of_a_pass_is_one_buffer():
    model = gossamer.bayesianize(network(), density=0.5)
    working = FlatWeights(model, torch.float32)
    noise = working.prepare_noise(lambda: model(torch.randn(2, 3, 8, 8)))
    parts = [weight.dense_copy.noise for weight in working.weights]
    assert [tuple(part.shape) for part in parts] == [(2, 8, 8, 8), (2, 12, 4, 4), (2, 4)]
    assert sum(part.numel() for part in parts) == len(noise)
    assert parts[0].is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8)
    model.eval()
    noise.normal_()
    assert torch.equal(model(x), model(x))  # as long as nobody draws anew
    before = model(x)
    noise.normal_()
    assert not torch.equal(model(x), before)


def test_a_kl_beside_the_curvature_is_not_captured():
    other = worked(training(density=0.3), captures=False, compiles=False)
    other.taking.penalty = WeightedKL(lambda step: 1.0, n_data=70)
    with pytest.raises(CaptureError, match="which has the prior in it"):
        other.taking.gradients(*other.batches[0], 1)


def test_frozen_weights_keep_their_curvature_in_captured_steps():
    def frozen(**options):
        one = training(density=0.3, noise="weights", **options)
        next(iter(sparse_weights(one.model).values())).mean.requires_grad_(False)
        return one

    plain, other = frozen(), worked(frozen(), captures=False, compiles=False)
    share_noise(other, plain)
    before = {name: weight.curvature.clone() for name, weight in sparse_weights(plain.model).items()}
    for _ in range(5):
        actual = other.advance()
        torch.testing.assert_close(plain.advance(), actual, rtol=1e-4, atol=1e-5)
    first, *rest = before
    for one in (plain, other):
        weights = sparse_weights(one.model)
        assert torch.equal(weights[first].curvature, before[first])
        assert weights[first].n_estimates == 0
        assert all(weights[name].n_estimates == 5 for name in rest)
    for name in rest:
        mine, theirs = (sparse_weights(one.model)[name].curvature for one in (plain, other))
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)


def test_what_cannot_be_captured_says_so_once_and_trains(caplog):
    plain = training(captures=True)
    with caplog.at_level(logging.WARNING, "gossamer"):
        plain.advance()
        plain.advance()
    assert [record.message for record in caplog.records] == [
        "training steps are not captured as CUDA graphs: the network is not on a GPU"
    ]
    assert plain.taking is plain.eager
    assert plain.step == 2


def test_an_optimizer_that_cannot_be_captured_is_found_while_setting_up(caplog, monkeypatch):
    monkeypatch.setattr("gossamer.train.capture.passes.why_not", lambda *_: None)
    plain = training("sgd", captures=True)
    plain.optimizer.param_groups[0]["dampening"] = 0.5
    plain.advance()
    assert [record.message for record in caplog.records] == [
        "training steps are not captured as CUDA graphs: SGD with dampening cannot be captured"
    ]
    assert plain.step == 1


NO_GPU = "the network is not on a GPU"  # reported last: there is no other reason


def test_reasons_of_layers_and_penalties():
    vi = WeightedKL(lambda step: 0.1, n_data=70)
    lstm = "recurrent layers are not captured"
    penalty = "its penalty is not the KL of Gaussian weights"
    for build, given, reason in (
        (attentive, vi, NO_GPU),
        (lambda: nn.LSTM(4, 4), vi, lstm),
        (network, as_penalty(lambda model, step: torch.ones(())), penalty),
    ):
        model = gossamer.bayesianize(build(), std="gradient")
        assert why_not(model, torch.optim.SGD(model.parameters()), given, ()) == reason
    model = gossamer.bayesianize(network())
    optimizer = torch.optim.SGD(model.parameters())
    assert "gossamer.Curvature is missing" in why_not(model, optimizer, no_penalty, ())
    gossamer.Curvature(model, optimizer, n_data=70)
    assert why_not(model, optimizer, no_penalty, ()) == NO_GPU
    plain = network()  # without a sparse weight too: what is not captured would be left out
    assert (
        why_not(plain, torch.optim.SGD(plain.parameters()), as_penalty(lambda model, step: torch.ones(())), ())
        == penalty
    )


@gpu
@pytest.mark.parametrize("method", ["ssvi", "vi", "rigl", "sgd"])
def test_methods_are_captured(method, caplog):
    graphs = training(method, device="cuda", precision="bf16-mixed", captures=True)
    for _ in range(7):
        assert graphs.advance()["nll"].isfinite()
    assert isinstance(graphs.taking, CapturedSteps), caplog.text


@gpu
@pytest.mark.parametrize(
    ("kind", "noise", "build"),
    [
        ("curvature", "local", network),
        ("curvature", "weights", network),
        ("gradient", "local", network),
        ("reference", "local", network),
        ("reference", "weights", network),
        ("reference", "local", attentive),
    ],
)
def test_graphs_are_the_plain_path_to_the_precision_of_bf16(kind, noise, build, caplog):
    """Noise of nearly zero, so that both draw the same networks; twenty steps and two updates."""
    options = {"density": 0.3, "update_period": 5, "init_std": 1e-6, "noise": noise, "build": build}
    options |= {"mode": "reference"} if kind == "reference" else {"std": kind}
    options |= {"kl_weight": 1e-9} if kind == "gradient" else {}
    plain = training(device="cuda", precision="bf16-mixed", **options)
    graphs = training(device="cuda", precision="bf16-mixed", captures=True, **options)
    for _ in range(20):
        expected, actual = plain.advance(), graphs.advance()
        torch.testing.assert_close(actual["nll"], expected["nll"], rtol=0.03, atol=0.03)
    assert isinstance(graphs.taking, CapturedSteps), caplog.text
    assert len(graphs.taking._gradients) == 2  # the last batch of an epoch is smaller
    assert [update["step"] for update in graphs.rules[-1].record] == [5, 10]


@gpu
@pytest.mark.parametrize("noise", ["local", "weights"])
def test_noise_is_new_in_every_replay(noise, caplog):
    options = {"density": 0.3, "init_std": 0.5, "noise": noise}
    graphs = training(device="cuda", precision="bf16-mixed", captures=True, **options)
    graphs.advance()
    assert isinstance(graphs.taking, CapturedSteps), caplog.text
    steps, (x, y) = graphs.taking, graphs.batches[0]
    losses = []
    for _ in range(3):
        steps.gradients(x, y, 1)
        losses.append(float(steps.values[0]))
    assert len(set(losses)) == 3


@gpu
def test_graphs_that_draw_weights_compute_with_what_they_drew(caplog):
    graphs = training(device="cuda", captures=True, density=0.3, init_std=0.5, noise="weights")
    for _ in range(3):
        graphs.advance()
    assert isinstance(graphs.taking, CapturedSteps), caplog.text
    steps, (x, y) = graphs.taking, graphs.batches[3]
    before = [p.detach().clone() for p in graphs.model.parameters()]
    working = steps.working
    std = working.std.clone()  # the pass learns another
    steps.gradients(x, y, 4)
    torch.testing.assert_close(working.dense_mean[working.address], working.mean + std * working.noise)
    assert all(torch.equal(a, b) for a, b in zip(before, graphs.model.parameters(), strict=True))


@gpu
def test_setting_up_a_graph_changes_nothing():
    graphs = training(device="cuda", captures=True, density=0.3)
    before = {name: tensor.clone() for name, tensor in graphs.model.state_dict().items()}
    steps, (x, y) = graphs.steps_by(graphs), graphs.batches[0]
    from gossamer.train.capture.steps import _Pass

    _Pass(steps, x, y, compiles=False)
    for name, tensor in graphs.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
