"""Fused kernels are the plain noisy product: in Triton's interpreter in float32, on a GPU in bfloat16."""

import importlib.util
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from gossamer.kernels import ConvMap, EmbeddingMap, LinearMap, fused, perturb
from gossamer.kernels.fused import Geometry, Plan, Tile, choice
from gossamer.kernels.fused import geometry as fused_geometry
from gossamer.kernels.fused.geometry import by_channels

gpu = pytest.mark.gpu
HERE = Path(__file__).parent
TILE = Tile(128, 64, 64, 4, 3)
CASES = (
    "3x3",
    "3x3 strided",
    "3x3 strided, even",
    "turned tiles",
    "images, turned",
    "images",
    "1x1 strided",
    "5x5, stride 3",
    "no padding",
    "left to torch",
    "linear",
)


@pytest.fixture(scope="module")
def interpreted():
    """What the script beside this file finds, in a process in which Triton has not been imported yet."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    path = os.pathsep.join([str(HERE.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "fused_interpreted.py"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "skip" in found:
        pytest.skip(found["skip"])
    return found


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_are_those_of_float64(interpreted, case):
    assert set(interpreted["errors"]) == set(CASES)
    assert max(interpreted["errors"][case]) < 2e-6  # sums of at most 200 terms in float32


@pytest.mark.parametrize("case", ["3x3 strided, even", "left to torch"])
def test_a_traced_product_is_the_same(interpreted, case):
    assert max(interpreted["compiled"][case]) < 2e-6


def test_noise_drawn_inside_is_standard_normal(interpreted):
    noise = interpreted["noise"]
    scores = noise["scores"]
    assert len(scores) == 20
    assert max(map(abs, scores.values())) < 4  # standard errors; for 20 of them, less than once in 700 seeds
    assert noise["same in other tiles"]
    assert noise["other seed"]


def test_where_there_is_no_variance_there_is_no_slope(interpreted):
    found = interpreted["zero_variance"]
    assert found["error"] < 1e-6
    assert found["slopes"] == pytest.approx(found["expected"], rel=1e-6)


def test_a_network_with_working_weights(interpreted):
    found = interpreted["network"]
    assert found["plans"] == ["triton forward, input gradient"] * 3
    assert found["error"] < 5e-6  # three layers, squares of the outputs
    assert not found["needs a buffer"]
    assert found["same seed, same noise"]
    assert found["other seed, other noise"]


@pytest.mark.parametrize("plan", [Plan(TILE), Plan(TILE, TILE)])
def test_a_product_is_one_node_of_a_traced_network(plan):
    """A break of the graph here would leave the passes of a whole network uncompiled; the operator needs no Triton."""

    class Layer(nn.Module):
        def forward(self, x, mean, variance, noise):
            return fused.noisy_product(x, mean, variance, None, ConvMap((1, 1), (1, 1), (1, 1)), plan=plan, noise=noise)

    fused.load()
    weight = torch.rand(64, 32, 3, 3)
    given = torch.randn(2, 32, 8, 8), weight, weight, torch.randn(2, 64, 8, 8)
    exported = torch.export.export(Layer(), given, strict=True)
    called = [node.target for node in exported.graph.nodes if "lrt" in str(node.target)]
    assert called == [torch.ops.gossamer.lrt.default]


def test_which_products_are_convolutions_of_images():
    x, weight = torch.ones(2, 4, 5, 5), torch.ones(6, 4, 3, 3)
    plain = ConvMap((1, 1), (1, 1), (1, 1))
    assert fused.as_images(x, weight, plain)[2:] == (1, (1, 1))
    for other in (
        ConvMap((1, 1), (1, 1), (2, 2)),
        ConvMap((1, 2), (1, 1), (1, 1)),
        ConvMap((1, 1), (1, 1), (1, 1), groups=2),
        ConvMap((1, 1), (1, 1), (1, 1), transposed=True),
        ConvMap((1,), (1,), (1,)),
        EmbeddingMap(6),
        LinearMap((0, 2)),
    ):
        assert fused.as_images(x, weight, other) is None


def test_sizes_of_a_convolution_and_tiles_that_fit_it():
    strided = Geometry.of((128, 64, 32, 32), (128, 64, 3, 3), stride=2, padding=(1, 1))
    assert (strided.output_shape, strided.rows) == ((128, 128, 16, 16), 32768)
    x, weight, *place = fused.as_images(torch.ones(5, 3), torch.ones(2, 3), LinearMap())
    assert (x.shape, weight.shape, place) == ((5, 3, 1, 1), (2, 3, 1, 1), [1, (0, 0)])
    narrow = Geometry(1, 20, 8, 8, 64, (3, 3), 1, (1, 1))
    assert [tile.depth for tile in fused_geometry.tiles_to_try("forward", narrow)] == [32, 32, 32]
    assert (Plan(TILE).name, Plan().name) == ("triton forward", "cudnn")


def test_the_fastest_of_each_part_is_chosen():
    times = {"forward": {None: 3.0, TILE: 2.0}, "input_gradient": {None: 1.0, TILE: 1.2}}
    assert choice.best_plan(times) == Plan(TILE)
    assert choice.best_plan(times, always=True) == Plan(TILE, TILE)
    assert choice.best_plan(times | {"input_gradient": {None: 1.0, TILE: 0.5}}) == Plan(TILE, TILE)
    # What a fused backward pass reads is written by a fused forward pass.
    assert choice.best_plan({"forward": {None: 1.0, TILE: 2.0}, "input_gradient": {None: 9.0, TILE: 1.0}}) == Plan()
    assert choice.best_plan({"forward": {None: 1.0, TILE: math.inf}, "input_gradient": {None: 1.0}}, True) == Plan()


def test_every_tile_is_timed(interpreted):
    found = interpreted["measured"]
    assert found["image"] == {"tried": {"forward": 2, "input_gradient": 0}, "always": "triton forward", "failed": False}
    assert found["layer"]["tried"] == {"forward": 3, "input_gradient": 3}
    assert found["layer"]["always"] == "triton forward, input gradient"
    assert not found["layer"]["failed"]


def test_what_is_not_fused_and_why():
    geometry = Geometry(128, 64, 32, 32, 64, (3, 3), 1, (1, 1))
    assert fused.choose(geometry, torch.bfloat16, torch.device("cpu")) == Plan()
    with pytest.raises(ValueError, match="fused must be one of 'auto', 'always', 'never'; got 'yes'"):
        fused.check_fused("yes")
    with pytest.raises(ValueError, match="there is no fused kernel"):
        fused.noisy_product(torch.ones(1, 2), torch.ones(2, 2), torch.ones(2, 2), None, LinearMap(), plan=Plan())


def test_importing_gossamer_brings_no_triton():
    code = "import sys, gossamer, gossamer.layers.dense_copy; print('triton' in sys.modules)"
    path = os.pathsep.join([str(HERE.parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def relative(actual, expected) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@gpu
@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(16, 64, 32, 32, 64, (3, 3), 1, (1, 1)),
        Geometry(16, 64, 32, 32, 128, (3, 3), 2, (1, 1)),
        Geometry(16, 128, 16, 16, 256, (1, 1), 2, (0, 0)),
        Geometry(16, 3, 32, 32, 64, (3, 3), 1, (1, 1)),
        Geometry(5, 40, 9, 7, 72, (3, 3), 2, (1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("floor", [None, 1e-8])
def test_autograd_in_bf16(geometry, floor):
    """Against float64 from the same bfloat16 numbers: three roundings of 2⁻⁹ in a row at most."""
    fused.load()
    torch.manual_seed(0)
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    shape = (geometry.n_out, geometry.n_in, *geometry.kernel)
    x = by_channels(torch.randn(geometry.batch, geometry.n_in, geometry.height, geometry.width, **options).relu())
    leaves = [x, by_channels(torch.randn(shape, **options)), by_channels(torch.rand(shape, **options))]
    leaves = [leaf.requires_grad_() for leaf in (*leaves, torch.randn(geometry.n_out, **options))]
    noise, dy = (by_channels(torch.randn(geometry.output_shape, **options)) for _ in range(2))
    weight_map = ConvMap((geometry.stride,) * 2, geometry.padding, (1, 1))
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    mean, variance = weight_map(exact[0], exact[1], exact[3]), weight_map(exact[0] ** 2, exact[2])
    expected = perturb(mean, variance, noise.double(), floor)
    theirs = (expected, *torch.autograd.grad(expected, exact, dy.double()))
    small = Tile(64, 16, 16, 4, 3)
    turned = Tile(64, 64, 64, 4, 3, turned=True)
    for plan in (Plan(TILE, TILE), Plan(small, small), Plan(TILE), Plan(turned, turned)):
        y = fused.noisy_product(*leaves, weight_map, plan=plan, noise=noise, floor=floor)
        for ours, other in zip((y, *torch.autograd.grad(y, leaves, dy)), theirs, strict=True):
            assert relative(ours, other) < 3 * 2**-9


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 1, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def training(how, **options):
    from lightning_fabric import Fabric

    from gossamer import methods
    from gossamer.likelihoods import Categorical
    from gossamer.train import Training
    from gossamer.types import Task

    torch.manual_seed(0)
    split = (torch.randn(70, 3, 8, 8), torch.randint(0, 4, (70,)))
    task = Task(split, split, split, Categorical(), 4)
    parts = methods.build("ssvi", task, 21, density=0.5, update_period=5, noise="local", **options)
    fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    return Training(parts, network(), task, 21, fabric, batch_size=16, seed=3, captures=True, fused=how)


@gpu
def test_captured_steps_are_those_without_fused_kernels(monkeypatch, caplog):
    """The same noise, read by both; twenty steps, three updates, a smaller batch at the end of an epoch."""
    monkeypatch.setattr(choice, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(choice, "_chosen", {})
    reads = [tile._replace(draws=False) for tile in fused_geometry.TILES]
    monkeypatch.setattr(choice, "tiles_to_try", lambda *_: reads)
    with caplog.at_level(logging.INFO, "gossamer"):
        one, two = training("always", init_std=0.05), training("never", init_std=0.05)
        for _ in range(20):
            torch.manual_seed(one.step)
            actual = one.advance()
            torch.manual_seed(two.step)
            torch.testing.assert_close(actual["nll"], two.advance()["nll"], rtol=0.03, atol=0.03)
    assert one.captures, caplog.text
    assert two.captures, caplog.text
    plans = [weight.dense_copy.plan for weight in one._captured.working.weights]
    assert [plan.forward is not None for plan in plans] == [True, True, True, False]
    assert all(weight.dense_copy.plan == Plan() for weight in two._captured.working.weights)
    assert sum("products with noise" in record.message for record in caplog.records) == 1


@gpu
def test_noise_drawn_inside_is_new_in_every_replay(monkeypatch, caplog):
    monkeypatch.setattr("gossamer.train.capture.flat_weights.choose", lambda *_, **__: Plan(TILE._replace(draws=True)))
    monkeypatch.setattr("gossamer.train.capture.flat_weights.compile_all", lambda *_: None)
    monkeypatch.setattr(choice, "LEAST_PRODUCTS", 0)
    graphs = training("auto", init_std=0.5)
    graphs.advance()
    assert graphs.captures, caplog.text
    steps, (x, y) = graphs._captured, graphs.batches[0]
    assert steps.working.draws_inside
    losses = []
    for _ in range(3):
        steps.gradients(x, y, 1)
        losses.append(float(steps.values[0]))
    assert len(set(losses)) == 3


@gpu
def test_the_measured_choice_on_this_device():
    geometry = Geometry(64, 64, 16, 16, 64, (3, 3), 1, (1, 1))
    times = choice.measure(geometry, torch.bfloat16, torch.device("cuda"))
    assert all(math.isfinite(ms) and ms > 0 for by_tile in times.values() for ms in by_tile.values())
    assert choice.best_plan(times, always=True).input_gradient is not None
