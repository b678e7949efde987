"""The whole of ``python -m benchmarks gpu`` on a CPU: tiny networks, and clocks and memories that are known."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks import gpu
from benchmarks.contenders import CASES, CPU, Device, build, bytes_in_training, checkpoint_bytes, random_images
from benchmarks.measurements import DRAWN, EAGER, PLAIN, RELEASED, SSVI, VI, Measurements
from benchmarks.timing import Stopwatch
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.train.capture import CapturedSteps


def network():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=4, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10)
    )


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch):
    """Of all that other tests have left behind, a dozen times a test."""
    monkeypatch.setattr("gc.collect", lambda *generation: 0)


PLAN = gpu.GpuPlan(rounds=3, batch=4, period=3, subject="tiny", network=network, n_batches=5)


def test_every_way_is_measured_in_every_round(tmp_path):
    results = gpu.measure(PLAN, CPU, quiet=True)
    assert [row.way for row in results.training] == [SSVI, PLAIN, VI, DRAWN, EAGER, RELEASED]
    for row in results.training:
        assert (row.subject, row.batch, len(row.ms)) == ("tiny", 4, 3)
        assert len(row.update_ms) == (0 if row.way in (PLAIN, VI) else 3)
        assert min(row.ms) > 0
        assert row.setup_seconds > 0
    size = {row.way: row.training_bytes for row in results.training}
    assert size[SSVI] == size[DRAWN] == size[EAGER] < 0.2 * size[VI]
    assert size[RELEASED] > 1.15 * size[VI] > 1.8 * size[PLAIN]  # two parameters with gradient and momentum; one, h, v
    files = {row.way: row.checkpoint_bytes for row in results.training}
    assert files[SSVI] < files[PLAIN] < files[VI]
    assert results.notes[0] == "batch 4, turns of 3 steps"
    results.write(tmp_path / "bench.json")
    assert Measurements.read(tmp_path / "bench.json") == results


def test_updates_fall_on_the_last_step_of_a_turn(monkeypatch):
    """Ordinary steps and updates are told apart by their place alone, so that place must be right."""
    made = []
    monkeypatch.setattr(gpu, "build", lambda *args: made.append(build(*args)) or made[-1])
    gpu.measure(replace(PLAN, cases=CASES[:1]), CPU, quiet=True)
    (contender,) = made
    turns = 2 + PLAN.rounds
    assert contender.training.step == turns * PLAN.period
    _, subspace = contender.training.rules
    assert [entry["step"] for entry in subspace.record] == [PLAN.period * (i + 1) for i in range(turns)]


class Ticking(Device):
    """A device where a step takes as long as the tests say, and that counts the bytes it was told of."""

    def tidy(self):
        MEMORY["peak"] = MEMORY["now"]

    def allocated(self):
        return MEMORY["peak"]

    def reserved(self):
        return 10 * MEMORY["peak"]


MEMORY = {"now": 0, "peak": 0}


class Scripted:
    """Steps of 2 ms, updates of 5; the first sets up in a second and holds 100 bytes, 250 at its height."""

    def __init__(self, time, period, factor=1.0):
        self.time, self.period, self.factor, self.index = time, period, factor, 0
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.is_captured = True

    def step(self):
        self.index += 1
        if self.index == 1:
            self.time[0] += 1.0
            MEMORY["now"] += 100
            MEMORY["peak"] = MEMORY["now"] + 150
        else:
            self.time[0] += self.factor * (0.005 if self.index % self.period == 0 else 0.002)

    def state_dict(self):
        return {"model": self.model.state_dict()}

    def working_bytes(self):
        return 7


@pytest.fixture
def ticking(monkeypatch):
    time = [0.0]
    MEMORY.update(now=1000, peak=1000)
    factors = {SSVI: 1.0, DRAWN: 0.9, PLAIN: 0.5, RELEASED: 6.0}
    monkeypatch.setattr(
        gpu, "build", lambda case, task, network, batch, period, place: Scripted(time, period, factors[case.way])
    )
    return Ticking("cpu", "32-true", Stopwatch("ticks", lambda: time[0]), captures=False)


def test_what_the_clock_says_is_what_is_stored(ticking):
    results = gpu.measure(replace(gpu.QUICK, n_batches=1, network=network), ticking, quiet=True)
    own, plain, _, released = results.training
    assert own.ms == [2.0] * 7
    assert own.update_ms == [3.0] * 7
    assert plain.update_ms == []
    assert released.ms == pytest.approx([12.0] * 7)
    assert own.setup_seconds == 1.0
    assert (own.peak_bytes, own.held_bytes, own.working_bytes) == (250, 1000, 7)
    assert plain.peak_bytes == 250  # what the others hold is not its own
    assert own.epoch_seconds == pytest.approx(391 * (2 + 3 * 0.0075) / 1e3)
    assert own.update_share.median == pytest.approx(3 * 0.0075 / (2 + 3 * 0.0075))
    assert results.environment["clock"] == "ticks"


def test_a_way_whose_steps_could_not_be_captured_is_left_out(ticking, monkeypatch):
    inner = gpu.build

    def uncaptured(case, *args):
        made = inner(case, *args)
        made.is_captured = case.way != PLAIN
        return made

    monkeypatch.setattr(gpu, "build", uncaptured)
    results = gpu.measure(replace(gpu.QUICK, n_batches=1), ticking, quiet=True)
    assert [row.way for row in results.training] == [SSVI, DRAWN, RELEASED]
    assert results.notes[0] == "deterministic is left out: its steps could not be captured"


def test_where_there_is_no_gpu_a_capture_is_noticed_to_fail(caplog):
    place = replace(CPU, captures=True)
    contender = build(CASES[0], random_images(8), network, 4, 2, place)
    contender.step()
    assert not contender.is_captured
    assert "not captured as CUDA graphs: the network is not on a GPU" in caplog.text


def test_the_ways_are_what_their_names_say():
    task = random_images(8)
    models = {case.way: build(case, task, network, 4, 2, CPU) for case in CASES}
    noise = {way: {w.noise for w in sparse_weights(c.model).values()} for way, c in models.items() if way != RELEASED}
    assert noise == {SSVI: {"local"}, PLAIN: set(), VI: {"local"}, DRAWN: {"weights"}, EAGER: {"local"}}
    weights = sparse_weights(models[SSVI].model)
    assert all(isinstance(weight, CurvatureWeight) for weight in weights.values())
    assert weights["4"].support.n_active == 0.05 * 3840
    assert sum(p.numel() for p in models[VI].model.parameters()) == 162 + 3840 + 12 + 10


def test_bytes_of_a_working_copy():
    """Dense means and variances with their gradients, addresses, four numbers; what is trained counts elsewhere."""
    contender = build(CASES[0], random_images(8), network, 4, 2, CPU)
    plain = checkpoint_bytes(contender)
    training = contender.training
    parts = (training.model, training.inner_optimizer, training.task, training.method.penalty, torch.float32)
    training.taking = CapturedSteps(*parts, captures=False, compiles=False)
    contender.step()
    n_weights = 168 + 3840  # each weight starts at a multiple of eight entries
    n_active = sum(weight.support.n_active for weight in sparse_weights(contender.model).values())
    layout = 2 * 4 * 8  # four integers per weight that say where its entries go
    numbers = 4 * 5  # damping, temperature, the rate of the running mean, whether it learns, the mean of the prior
    shrinkage = 2 * 4 * 4 + (8 + 4) * n_active  # four numbers a weight; its number and the last estimate of each entry
    assert contender.working_bytes() == 4 * 4 * n_weights + 8 * n_active + numbers + shrinkage + layout
    assert bytes_in_training(contender) == 4 * (5 * n_active + 3 * (12 + 10))
    assert checkpoint_bytes(contender) < plain + 4 * (n_active + 22) + 3000  # the momenta


def test_the_compiler_starts_from_nothing_and_settings_are_put_back(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    precision = torch.get_float32_matmul_precision()
    import os

    with gpu._surprises_switched_off():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != "/mine"
        assert torch.get_float32_matmul_precision() == "high"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    assert "TRITON_CACHE_DIR" not in os.environ
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"batch": 0}, {"period": 1}])
def test_plans_that_measure_nothing(changes):
    with pytest.raises(ValueError, match="count from 1, period from 2"):
        gpu.measure(replace(PLAN, **changes), CPU)


def test_quick_has_every_way_that_a_bar_needs(ticking):
    from benchmarks.bars import judge

    results = gpu.measure(replace(gpu.QUICK, n_batches=1), ticking, quiet=True)
    results = replace(results, environment={**results.environment, "gpu": "NVIDIA H200"})
    assert {v.bar.what: v.met for v in judge(results)} == {
        "ResNet-18, batch 128, SSVI 5 %: step on an H200": True,
        "ResNet-18, batch 128, SSVI 5 %, weights drawn: step on an H200": True,
        "ResNet-18, batch 128, SSVI 5 %: step over released style": True,
        "ResNet-18, batch 128, SSVI 5 %: step, times the deterministic one": True,
        "ResNet-18, batch 128, SSVI 5 %: set-up": True,
    }


@pytest.mark.gpu
def test_a_quick_run_captures_everything():
    results = gpu.measure(replace(gpu.FULL, rounds=1, period=5, n_batches=20), quiet=True)
    assert [row.way for row in results.training] == [case.way for case in CASES]
    assert all(row.held_bytes > 0 and row.peak_bytes > 0 for row in results.training)
