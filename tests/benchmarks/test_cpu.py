"""A whole benchmark, of rows small enough to be measured in a second."""

import re

import pytest
import torch

from benchmarks import cpu
from benchmarks.environment import describe, surroundings
from benchmarks.measurements import DENSE, MASKED, PLAIN, Measurements
from benchmarks.timing import THREAD, WALL
from gossamer.kernels import library

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")


def test_every_row_is_measured_in_every_way_and_round(tiny_bench, tmp_path):
    results = cpu.measure(tiny_bench, quiet=True)
    assert [(row.subject, row.work) for row in results.layers] == [(c.name, w) for c, _, w in tiny_bench.layers]
    linear, conv = results.layers[0].ms, results.layers[2].ms
    ours = {DENSE, MASKED, PLAIN, "sparse 0.1", "sparse 0.05"}
    assert ours | {"torch CSR 0.1"} <= set(linear)
    assert ours <= set(conv)
    assert not any(way.startswith("torch CSR") for way in conv)
    assert set(results.networks[0].ms) == ours
    for row in [*results.layers, *results.networks]:
        assert all(len(samples) == results.rounds == 2 and min(samples) > 0 for samples in row.ms.values())
    assert len(results.updates[0].extra_ms) == 2
    results.write(tmp_path / "bench.json")
    assert Measurements.read(tmp_path / "bench.json") == results


def test_the_environment_is_part_of_the_results():
    environment = cpu.measure(cpu.CpuPlan(), quiet=True).environment
    assert (environment["clock"], environment["threads"]) == (THREAD.name, 1)
    assert environment["torch"] == torch.__version__
    assert environment["native"] == library.LIBRARY_NAME
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", environment["time"])
    assert "argv" not in environment  # where a file lies on this machine is nobody's business
    assert f"native kernels {library.LIBRARY_NAME}; torch {torch.__version__}" in describe(environment)


def test_several_threads_are_measured_by_the_wall(tiny_bench):
    before = torch.get_num_threads()
    results = cpu.measure(tiny_bench.restricted(["updates"]), threads=2, quiet=True)
    assert (results.environment["clock"], results.environment["threads"]) == (WALL.name, 2)
    assert "2 threads, wall time" in describe(results.environment)
    assert torch.get_num_threads() == before


def test_without_a_terminal_there_is_a_line_a_row(tiny_bench, capsys):
    cpu.measure(tiny_bench.restricted(["networks", "updates"]))
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert re.fullmatch(r"\[1/2\] MLP 48-32-10, batch 8, training step: dense LRT .* ms, masked .*x, .*", first)
    assert re.fullmatch(r"\[2/2\] MLP 48-32-10, batch 8, updates: .* % .*of training", second)


def test_a_terminal_has_a_bar(tiny_bench, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    cpu.measure(tiny_bench.restricted(["updates"]))
    assert "━" in capsys.readouterr().err


def test_sections_and_rounds():
    some = cpu.FULL.restricted(["layers", "memory"])
    assert (some.layers, some.memory) == (cpu.FULL.layers, cpu.FULL.memory)
    assert (some.networks, some.updates) == ((), ())
    more = cpu.QUICK.with_rounds(21)
    assert (more.effort.rounds, more.most_rounds) == (21, None)
    assert more.effort.densities == cpu.QUICK.effort.densities


def test_the_full_plan_has_the_published_rows():
    assert len(cpu.FULL.layers) == 10 * 3 * 2
    assert {batch for _, batch, _ in cpu.FULL.layers} == {1, 32, 128}
    assert cpu.FULL.effort.densities == (0.2, 0.1, 0.05, 0.02, 0.01)
    sparse = [f"sparse {density}" for density in ("1", "0.1", "0.05", "0.01")]
    assert [case.way for case in cpu.FULL.memory] == [DENSE, MASKED, PLAIN, *sparse, "gradient 0.05"]


def test_the_quick_plan_has_a_row_for_every_bar():
    """Measurements with the rows of the plan, all samples alike: no bar goes unmeasured."""
    from benchmarks.bars import judge
    from benchmarks.measurements import Footprint, Timing, UpdateCost

    ms = {way: [1.0] for way in (DENSE, PLAIN, "sparse 0.1", "sparse 0.05", "gradient 0.05")}
    results = Measurements(
        "cpu",
        1,
        surroundings(THREAD),
        layers=[Timing(case.name, case.family, work, batch, ms) for case, batch, work in cpu.QUICK.layers],
        networks=[Timing(case.subject, "network", case.work, case.batch, ms) for case in cpu.QUICK.networks],
        memory=[Footprint(case.network, case.way, 1, 1, 1, 1, [1], 1.0) for case in cpu.QUICK.memory],
        updates=[UpdateCost(case.subject, case.batch, case.density, 100, [1.0], [1.0]) for case in cpu.QUICK.updates],
    )
    assert [verdict.bar.what for verdict in judge(results) if verdict.met is None] == []


def test_work_of_other_threads_is_noticed():
    plan = cpu.CpuPlan(layers=cpu.FULL.layers)
    assert any("20% of its CPU time is in no figure" in note for note in cpu._notes(plan, counted=8.0, spent=10.0))
    assert not any("CPU time" in note for note in cpu._notes(plan, counted=10.0, spent=10.2))
