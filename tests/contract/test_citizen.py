"""A converted network is a good citizen of PyTorch: what works on an ``nn.Module`` works on it, before and in training.

Each test runs on every row of the table in ``conftest.py``; what concerns graphs is in ``test_citizen_graphs.py``.
"""

import copy
import io
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import gossamer
from gossamer.layers import GaussianWeight, SparseModule, sparse_weights


def same(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0)


def through_a_file(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---------------------------------------------------------------------- copies and files


def test_deepcopy(citizen):
    twin = copy.deepcopy(citizen.model)
    same(citizen.output(twin), citizen.output(citizen.model))
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in citizen.model.parameters()}
    before = copy.deepcopy(citizen.model.state_dict())
    citizen.training_loop(twin, citizen.x, citizen.y).steps(3)
    same(dict(citizen.model.state_dict()), dict(before))


def test_pickle_of_the_whole_model(citizen):
    same(citizen.output(pickle.loads(pickle.dumps(citizen.model))), citizen.output(citizen.model))


def test_a_copy_is_not_armed(citizen):
    """A subspace asks its own model for dense gradients, and nobody reads those of a copy."""
    for twin in (copy.deepcopy(citizen.model), pickle.loads(pickle.dumps(citizen.model))):
        assert not [name for name, weight in sparse_weights(twin).items() if weight.probe is not None]


@pytest.mark.parametrize("citizen", ["mlp-fresh"], indirect=True)
def test_a_copy_is_not_silent(citizen):
    """With ``addition="mean_gradient"`` the pass before an update has no noise: that of this model, not of a copy."""
    optimizer = torch.optim.Adam(gossamer.param_groups(citizen.model))
    gossamer.Subspace(citizen.model, optimizer, total_steps=9, update_period=1, addition="mean_gradient")
    twin = copy.deepcopy(citizen.model)
    assert not torch.equal(citizen.output(twin, seed=1), citizen.output(twin, seed=2))


@pytest.mark.parametrize("transport", ["memory", "torch.save", "safetensors"])
def test_state_dict_into_another_support(citizen, transport: str, tmp_path):
    state = citizen.model.state_dict()
    if transport == "torch.save":
        state = through_a_file(state)
    elif transport == "safetensors":
        safetensors.torch.save_file(state, tmp_path / "model.safetensors")  # refuses tensors that share memory
        state = safetensors.torch.load_file(tmp_path / "model.safetensors")
    other = citizen.fresh(seed=5)
    counts = {name: weight.support.n_active for name, weight in sparse_weights(citizen.model).items()}
    assert not torch.equal(citizen.output(other), citizen.output(citizen.model))
    result = other.load_state_dict(state, strict=True)
    assert not result.missing_keys
    assert not result.unexpected_keys
    assert {name: weight.support.n_active for name, weight in sparse_weights(other).items()} == counts
    same(citizen.positions(other), citizen.positions(citizen.model))
    same(citizen.output(other), citizen.output(citizen.model))


def test_a_state_dict_holds_active_entries_only(citizen):
    stored = sum(tensor.numel() for name, tensor in citizen.model.state_dict().items() if "mean" in name.split("."))
    assert stored == gossamer.active_parameters(citizen.model)


def test_resume_of_training_is_exact(citizen):
    torch.manual_seed(7)
    state, n_before = through_a_file(citizen.training.state()), len(citizen.training.subspace.record)
    citizen.training.steps(6)
    other = citizen.training_loop(citizen.fresh(seed=5), citizen.x, citizen.y).load(state).steps(6)
    same(dict(other.model.state_dict()), dict(citizen.model.state_dict()))
    assert other.subspace.record == citizen.training.subspace.record[n_before:]
    assert other.moves > 0


# ---------------------------------------------------------------------- devices and precisions


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_weights_of_another_precision(citizen, dtype: torch.dtype):
    expected, positions = citizen.output(citizen.silent()), citizen.positions(citizen.model)
    x = citizen.x.to(dtype) if citizen.x.is_floating_point() else citizen.x
    silent, model = citizen.silent().to(dtype), copy.deepcopy(citizen.model).to(dtype)
    tolerance = {torch.float64: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    torch.testing.assert_close(citizen.output(silent, x).float(), expected, rtol=tolerance, atol=tolerance)
    assert citizen.output(model, x).dtype == dtype
    assert not torch.equal(citizen.output(model, x, seed=1), citizen.output(model, x, seed=2))
    same(citizen.positions(model), positions)
    optimizer = torch.optim.SGD if dtype == torch.float16 else torch.optim.Adam  # whose 1e-8 is zero in float16
    training = citizen.training_loop(model, x, citizen.y, optimizer=optimizer).steps(3)
    assert training.loss().isfinite()
    assert training.moves > 0
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_autocast(citizen):
    model, network = citizen.model.train(), gossamer.draw(citizen.model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert citizen.output(model).dtype == citizen.output(network).dtype == torch.bfloat16
        torch.testing.assert_close(
            citizen.output(citizen.silent()), citizen.output(gossamer.draw(model, at_mean=True)), rtol=0.1, atol=0.1
        )
        loss = F.cross_entropy(model(citizen.x), citizen.y) + citizen.training.penalty()
    loss.backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_moves_between_devices_keep_the_support(citizen):
    expected, state = citizen.output(citizen.model), citizen.model.state_dict()
    twin = copy.deepcopy(citizen.model).to("meta")
    assert gossamer.active_parameters(twin) == gossamer.active_parameters(citizen.model)
    assert {tensor.device.type for tensor in (*twin.parameters(), *twin.buffers())} == {"meta"}
    twin.to_empty(device="cpu").load_state_dict(state)
    same(citizen.output(twin), expected)
    assigned = copy.deepcopy(citizen.model).to("meta")
    assigned.load_state_dict(copy.deepcopy(state), assign=True)
    same(citizen.output(assigned), expected)


# ---------------------------------------------------------------------- the objective


@torch.no_grad()
def test_kl_is_the_sum_of_closed_forms(citizen):
    expected = sum(
        kl_divergence(Normal(weight.mean, weight.std), Normal(0, weight.prior_std)).sum()
        for weight in {id(module): module for module in citizen.model.modules()}.values()
        if isinstance(weight, GaussianWeight)
    )
    torch.testing.assert_close(gossamer.kl(citizen.model), expected)


def test_the_objective_does_not_depend_on_the_batch_size(citizen):
    model, n_data = citizen.silent(), len(citizen.y)

    def objective(batch_size: int) -> Tensor:
        batches = zip(citizen.x.split(batch_size), citizen.y.split(batch_size), strict=True)
        losses = [F.cross_entropy(model(x), y) + gossamer.kl(model) / n_data for x, y in batches]
        return torch.stack(losses).mean()

    for batch_size in (1, 2, 4):
        torch.testing.assert_close(objective(batch_size), objective(n_data))


# ---------------------------------------------------------------------- other machinery of torch


def test_averaged_weights(citizen):
    """EMA of weights by torch, over steps in which nothing moves (the last quarter of a training with the defaults)."""
    averaged = AveragedModel(citizen.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    training = citizen.training_loop(citizen.model, citizen.x, citizen.y, until=0.0)
    averaged.update_parameters(citizen.model)
    expected = {name: parameter.detach().clone() for name, parameter in citizen.model.named_parameters()}
    for _ in range(3):
        training.steps(1)
        averaged.update_parameters(citizen.model)
        expected = {name: 0.9 * expected[name] + 0.1 * p.detach() for name, p in citizen.model.named_parameters()}
    torch.testing.assert_close({name: p.detach() for name, p in averaged.module.named_parameters()}, expected)
    same(citizen.positions(averaged.module), citizen.positions(citizen.model))
    update_bn([citizen.x], averaged)
    assert gossamer.predict(averaged, citizen.x, n_draws=3).probs.isfinite().all()


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("decay", [None, 0.9])
def test_averaged_weights_over_moves(citizen, decay: float | None, use_buffers: bool):
    """Dense means and variances, averaged over steps in which entries move, where the model has entries at the end."""
    averaged = gossamer.averaged(citizen.model, decay, use_buffers=use_buffers)
    weights = sparse_weights(citizen.model)
    dense: dict[str, list[Tensor]] = {}
    for n in range(7):
        citizen.training.steps(1)
        averaged.update_parameters(citizen.model)
        new = 1.0 if n == 0 else 1 / (n + 1) if decay is None else 1 - decay
        for name, weight in weights.items():
            latest = [weight.dense_mean().detach(), weight.dense_std().detach().square()]
            past = dense.get(name, latest)
            active = (weight.dense_std() > 0).detach()
            dense[name] = [torch.lerp(one, other, new) * active for one, other in zip(past, latest, strict=True)]
    assert citizen.training.moves > 0
    same(citizen.positions(averaged.module), citizen.positions(citizen.model))
    for name, weight in sparse_weights(averaged.module).items():
        torch.testing.assert_close(weight.dense_mean().detach(), dense[name][0])
        torch.testing.assert_close(weight.dense_std().detach().square(), dense[name][1])
    update_bn([citizen.x], averaged)
    assert gossamer.predict(averaged, citizen.x, n_draws=3).probs.isfinite().all()
    other = gossamer.averaged(citizen.fresh(seed=3))
    other.load_state_dict(averaged.state_dict())
    same(dict(other.state_dict()), dict(averaged.state_dict()))


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averages_that_do_not_know_positions_are_loud(citizen, use_buffers: bool):
    """Torch's average over moves raises when it is used, or already when lengths differ."""
    averaged = AveragedModel(citizen.model, use_buffers=use_buffers)

    def train() -> None:
        for _ in range(7):
            citizen.training.steps(1)
            averaged.update_parameters(citizen.model)
            averaged(citizen.x)

    with pytest.raises(RuntimeError, match=r"average with gossamer\.averaged|must match|not match|same size"):
        train()
    if citizen.network.allocation == "uniform":
        with pytest.raises(RuntimeError, match=r"gossamer\.averaged"):
            gossamer.predict(averaged, citizen.x, n_draws=2)


def test_replicas_of_data_parallel(citizen, monkeypatch):
    """``nn.parallel.replicate`` with its copies on the CPU: replicas compute, and their gradients meet in the model."""
    monkeypatch.setattr(
        sys.modules["torch.nn.parallel.replicate"],
        "_broadcast_coalesced_reshape",
        lambda tensors, devices, detach=False: [[t.clone() for t in tensors] for _ in devices] if tensors else [],
    )
    whole, split = citizen.silent(), citizen.silent()
    expected = citizen.gradients(whole)

    def in_replicas(model: nn.Module, x: Tensor) -> Tensor:
        replicas = nn.parallel.replicate(model, [0, 1])
        return torch.cat([replica(part) for replica, part in zip(replicas, x.chunk(2), strict=True)])

    torch.testing.assert_close(citizen.gradients(split, in_replicas), expected)
    replicas = nn.parallel.replicate(citizen.model.eval(), [0, 1])
    assert not torch.equal(replicas[0](citizen.x), replicas[1](citizen.x))


def test_a_parameter_without_a_gradient(citizen):
    """A layer that takes no part in a step keeps its weights and its support, and holds up nobody."""

    class WithSpare(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body, self.spare = body, nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = gossamer.bayesianize(WithSpare(citizen.plain()), density=0.4, std=citizen.std)
    training = citizen.training_loop(model, citizen.x, citizen.y)
    training.loss = lambda: F.cross_entropy(model(citizen.x), citizen.y)  # the KL would give all a gradient
    before = {name: tensor.clone() for name, tensor in model.spare.state_dict().items()}
    training.steps(5)
    same(dict(model.spare.state_dict()), before)
    assert training.moves > 0


# ---------------------------------------------------------------------- accidents


def raise_(*args: Any) -> None:
    raise RuntimeError("accident")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_leaves_everything_intact(citizen, where: str):
    model, training = citizen.model, citizen.training
    statistics = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm: as in torch, seen is seen

    def everything() -> Any:
        tensors = {name: t.clone() for name, t in model.state_dict().items() if not name.endswith(statistics)}
        return tensors, {name: module.training for name, module in model.named_modules()}

    before = everything()
    last = [module for module in model.modules() if isinstance(module, SparseModule)][-1]
    first = next(model.parameters())
    handle = last.register_forward_pre_hook(raise_) if where == "forward" else first.register_hook(raise_)
    with pytest.raises(RuntimeError, match="accident"):
        training.loss().backward()
    handle.remove()
    after = everything()
    same(after[0], before[0])
    assert after[1] == before[1]
    assert not torch.equal(citizen.output(model, seed=1), citizen.output(model, seed=2))
    assert training.steps(6).loss().isfinite()
    assert training.moves > 0


def hidden_tensors(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that can be reached through attributes and containers."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
        inside = [thing.grad] if thing.is_leaf else []
    elif isinstance(thing, dict):
        inside = list(thing.values())
    elif isinstance(thing, list | tuple | set):
        inside = list(thing)
    else:
        inside = list(getattr(thing, "__dict__", {}).values())
    for part in inside:
        yield from hidden_tensors(part, seen)


def test_no_graph_hides_in_an_attribute(citizen):
    """A tensor with a history kept somewhere would keep the whole pass alive, and break deepcopy."""
    citizen.training.steps(3)
    citizen.training.loss()
    tensors = list(hidden_tensors(citizen.model, set()))
    assert len(tensors) >= len(list(citizen.model.parameters()))
    assert not [tensor.shape for tensor in tensors if tensor.grad_fn is not None]
