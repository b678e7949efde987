"""A converted network in the hands of torch.compile, torch.export, torch.func and torch.utils.checkpoint.

Each test runs on every row of the table in ``conftest.py``. ``as_torch`` marks what torch itself cannot do with the
plain layer: the plain network must then fail in the same way.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

import gossamer
from gossamer.layers import sparse_weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # torch's own, as it traces
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # the same, as it imports its compiler
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # at a break of a graph
    pytest.mark.filterwarnings("ignore:There is a performance drop"),  # attention on a CPU has no batching rule
]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


def same(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0)


def compiled(model: nn.Module, **options: Any) -> Callable[[Tensor], Tensor]:
    """Traced by dynamo and AOTAutograd as one graph, which eager kernels then run, with the random numbers of eager."""
    return torch.compile(model, fullgraph=True, backend="aot_eager", **options)


def as_torch(citizen, act: Callable[[nn.Module], Any], error: type[Exception], match: str) -> bool:
    """Whether this is the LSTM, with which torch cannot do it: then neither the plain nor ours can."""
    if citizen.name != "lstm":
        return False
    for model in (citizen.plain().eval(), copy.deepcopy(citizen.model).eval()):
        with pytest.raises(error, match=match):
            act(model)
    return True


# ---------------------------------------------------------------------- torch.compile

RNN_IN_DYNAMO = (torch._dynamo.exc.Unsupported, "RNN, GRU, or LSTM")


def test_compiled_prediction(citizen):
    if as_torch(citizen, lambda model: compiled(model)(citizen.x), *RNN_IN_DYNAMO):
        return
    with torch.no_grad():
        model = copy.deepcopy(citizen.model).eval()
        traced = compiled(model)
        torch.manual_seed(1)
        outputs = [traced(citizen.x) for _ in range(3)]
        torch.manual_seed(1)
        for output in outputs:
            torch.testing.assert_close(output, model(citizen.x))
        assert not torch.equal(outputs[0], outputs[1])
        network = gossamer.draw(model)
        torch.testing.assert_close(compiled(network)(citizen.x), network(citizen.x))


def test_compiled_training_step(citizen):
    """The same noise gives the same gradients, also for the dense gradients of an armed subspace."""
    if as_torch(citizen, lambda model: compiled(model.train())(citizen.x).sum().backward(), *RNN_IN_DYNAMO):
        return
    eager, model = citizen.model.train(), copy.deepcopy(citizen.model).train()
    for weight, twin in zip(sparse_weights(eager).values(), sparse_weights(model).values(), strict=True):
        if weight.probe is not None:
            weight.arm()  # without a sink, which a graph cannot call
            twin.arm()
    traced = compiled(model)
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = citizen.gradients(eager)
        torch.manual_seed(seed)
        actual = citizen.gradients(model, lambda _, x: traced(x))
        assert len(expected) == len(list(eager.parameters()))
        torch.testing.assert_close(actual, expected)
    for name, weight in sparse_weights(eager).items():
        if weight.probe is not None:
            torch.testing.assert_close(sparse_weights(model)[name].probe.grad, weight.probe.grad)


@pytest.mark.parametrize(
    "citizen",
    ["mlp-fresh", *(pytest.param(f"{kind}-fresh", marks=pytest.mark.slow) for kind in ("conv", "transformer", "tied"))],
    indirect=True,
)
def test_compiled_training_follows_the_subspace(citizen):
    """One graph for ordinary steps and one for the steps before a move; positions change under both."""
    traced = compiled(citizen.model)
    counters = torch._dynamo.utils.counters
    counters.clear()
    eager = citizen.training_loop(copy.deepcopy(citizen.model), citizen.x, citizen.y)
    training = citizen.training_loop(citizen.model, citizen.x, citizen.y)
    training.loss = lambda: F.cross_entropy(traced(citizen.x), citizen.y) + training.penalty()
    for loop in (eager, training):
        torch.manual_seed(1)
        loop.steps(5)
    assert training.moves > 0
    assert counters["stats"]["unique_graphs"] == 2
    same(citizen.positions(training.model), citizen.positions(eager.model))
    torch.testing.assert_close(dict(training.model.state_dict()), dict(eager.model.state_dict()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("citizen", ["lstm-fresh"], indirect=True)
def test_a_recurrent_network_may_be_compiled_in_parts(citizen):
    eager, traced = copy.deepcopy(citizen.model), torch.compile(citizen.model, backend="eager")
    torch.manual_seed(1)
    expected = citizen.gradients(eager)
    torch.manual_seed(1)
    torch.testing.assert_close(citizen.gradients(citizen.model, lambda _, x: traced(x)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("citizen", ["mlp-trained"], indirect=True)
def test_compiled_by_inductor(citizen):
    """To native code: outputs vary between calls as they should. One network, as the compiler takes its time."""
    with torch.no_grad():
        model = citizen.model.eval()
        traced = torch.compile(model, fullgraph=True)
        outputs = torch.stack([traced(citizen.x) for _ in range(400)])
        expected = torch.stack([model(citizen.x) for _ in range(400)])
    spread = expected.std(0)
    assert ((outputs.mean(0) - expected.mean(0)).abs() <= 5 * spread * (2 / 400) ** 0.5).all()
    torch.testing.assert_close(outputs.var(0).mean(), expected.var(0).mean(), rtol=0.2, atol=0)


# ---------------------------------------------------------------------- torch.export and TorchScript


def test_export_with_live_noise(citizen):
    """The exported program draws from torch's generator as the model does, so its spread is the model's."""
    model = citizen.model.eval()
    program = torch.export.export(model, (citizen.x,)).module()
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            outputs = program(citizen.x), program(citizen.x)
            torch.manual_seed(seed)
            torch.testing.assert_close(outputs, (model(citizen.x), model(citizen.x)))
            assert not torch.equal(*outputs)


def test_a_drawn_network_is_exported_and_scripted(citizen):
    network = gossamer.draw(citizen.model).eval()
    expected = network(citizen.x)
    torch.testing.assert_close(torch.export.export(network, (citizen.x,)).module()(citizen.x), expected)
    torch.testing.assert_close(torch.jit.script(network)(citizen.x), expected)


@pytest.mark.parametrize("citizen", ["mlp-fresh", "conv-fresh", "transformer-fresh", "tied-fresh"], indirect=True)
def test_a_converted_network_is_not_scripted(citizen):
    """TorchScript is deprecated: :func:`gossamer.draw` gives networks that can be scripted."""
    with pytest.raises((RuntimeError, ValueError), match="annotation"):
        torch.jit.script(citizen.model)


# ---------------------------------------------------------------------- torch.func


def test_vmap_over_draws(citizen):
    model, n_draws = citizen.model.eval(), 400

    def with_weights_of_its_own(network: nn.Module) -> Tensor:
        """What a draw of weights asks of vmap, on the plain network."""
        weights = {name: p.detach().expand(2, *p.shape) for name, p in network.named_parameters()}
        return vmap(lambda w: functional_call(network, w, (citizen.x,)), randomness="different")(weights)

    if citizen.name == "lstm":
        with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::lstm"):
            with_weights_of_its_own(citizen.plain().eval())
        with pytest.raises(RuntimeError, match="Batching rule not implemented for aten::lstm"):
            vmap(lambda _: model(citizen.x), randomness="different")(torch.arange(2))
        return
    with torch.no_grad():
        mapped = vmap(lambda _: model(citizen.x), randomness="different")(torch.arange(n_draws))
        looped = torch.stack([model(citizen.x) for _ in range(n_draws)])
    assert mapped.shape == looped.shape
    assert len({tuple(draw.flatten().tolist()) for draw in mapped}) == n_draws
    spread = looped.std(0)
    assert ((mapped.mean(0) - looped.mean(0)).abs() <= 5 * spread * (2 / n_draws) ** 0.5 + 1e-6).all()
    torch.testing.assert_close(mapped.var(0).mean(), looped.var(0).mean(), rtol=0.2, atol=0)


@pytest.mark.parametrize("tie_weights", [True, False])
def test_functional_call(citizen, tie_weights: bool):
    model = citizen.silent()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    shifted = {name: parameter + 0.1 for name, parameter in before.items()}
    output = functional_call(model, shifted, (citizen.x,), tie_weights=tie_weights)
    same({name: parameter.detach() for name, parameter in model.named_parameters()}, before)
    assert not torch.allclose(output, model(citizen.x))
    for name, parameter in model.named_parameters():
        parameter.data = shifted[name]
    torch.testing.assert_close(model(citizen.x), output)


def test_functional_gradients(citizen):
    model = citizen.silent()
    expected = citizen.gradients(model)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters() if name in expected}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (citizen.x,), tie_weights=False), citizen.y)

    torch.testing.assert_close(torch.func.grad(loss)(parameters), expected)


# ---------------------------------------------------------------------- gradient checkpointing


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(citizen, use_reentrant: bool):
    """What is computed again in the backward pass has the noise of the forward pass."""

    def in_checkpoint(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_() if x.is_floating_point() else x
        if use_reentrant and not x.requires_grad:  # it wants an input with a gradient, so one is handed through
            gate = torch.ones((), requires_grad=True)
            return checkpoint(lambda gate, x: gate * model(x), gate, x, use_reentrant=True)
        return checkpoint(model, x, use_reentrant=use_reentrant)

    torch.manual_seed(1)
    expected = citizen.gradients(copy.deepcopy(citizen.model).train())
    torch.manual_seed(1)
    torch.testing.assert_close(citizen.gradients(citizen.model.train(), in_checkpoint), expected)
