"""The rows of ``conftest.py`` on a CUDA device: devices, random states, half precision, native compilation."""

import copy

import pytest
import torch
import torch.nn.functional as F

import gossamer
from gossamer.layers import sparse_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # torch's own, as it traces
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),  # advice of the compiler
    pytest.mark.filterwarnings("ignore:RNN module weights are not part"),  # they are drawn anew at each call
]


def test_a_model_moves_to_the_device_and_back(citizen):
    expected, silent = citizen.output(citizen.silent()), citizen.silent().cuda()
    assert {tensor.device.type for tensor in (*silent.parameters(), *silent.buffers())} == {"cuda"}
    torch.testing.assert_close(citizen.output(silent, citizen.x.cuda()).cpu(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(citizen.output(silent.cpu()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", ["weights", "local"])
def test_a_generator_fixes_a_prediction_and_leaves_global_states_alone(citizen, kind: str, device: str):
    model, x = copy.deepcopy(citizen.model).cuda(), citizen.x.cuda()
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    outputs = [
        gossamer.predict(model, x, 3, kind, generator=torch.Generator(device).manual_seed(seed)).outputs
        for seed in (1, 1, 2)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.cuda.get_rng_state(), states[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_training_with_autocast_and_a_scaler(citizen, dtype: torch.dtype):
    model, x, y = citizen.fresh(seed=0).cuda(), citizen.x.cuda(), citizen.y.cuda()
    training = citizen.training_loop(model, x, y)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16, init_scale=2.0**10)
    if training.has_curvature:
        gossamer.Curvature(model, training.optimizer, n_data=100, scaler=scaler)  # in place of one without it
    for _ in range(6):
        training.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            output = model(x)
            loss = F.cross_entropy(output, y) + training.penalty()
        scaler.scale(loss).backward()
        scaler.step(training.optimizer)
        scaler.update()
        training.subspace.step()
    assert output.dtype == dtype
    assert loss.isfinite()
    assert training.moves > 0
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "citizen", ["mlp-trained", "conv-trained", "transformer-trained", "tied-trained"], indirect=True
)
def test_compiled_by_inductor(citizen):
    torch.compiler.reset()
    model, x = copy.deepcopy(citizen.model).cuda().eval(), citizen.x.cuda()
    silent = citizen.silent(model)
    traced = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(silent, fullgraph=True)(x), silent(x), rtol=1e-3, atol=1e-3)
        outputs = torch.stack([traced(x) for _ in range(400)])
        expected = torch.stack([model(x) for _ in range(400)])
    torch.testing.assert_close(outputs.var(0).mean(), expected.var(0).mean(), rtol=0.2, atol=0)


def test_a_captured_step_follows_the_positions(citizen):
    """A CUDA graph reads the positions from where they are, so it stays valid when the subspace moves."""
    model, x = citizen.silent().cuda(), citizen.x.cuda()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(x)
        for weight in sparse_weights(model).values():
            position = weight.support.position
            if position is not None:
                start = weight.support.frozen[1]
                weight.support.set_position(torch.arange(start, start + len(position), device="cuda"))
        graph.replay()
        torch.testing.assert_close(output, model(x), rtol=1e-4, atol=1e-5)
