"""What every optimizer must do, in every mode: a new one is a new row in ``conftest.py``."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.optim import SGHMC, sampled
from gossamer.schedules import cosine
from gossamer.train import checkpoint

STEPS = 12


def state_tensors(optimizer):
    return [(p, name, value) for p, state in optimizer.state.items() for name, value in state.items()]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def equal_states(one, other):
    pairs = zip(state_tensors(one), state_tensors(other), strict=True)
    return all(a[1] == b[1] and torch.equal(a[2], b[2]) for a, b in pairs)


def test_it_moves_and_lowers_the_loss(loop):
    run = loop(lr=0.2, generator=seeded(), temperature=1e-3)
    before = run.weights
    losses = run.steps(60)
    assert not torch.equal(run.weights, before)
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert bool(run.weights.isfinite().all())


def test_the_generator_alone_decides_about_the_noise(loop):
    first, second, other = (loop(generator=seeded(seed)) for seed in (0, 0, 1))
    first.steps(3)
    torch.manual_seed(99)
    second.steps(3)
    other.steps(3)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.weights, other.weights)
    before = torch.get_rng_state()
    first.steps(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_closure_is_evaluated_once_and_its_loss_returned(loop):
    by_hand, closed = loop(generator=seeded()), loop(generator=seeded())
    n_calls = 0

    def closure():
        nonlocal n_calls
        n_calls += 1
        assert torch.is_grad_enabled()
        closed.optimizer.zero_grad()
        loss = closed.loss()
        loss.backward()
        return loss

    losses = [closed.optimizer.step(closure).item() for _ in range(STEPS)]
    assert losses == by_hand.steps(STEPS)
    assert n_calls == STEPS
    assert torch.equal(by_hand.weights, closed.weights)


@pytest.mark.parametrize("has_generator", [True, False])
@pytest.mark.parametrize("through", ["torch", "checkpoint"])
def test_a_state_continues_to_the_bit(loop, tmp_path, has_generator, through):
    def build(seed=0):
        generator = seeded(seed) if has_generator else None
        return loop(lr=cosine(0.2, 2 * STEPS), seed=seed, generator=generator)

    whole = build()
    torch.manual_seed(5)
    whole.steps(STEPS)
    state = {"model": whole.model.state_dict(), "optimizer": whole.optimizer.state_dict(), "rng": torch.get_rng_state()}
    if through == "torch":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    else:
        checkpoint.save(tmp_path, state, STEPS)
        state = checkpoint.load(tmp_path)
    again = build(seed=1)
    again.x, again.y = whole.x, whole.y
    again.model.load_state_dict(state["model"])
    again.optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    expected = whole.steps(STEPS)
    torch.set_rng_state(state["rng"])
    assert again.steps(STEPS) == expected
    assert torch.equal(again.weights, whole.weights)
    assert equal_states(again.optimizer, whole.optimizer)
    assert again.optimizer.param_groups[0]["step"] == 2 * STEPS


def test_a_state_with_a_generator_needs_one(loop):
    with pytest.raises(ValueError, match=r"saved with a generator.* build it with generator="):
        loop().optimizer.load_state_dict(loop(generator=seeded()).optimizer.state_dict())


def test_copies_and_pickles_go_on_alike(loop):
    whole = loop(lr=cosine(0.2, 50), generator=seeded())
    whole.steps(3)
    twin = copy.deepcopy(whole)
    whole.steps(3)
    twin.steps(3)
    assert torch.equal(whole.weights, twin.weights)
    numbers = loop(generator=seeded())
    numbers.steps(3)
    other = pickle.loads(pickle.dumps((numbers.model, numbers.optimizer)))
    assert equal_states(numbers.optimizer, other[1])
    assert torch.equal(other[1].noise.like(torch.zeros(3)), numbers.optimizer.noise.like(torch.zeros(3)))


def test_groups_have_settings_of_their_own(case):
    still, quiet, noisy = (torch.zeros(4, requires_grad=True) for _ in range(3))
    cold = 1e-30  # the smallest noise that all of them take
    groups = [
        {"params": [still], "lr": 0.0},
        {"params": [quiet], "temperature": cold},
        {"params": [noisy], "lr": lambda step: 0.05 if step else 0.0},
    ]
    optimizer = case.optimizer(groups, generator=seeded())
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.05, 0.0]
    history = []
    for _ in range(3):
        optimizer.zero_grad()
        with sampled(optimizer):
            sum((w * torch.arange(4.0)).sum() for w in (still, quiet, noisy)).backward()
        optimizer.step()
        history.append(noisy.detach().clone())
    assert history[1].any()
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.05, 0.05]
    if "reference" not in case.name:  # there the first velocities are random, and move even at a rate of 0
        assert not still.any()
        assert not history[0].any()
        assert quiet[0].abs() < 1e-12
        assert bool((quiet[1:] < 0).all())


def test_a_group_can_be_added_later(loop):
    run = loop(generator=seeded())
    run.steps(2)
    late = nn.Parameter(torch.ones(3))
    run.optimizer.add_param_group({"params": [late], "lr": 0.5})
    loss = run.loss
    run.loss = lambda: loss() + late.square().sum()
    run.steps(2)
    assert [group["step"] for group in run.optimizer.param_groups] == [4, 2]
    assert not torch.equal(late, torch.ones(3))


def test_schedulers_of_torch_and_functions_of_the_step_agree(loop):
    driven, own = loop(lr=0.1, generator=seeded()), loop(lr=cosine(0.1, STEPS), generator=seeded())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(driven.optimizer, STEPS)
    for _ in range(STEPS):
        driven.step()
        scheduler.step()
        own.step()
    torch.testing.assert_close(driven.weights, own.weights, rtol=1e-4, atol=1e-5)
    assert driven.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["lr", "temperature", "momentum", "gradient_weight", "weight_decay", "scale_lr"])
def test_every_rate_may_follow_the_step(loop, name):
    group = loop().optimizer.param_groups[0]
    if name not in group or (not group.get("learns_scales", True) and name == "scale_lr"):
        pytest.skip(f"has no {name}")
    seen = []

    def schedule(step):
        seen.append(step)
        return 0.1 + 0.01 * step

    run = loop(**{name: schedule, "weight_decay": 0.01} if name != "weight_decay" else {name: schedule})
    run.steps(3)
    assert sorted(set(seen)) == [0, 1, 2]
    assert run.optimizer.param_groups[0][name] == pytest.approx(0.12)


def test_a_gradient_scaler_changes_nothing(loop):
    plain, scaled = loop(dtype=torch.float64, generator=seeded()), loop(dtype=torch.float64, generator=seeded())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(STEPS):
        plain.step()
        scaled.optimizer.zero_grad()
        with sampled(scaled.optimizer):
            scaler.scale(scaled.loss()).backward()
        scaler.step(scaled.optimizer)
        scaler.update()
    assert torch.equal(plain.weights, scaled.weights)  # a power of two is exact


def test_a_gradient_scaler_may_skip_a_step(loop):
    run = loop(generator=seeded())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run.steps(1)
    before = run.weights
    run.optimizer.zero_grad()
    with sampled(run.optimizer):
        scaler.scale(run.loss() * float("inf")).backward()
    scaler.step(run.optimizer)
    scaler.update()
    assert torch.equal(run.weights, before)
    assert scaler.get_scale() == 512
    run.steps(1)
    assert not torch.equal(run.weights, before)
    assert bool(run.weights.isfinite().all())


def test_gradients_may_be_accumulated(loop):
    whole, parts = loop(dtype=torch.float64, generator=seeded()), loop(dtype=torch.float64, generator=seeded())
    for _ in range(3):
        whole.step()
        parts.optimizer.zero_grad()
        for x, y in zip(parts.x.chunk(4), parts.y.chunk(4), strict=True):
            with sampled(parts.optimizer):
                (F.cross_entropy(parts.model(x), y) / 4).backward()
        parts.optimizer.step()
    torch.testing.assert_close(whole.weights, parts.weights)


def test_parameters_without_a_gradient_stay(case):
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = case.optimizer([used, unused, frozen], generator=seeded())
    with sampled(optimizer):
        used.sum().backward()
    optimizer.step()
    assert not torch.equal(used, torch.ones(3))
    assert torch.equal(unused, torch.ones(3))
    assert torch.equal(frozen, torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_state_has_the_shape_and_precision_of_its_parameter(loop, dtype):
    run = loop(dtype=dtype, generator=seeded())
    run.steps(2)
    for parameter, name, value in state_tensors(run.optimizer):
        assert value.shape == parameter.shape, name
        assert value.dtype == dtype, name
    assert run.weights.dtype == dtype


def test_sparse_gradients_are_refused(case):
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = case.optimizer(embedding.parameters())
    with sampled(optimizer):
        embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"takes dense gradients, got one of layout torch.sparse_coo.* sparse=False"):
        optimizer.step()


def test_complex_parameters_are_refused(case):
    with pytest.raises(ValueError, match=r"takes real parameters; give torch.view_as_real"):
        case.optimizer([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("lr", -0.1, r"\[0, inf\)"),
        ("lr", "fast", r"\[0, inf\)"),
        ("lr", None, r"\[0, inf\)"),
        ("lr", torch.tensor(0.1), r"\[0, inf\)"),
        ("lr", float("nan"), r"\[0, inf\)"),
        ("n_data", 0, r"\(0, inf\)"),
        ("temperature", -1.0, r"[\[(]0, inf\)"),
        ("temperature", lambda step: -1.0, r"[\[(]0, inf\)"),
        ("weight_decay", True, r"\[0, inf\)"),
        ("momentum", 1.0, r"\[0, 1\)"),
        ("scale_lr", -1.0, r"\[0, inf\)"),
        ("gradient_weight", 0.0, r"\(0, inf\)"),
    ],
)
def test_settings_that_mean_nothing_are_named(case, name, value, range_):
    w = torch.zeros(2, requires_grad=True)
    known = case.optimizer([w]).param_groups[0]
    if name not in known:
        pytest.skip(f"has no {name}")
    with pytest.raises(ValueError, match=f"{name} must be a number in {range_}, or a function of the step"):
        case.optimizer([w], **{name: value})


def test_a_refused_group_leaves_no_trace(loop):
    run = loop(generator=seeded())
    with pytest.raises(ValueError, match="lr must be a number"):
        run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": -1.0})
    assert len(run.optimizer.param_groups) == 1
    run.steps(2)


def test_an_unknown_mode_is_named(case):
    known = r"mode must be 'default' or 'reference'|multiple values|unexpected keyword argument 'mode'"
    with pytest.raises((ValueError, TypeError), match=known):
        case.build([torch.zeros(1, requires_grad=True)], 0.1, n_data=64, mode="fast")


def test_a_moving_subspace_resets_what_it_activates(case):
    """Fresh entries have a state of zero, which is that of a weight never stepped; the others keep theirs."""
    torch.manual_seed(0)
    model = gossamer.sparsify(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3)), density=0.3)
    optimizer = case.optimizer(gossamer.param_groups(model, weight_decay=0.01), generator=seeded())
    options = {"update_period": 4, "replacement_rate": 0.5, "removal": "magnitude"}
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, **options)
    x, y = torch.randn(32, 20), torch.randint(3, (32,))
    weight = sparse_weights(model)["0"]
    n_moves = 0
    for _ in range(12):
        optimizer.zero_grad()
        with sampled(optimizer):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        old = dict(zip(weight.support.position.tolist(), weight.mean.tolist(), strict=True))
        if subspace.step():
            n_moves += 1
            is_new = torch.tensor([position not in old for position in weight.support.position.tolist()])
            assert bool(is_new.any())
            for name, value in optimizer.state[weight.mean].items():
                assert value.shape == weight.mean.shape, name
                assert not value[is_new].any(), name
                assert value[~is_new].any(), name
    assert n_moves > 0
    assert all(p.isfinite().all() for p in model.parameters())


def test_an_extra_decay_pulls_its_entries_only(case):
    pulled, other = (torch.ones(6, requires_grad=True) for _ in range(2))
    optimizer = case.optimizer([pulled, other], lr=0.1, generator=seeded(), temperature=1e-20)
    optimizer.state[pulled]["extra_decay"] = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    for _ in range(10):
        optimizer.zero_grad()
        with sampled(optimizer):
            (0 * pulled.sum() + 0 * other.sum()).backward()
        optimizer.step()
    is_still = 0.03  # the first velocities of the reference mode, and the common decay
    assert bool(((other - 1).abs() < is_still).all())
    assert bool(((pulled[:3] - 1).abs() < is_still).all())
    assert bool((pulled[3:] < other.min() - 1e-3).all())


def test_without_noise_sghmc_is_sgd_with_momentum():
    w, v = (torch.linspace(-1, 1, 9, dtype=torch.float64).requires_grad_() for _ in range(2))
    ours = SGHMC([w], 0.1, n_data=10, temperature=0, momentum=0.8, weight_decay=0.01)
    theirs = torch.optim.SGD([v], 0.1, momentum=0.8, weight_decay=0.01)
    for optimizer, parameter in ((ours, w), (theirs, v)):
        for _ in range(20):
            optimizer.zero_grad()
            parameter.pow(4).sum().backward()
            optimizer.step()
    torch.testing.assert_close(w, v)
