"""``python -m benchmarks``: what it prints and writes, and what it refuses before it measures anything."""

import json

import pytest

from benchmarks.measurements import DENSE, Measurements, Timing
from benchmarks.trials import Trial, Trials
from gossamer.kernels import library

needs_kernels = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")


@pytest.fixture
def stored(tmp_path):
    """A file of results in which one bar is missed."""
    environment = {
        "cpu": "a CPU", "cpu_count": 2, "gossamer": "1", "native": "v3", "torch": "2", "python": "3", "threads": 1,
        "clock": "a clock", "time": "2026-01-31T12:00:00",
    }  # fmt: skip
    row = Timing("linear 1024x1024", "linear", "forward", 128, {DENSE: [50.0], "sparse 0.05": [10.0]})
    Measurements("cpu", 1, environment, layers=[row]).write(tmp_path / "stored.json")
    return tmp_path / "stored.json"


@needs_kernels
@pytest.mark.usefixtures("tiny_bench")
def test_a_quick_run_prints_tables_and_writes_files(command, tmp_path):
    files = [tmp_path / name for name in ("bench.json", "bench.md", "bench.svg")]
    code, out, err = command("cpu", "--quick", "--json", files[0], "--markdown", files[1], "--plot", files[2])
    assert code == 0
    assert "Layers, forward\n" in out
    assert "Updates of the subspace\n" in out
    assert err.splitlines()[-1].startswith("[6/6] MLP 48-32-10, batch 8, updates: ")
    assert json.loads(files[0].read_text())["layers"][0]["subject"] == "linear 48x32"
    assert files[1].read_text().startswith("# benchmarks cpu\n")
    assert "<svg" in files[2].read_text()
    assert command("show", files[0]) == (0, out, "")


@needs_kernels
@pytest.mark.usefixtures("tiny_bench")
def test_some_sections_some_rounds_and_no_progress(command, tmp_path):
    path = tmp_path / "bench.json"
    given = ("cpu", "--quick", "--only", "networks, updates", "--rounds", "1", "--quiet", "--json", path)
    code, out, err = command(*given)
    assert (code, err) == (0, "")
    assert "Layers" not in out
    assert Measurements.read(path).rounds == 1
    assert len(Measurements.read(path).networks[0].ms[DENSE]) == 1


def test_bars_are_printed_and_judged_only_if_asked_for(command, stored):
    code, out, _ = command("show", stored)
    assert code == 0
    assert "Bars" not in out
    code, out, _ = command("show", stored, "--check")
    assert code == 1
    assert "FAIL" in out


def test_show_fills_pages(command, stored, tmp_path):
    pages = [tmp_path / "one.md", tmp_path / "two.md"]
    for page in pages:
        page.write_text("<!-- bench:cpu:layers-forward -->\n<!-- /bench -->\n")
    assert command("show", stored, "--into", *pages)[0] == 0
    assert all("| linear 1024x1024 | 128 | 50.0 ms | 5.0x [5.0–5.0] |" in page.read_text() for page in pages)


def test_a_page_without_places_is_left_alone(refused, stored, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    assert f"{page}: the page has no place for a table" in refused(1, "show", stored, "--into", page)
    assert page.read_text() == "nothing\n"


def test_a_plot_without_layers(command, stored, tmp_path):
    stored.write_text(json.dumps(json.loads(stored.read_text()) | {"layers": []}))
    code, _, err = command("show", stored, "--plot", tmp_path / "speed.svg")
    assert (code, err) == (1, "benchmarks: a plot needs layers: measure them, without --only or with --only layers\n")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["cpus"], "invalid choice: 'cpus'"),
        (["cpu", "--only", "layers,network"], "--only: takes layers, networks, memory, updates; got network"),
        (["cpu", "--rounds", "0"], "--rounds: must be a whole number from 1; got '0'"),
        (["cpu", "--rounds", "many"], "--rounds: must be a whole number from 1; got 'many'"),
        (["cpu", "--threads", "0"], "--threads: must be a whole number from 1; got '0'"),
        (
            ["cpu", "--json", "no/such/folder/bench.json"],
            "--json no/such/folder/bench.json: the folder no/such/folder does",
        ),
        (["cpu", "--markdown", "."], "--markdown . is a folder, give a file in it"),
        (["cpu", "--plot", "speed.gif"], "--plot speed.gif must end in .png, .svg, .pdf"),
        (["cpu", "--quik"], "unrecognized arguments: --quik"),
        (["show"], "required"),
    ],
)
def test_what_is_refused(refused, tmp_path, monkeypatch, given, why):
    monkeypatch.chdir(tmp_path)
    assert why in refused(2, *given)


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.cpu.measure", lambda *a, **k: pytest.fail("it measured"))
    (tmp_path / "bench.json").mkdir()
    assert "is a folder" in refused(2, "cpu", "--quick", "--json", tmp_path / "bench.json")


def test_a_folder_without_rights_is_found_out_before_anything_is_measured(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    why = refused(2, "cpu", "--quick", "--json", tmp_path / "bench.json")
    assert why.endswith(f"--json {tmp_path / 'bench.json'}: permission denied in {tmp_path}")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--rounds", "0"], "--rounds: must be a whole number from 1"),
        (["--batch", "0"], "--batch: must be a whole number from 1"),
        (["--json", "no/such/folder/bench.json"], "the folder no/such/folder does not exist"),
        (["--plot", "speed.svg"], "--plot"),
        ([], "gpu needs a CUDA device, and torch sees none"),
    ],
)
def test_what_is_refused_of_a_gpu(refused, tmp_path, monkeypatch, given, why):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert why in refused(2, "gpu", *given)


@pytest.mark.slow
def test_a_run_on_a_gpu_prints_tables_and_writes_files(command, tmp_path, monkeypatch):
    """The command with a small network on a CPU in the place of the GPU."""
    from torch import nn

    from benchmarks import gpu
    from benchmarks.contenders import CPU

    seen = []

    def measure(plan, quiet, inner=gpu.measure):
        seen.append((plan.batch, plan.rounds, [case.way for case in plan.cases]))
        small = {"network": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), "period": 2, "n_batches": 3}
        return inner(gpu.replace(plan, **small), CPU, quiet=quiet)

    monkeypatch.setattr("benchmarks.gpu.measure", measure)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("benchmarks.gpu.surroundings", lambda clock: ENVIRONMENT)
    files = [tmp_path / "bench.json", tmp_path / "bench.md"]
    given = ("gpu", "--quick", "--batch", "4", "--rounds", "2", "--json", files[0], "--markdown", files[1])
    code, out, err = command(*given)
    assert code == 0
    assert seen == [(4, 2, ["SSVI 5 %", "deterministic", "SSVI 5 %, weights drawn", "released style"])]
    assert out.startswith("a GPU; gossamer 1; torch 2, CUDA 13, Triton 3, Python 3; a clock; 2026-01-31; 2 rounds; ")
    assert "Training steps, ResNet-18" in out
    assert err.splitlines()[0].startswith("[1/5] ResNet-18, SSVI 5 %: set up in")
    assert Measurements.read(files[0]).training[0].batch == 4
    assert files[1].read_text().startswith("# benchmarks gpu\n")
    assert command("show", files[0])[1] == out


ENVIRONMENT = {
    "gpu": "a GPU", "gossamer": "1", "torch": "2", "cuda": "13", "triton": "3", "python": "3", "clock": "a clock",
    "time": "2026-01-31T12:00:00",
}  # fmt: skip


def test_without_native_kernels_there_is_nothing_to_measure(refused, monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", {})
    assert "the native kernels are not built" in refused(2, "cpu", "--quick")


def test_without_matplotlib_there_is_no_plot(refused, stored, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    why = refused(2, "show", stored, "--plot", tmp_path / "speed.svg")
    assert why.endswith("--plot needs matplotlib: pip install matplotlib")


def test_no_kind_is_a_question_for_help(command):
    code, _, err = command()
    assert code == 2
    assert err.startswith("usage: python -m benchmarks")


@pytest.fixture
def kept(tmp_path):
    """A folder of results with a comparison in it."""
    folder = tmp_path / "results"
    folder.mkdir()
    trial = Trial("ssvi", 0, {}, {"accuracy": 0.9}, {"active_parameters": 10})
    Trials([trial], {}).write(folder / "moons.json")
    return folder


def test_show_of_a_folder_prints_and_fills(command, kept, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:results:moons -->\n<!-- /bench -->\n")
    code, out, err = command("show", kept, "--into", page)
    assert (code, err) == (0, "")
    assert out.startswith("moons: Comparison\n")
    assert "| ssvi | 1 | 10 | 90.0 % |" in page.read_text()


def test_show_of_a_folder_without_results(refused, tmp_path):
    assert "holds no run of a recipe and no comparison.json of gossamer compare" in refused(1, "show", tmp_path)


def test_a_folder_has_no_bars(refused, kept):
    assert "--check are for a file, not for a folder" in refused(2, "show", kept, "--check")
