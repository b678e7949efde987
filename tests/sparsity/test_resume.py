"""A training that is saved and resumed goes on to the last bit as if nothing had happened."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.layers import sparse_weights

N_STEPS, STOP = 60, 37  # the update of step 38 is asked for before the stop and made after it
KINDS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
}


class Training:
    """Everything that has a state, on 60 batches that are always the same."""

    def __init__(self, seed, kind, scope, addition) -> None:
        torch.manual_seed(seed)
        plain = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        allocation = "global" if scope == "global" else "uniform"
        self.model = gossamer.bayesianize(plain, density=0.3, allocation=allocation, std="gradient")
        self.optimizer = KINDS[kind](gossamer.param_groups(self.model))
        self.subspace = gossamer.Subspace(
            self.model, self.optimizer, total_steps=N_STEPS, update_period=19, addition=addition
        )
        assert self.subspace.scope == scope
        self.parts = (self.model, self.optimizer, self.subspace)

    def run(self, start, stop):
        data = torch.Generator().manual_seed(7)
        x, y = torch.randn(N_STEPS, 16, 12, generator=data), torch.randn(N_STEPS, 16, 4, generator=data)
        for step in range(start, stop):

            def loss(step=step):
                return F.mse_loss(self.model(x[step]), y[step]) + gossamer.kl(self.model) / 1000

            self.optimizer.zero_grad()
            loss().backward()
            self.optimizer.step()
            self.subspace.step(loss)

    def state(self):
        """Through a file and back, so that nothing is shared."""
        file = io.BytesIO()
        torch.save([[part.state_dict() for part in self.parts], torch.get_rng_state()], file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def load(self, state):
        for part, part_state in zip(self.parts, state[0], strict=True):
            part.load_state_dict(part_state)
        torch.set_rng_state(state[1])


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("addition", ["sampled_gradient", "mean_gradient", "multi_sample_gradient", "random"])
def test_resume_is_exact(kind, scope, addition):
    whole = Training(0, kind, scope, addition)
    start = whole.state()
    whole.run(0, N_STEPS)
    first = Training(0, kind, scope, addition)
    first.run(0, STOP)
    saved = first.state()
    second = Training(1, kind, scope, addition)
    second.load(saved)
    assert_same(second.state(), saved)
    second.run(STOP, N_STEPS)
    assert_same(second.state(), whole.state())
    assert [entry["step"] for entry in whole.subspace.record] == [19, 38]
    for name in sparse_weights(whole.model):
        key = f"{name}.weight.support.position"
        assert not torch.equal(start[0][0][key], whole.model.state_dict()[key])


def test_a_postponed_update_is_still_due_after_a_resume(hand_made):
    optimizer = torch.optim.SGD(gossamer.param_groups(hand_made.layer), lr=0.1)
    first = gossamer.Subspace(hand_made.layer, optimizer, total_steps=20, update_period=5)
    for number in range(1, 6):
        (hand_made.loss() * (torch.inf if number == 5 else 1.0)).backward()
        first.step()
    second = gossamer.Subspace(hand_made.layer, optimizer, total_steps=20, update_period=5)
    second.load_state_dict(first.state_dict())
    hand_made.loss().backward()
    assert second.step()
    assert [entry["step"] for entry in second.record] == [6]
    assert [entry["step"] for entry in first.record] == [5]


@pytest.mark.parametrize(
    ("stop", "loads", "updates"),
    [
        (18, "after", [20, 38]),  # nobody had asked for the gradient of step 19: its update comes a step later
        (25, "after", [38]),
        (37, "after", [39]),
        (18, "before", [19, 38]),
        (25, "before", [38]),
        (37, "before", [38]),
    ],
)
def test_model_and_optimizer_alone_carry_the_clock(stop, loads, updates):
    """What most trainers save: without the clock the rate would start over, and the moves would never end."""
    first = Training(0, "SGD", "layer", "sampled_gradient")
    first.run(0, stop)
    second = Training(1, "SGD", "layer", "sampled_gradient")
    for part, state in zip(second.parts[:2], first.state()[0][:2], strict=True):
        part.load_state_dict(state)
    if loads == "before":  # the subspace is built last, and cannot know whether this is a resume
        second.subspace = gossamer.Subspace(second.model, second.optimizer, total_steps=N_STEPS, update_period=19)
        with pytest.warns(UserWarning, match=f"goes on at step {stop}"):
            second.run(stop, stop + 1)
        stop += 1
    second.run(stop, N_STEPS)
    assert second.subspace.index == N_STEPS
    assert [entry["step"] for entry in second.subspace.record] == updates
    assert all(entry["rate"] < 0.3 for entry in second.subspace.record)


def test_two_subspaces_of_one_optimizer_have_their_own_clocks():
    models = [gossamer.sparsify(nn.Linear(9, 9), density=0.3) for _ in range(2)]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    options = {"removal": "magnitude", "update_period": 3}
    fast, slow = (gossamer.Subspace(model, optimizer, total_steps=40, **options) for model in models)
    for number in range(8):
        optimizer.zero_grad()
        sum(model(torch.randn(4, 9)).square().mean() for model in models).backward()
        optimizer.step()
        fast.step()
        if number % 2:
            slow.step()
    assert (fast.index, slow.index) == (8, 4)


def test_a_new_training_with_the_old_optimizer():
    model = gossamer.sparsify(nn.Linear(9, 9), density=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = gossamer.Subspace(model, optimizer, total_steps=4, removal="magnitude", update_period=1)
    for _ in range(4):
        first.step()
    second = gossamer.Subspace(model, optimizer, total_steps=4, removal="magnitude", update_period=1)
    assert second.index == 4
    second.index = 0
    second.step()
    assert second.index == 1
