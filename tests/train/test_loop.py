"""The loop, and a state that continues to the bit."""

import gc
import io
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.distributed import OneProcess
from gossamer.evaluate import evaluate
from gossamer.likelihoods import Categorical
from gossamer.models import mlp
from gossamer.posterior import Last
from gossamer.schedules import constant, cosine, warmup
from gossamer.train import Batches, Training, fit
from gossamer.train.checkpoint import to_bytes
from gossamer.types import Method, Rule, Task

STEPS = 24
OPTIONS = {
    "sgd": {},
    "vi": {},
    "ssvi": {"density": 0.2, "update_period": 5},
    "rigl": {"density": 0.2, "update_period": 5},
    "set": {"density": 0.2, "update_period": 5},
    "sm": {"density": 0.2, "update_period": 5, "momentum": 0.2},
    "dsr": {"density": 0.2, "update_period": 5, "threshold": 0.1},
    "snip": {"density": 0.2},
    "magnitude": {"density": 0.2, "update_period": 5},
    "dpf": {"density": 0.2, "update_period": 5},
    "cv_adam": {},
    "cv_adam_reference": {"mode": "reference"},
    "cv_sghmc": {"cycles": 3},
    "em_mcmc": {"density": 0.3},
    "em_mcmc_feedback": {"density": 0.3, "feedback": True},
    "aeb": {"density": 0.3, "samples": 2, "learn_prior": True},
    "mbnn": {"sampler": "sgld"},
    "mbnn_hmc": {"sampler": "hmc", "leapfrog": 3},
    "csgld": {"cycles": 3, "per_cycle": 2},
    "csghmc": {"cycles": 3, "per_cycle": 2},
    "swag": {"rank": 3},
    "mc_dropout": {},
    "rank1": {"members": 2},
    "ivon": {"density": 0.2, "update_period": 5},
    "cv_sghmc_reference": {"mode": "reference"},
}


@pytest.fixture(scope="module")
def task():
    return digits.load()


def build(name, task, *, seed=0, fabric=None, **options):
    torch.manual_seed(seed)
    method = methods.build(
        name.removesuffix("_reference").removesuffix("_feedback").removesuffix("_hmc"),
        task,
        STEPS,
        **OPTIONS[name],
        **options,
    )
    return Training(method, mlp(64, (16,)), task, STEPS, fabric, batch_size=50, seed=seed)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("stop", [1, 4, 5, 17])
def test_a_restored_training_goes_on_to_the_bit(task, name, stop):
    """The subspace moves at 5, 10 and 15: the stops are before all moves, just before one, at it, and after all."""
    whole = build(name, task)
    losses = [float(whole.advance()["loss"]) for _ in range(STEPS)]
    first = build(name, task)
    assert [float(first.advance()["loss"]) for _ in range(stop)] == losses[:stop]
    state = through_a_file(first.state_dict())
    second = build(name, task, seed=1)  # other weights, other supports, another place in the random stream
    second.batches = Batches(task.train, 50, 0)  # the order of the examples is the configuration's, not the state's
    second.load_state_dict(state)
    assert_same(through_a_file(second.state_dict()), state)
    torch.rand(1)  # nothing else draws from here on
    second.load_state_dict(state)
    assert [float(second.advance()["loss"]) for _ in range(STEPS - stop)] == losses[stop:]
    assert_same(second.state_dict(), whole.state_dict())


@pytest.mark.gpu
@pytest.mark.parametrize("captures", [False, True])
def test_noise_of_its_own_on_a_gpu(task, captures):
    """Captured or not, the caller's generators on both devices are as they were, and the noise is that of the seed."""
    found = []
    for between in ((), ("cpu", "cuda")):
        method = methods.build("ssvi", task, STEPS, update_period=5)
        torch.manual_seed(0)
        training = Training(method, mlp(64, (16,)), task, STEPS, OneProcess("cuda"), captures=captures)
        before = torch.cuda.get_rng_state()
        while training.step < STEPS:
            loss = training.advance()["loss"].cpu()
            drawn = [torch.rand(3, device=device) for device in between]
        assert torch.equal(torch.cuda.get_rng_state(), before) == (not drawn)
        found.append([loss, *training.noise.states])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_training_is_freed_at_once(task):
    """Nothing in it refers back to it: a network on a GPU does not wait for the garbage collector."""
    training = build("ssvi", task)
    training.advance()
    reference = weakref.ref(training)
    gc.disable()
    try:
        del training
        assert reference() is None
    finally:
        gc.enable()


def test_the_state_is_of_its_moment(task):
    training = build("ssvi", task)
    training.advance()
    state = training.state_dict()
    for _ in range(10):
        training.advance()
    assert state["step"] == state["rules"][-1]["index"] == 1


def test_a_checkpoint_does_not_grow_with_the_training(task):
    """The record of its updates is in the run folder; only numbers may have more digits later."""
    method = methods.build("ssvi", task, 120, density=0.2, update_period=1)
    training, sizes = Training(method, mlp(64, (16,)), task, 120, batch_size=50), []
    for _ in training.run():
        if training.step in (11, 89):
            sizes.append(len(to_bytes(training.state_dict())))
    assert len(training.updates) == 89
    assert sizes[1] <= sizes[0] + 100


class TwoRates:
    """A method whose bias has ten times the rate of the rest, under a schedule that starts at 0."""

    def __init__(self, schedule, rate=0.5):
        self.method = Method(
            prepare=lambda model: model,
            optimizer=lambda model: torch.optim.SGD(
                [{"params": [model.weight]}, {"params": [model.bias], "lr": 10 * rate}], lr=rate
            ),
            lr=schedule,
            collector=Last,
        )


@pytest.mark.parametrize("schedule", [constant(0.5), cosine(0.5, 4), warmup(0.5, 4), warmup(cosine(0.5, 8), 4)])
def test_groups_with_a_rate_of_their_own_keep_its_ratio(schedule):
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    task = Task((x, y), (x, y), (x, y), Categorical(), 2)
    training = Training(TwoRates(schedule).method, nn.Linear(3, 2), task, 4, batch_size=8)
    rates = []
    for _ in range(4):
        training.advance()
        rates.append([group["lr"] for group in training.optimizer.param_groups])
    assert [rate for rate, _ in rates] == [schedule(step) for step in range(4)]
    assert [own for _, own in rates] == [10 * schedule(step) for step in range(4)]
    resumed = Training(TwoRates(schedule).method, nn.Linear(3, 2), task, 4, batch_size=8)
    resumed.load_state_dict({**training.state_dict(), "step": 1})  # the rates in the state are those of the last step
    resumed.advance()
    assert [group["lr"] for group in resumed.optimizer.param_groups] == rates[1]


@pytest.mark.parametrize("name", OPTIONS)
def test_mixed_precision_trains_and_differs(task, name):
    whole = build(name, task)
    mixed = build(name, task, fabric=Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"))
    losses = [[float(training.advance()["loss"]) for _ in range(STEPS)] for training in (whole, mixed)]
    assert all(torch.isfinite(torch.tensor(losses[1])))
    assert losses[0] != losses[1]
    # bf16 has 8 bits: sums of a few hundred products agree to a few per cent.
    assert sum(losses[1][-5:]) == pytest.approx(sum(losses[0][-5:]), rel=0.1)
    assert all(parameter.dtype == torch.float32 for parameter in mixed.model.parameters())


def test_fit_tells_what_happens_at_each_step(task):
    heard = []
    posterior = fit(
        methods.build("vi", task, 3), mlp(64, (8,)), task, 3, record=lambda step, values: heard.append((step, values))
    )
    assert [step for step, _ in heard] == [1, 2, 3]
    for _, values in heard:
        assert torch.equal(values["loss"], values["nll"] + values["penalty"])
        assert not values["loss"].requires_grad
    assert 0 <= evaluate(posterior, task, 2)["accuracy"] <= 1


def test_methods_are_told_apart_from_their_parts(task):
    """A rule that spends the gradient keeps the optimizer from stepping."""

    class Spend(Rule):
        def __call__(self, step):
            return step.number % 2 == 0

    method = replace(methods.build("sgd", task, 4), rules=lambda model, optimizer: [Spend()])
    training = Training(method, mlp(64, (8,)), task, 4)
    changed = []
    for _ in range(4):
        before = training.model[-1].weight.detach().clone()
        training.advance()
        changed.append(not torch.equal(before, training.model[-1].weight))
    assert changed == [True, False, True, False]


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_two_ranks_have_equal_networks_and_noise_of_their_own_and_resume_exactly(tmp_path):
    script = Path(__file__).with_name("two_ranks.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert list(ranks[0]) == ["ssvi", "cv_adam", "cv_sghmc"]
    for method in ranks[0]:
        first, second = (rank[method] for rank in ranks)
        assert_same(first["end"], second["end"])
        assert_same(first["again"], first["end"])
        assert_same(second["again"], first["end"])
        assert first["noise"].shape[0] == 2
        assert torch.equal(first["noise"], second["noise"])
        assert not torch.equal(first["noise"][0], first["noise"][1])
