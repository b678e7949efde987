"""What ``compare --time_steps`` says about the native kernels."""

import pytest

from gossamer.kernels import in_use, library
from gossamer.lab import Settings, train
from gossamer.lab.record import Run
from gossamer.lab.runs import step_times
from gossamer.lab.runs.step_times import report_steps, time_steps


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one kind, one of another, and a dense one."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"a": ("ssvi", 0, 0.1), "b": ("ssvi", 1, 0.1), "c": ("ssvi", 0, 0.05), "vi": ("vi", 0, None)}
    made = {}
    for name, (method, seed, density) in kinds.items():
        options = {} if density is None else {"density": density}
        settings = Settings(method, "two_moons", epochs=1, n_draws=2, seed=seed, device="cpu", options=options)
        made[name] = train(settings, folder / name, quiet=True).folder
    return made


@pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")
def test_a_line_for_each_kind_of_sparse_run_and_a_note_in_its_result(runs):
    said = []
    before = (runs["vi"] / "result.json").read_bytes()
    report_steps(list(runs.values()), said.append)
    assert len(said) == 2
    assert [line.split(" native kernels ")[0] for line in said] == ["a: a step with", "c: a step with"]
    notes = {name: Run.open(folder).result()["cost"].get("native_speedup") for name, folder in runs.items()}
    assert notes["a"] > 0
    assert notes["c"] > 0
    assert (notes["b"], notes["vi"]) == (None, None)
    assert (runs["vi"] / "result.json").read_bytes() == before
    assert in_use() == "auto"


@pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")
def test_timing_a_run_changes_nothing_in_it(runs):
    files = {path: path.read_bytes() for path in runs["b"].rglob("*") if path.is_file()}
    times = time_steps(Run.open(runs["b"]))
    assert times.native_ms > 0
    assert times.speedup == pytest.approx(times.dense_ms / times.native_ms, rel=0.5)
    assert {path: path.read_bytes() for path in runs["b"].rglob("*") if path.is_file()} == files


def test_a_dense_network_has_nothing_to_compare(runs):
    assert time_steps(Run.open(runs["vi"])) is None


def test_without_native_kernels_it_says_so(runs, monkeypatch):
    monkeypatch.setattr(step_times.library, "LIBRARY", {})
    said = []
    report_steps(list(runs.values()), said.append)
    assert said == [
        "the native kernels are not built here, every step used dense products (a C++ compiler builds them)"
    ]
