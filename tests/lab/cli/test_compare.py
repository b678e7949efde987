"""``gossamer compare``: one table in every form, a report, and exit codes that tell."""

import csv
import json
import re
import shlex

import pytest

from gossamer.lab.cli import main
from gossamer.train import Training

QUICK = ["--epochs", "2", "--n-draws", "2", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Four methods, two seeds."""
    folder = tmp_path_factory.mktemp("compared") / "a comparison"
    assert main(["compare", "sgd,vi,ssvi,rigl", *QUICK, "--density", "0.1", "--seeds", "2", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def again(compared):
    return ["compare", "sgd,vi,ssvi,rigl", *QUICK, "--density", "0.1", "--seeds", "2", "--out", compared]


def test_mean_and_standard_error_and_where_everything_is(gossamer, compared, again, monkeypatch):
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("a finished run was trained again"))
    code, out, err = gossamer(*again)
    assert (code, err) == (0, "")
    head, _, *rows, _, note, _, report, tables = out.splitlines()
    assert head.split()[:2] == ["method", "accuracy"]
    assert [row.split()[0] for row in rows] == ["sgd", "vi", "ssvi", "rigl"]
    assert all(re.search(r"\d±\d", row) for row in rows)
    assert note == "mean±standard error over 2 seeds; costs are means"
    assert report == f"report: {compared / 'report.html'}"
    assert tables == f"tables: {compared / 'comparison'}.md, .tex, .csv, .json"
    assert (compared / "report.html").stat().st_size > 10_000


def rows_of(folder):
    with (folder / "comparison.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_files_have_equal_numbers(gossamer, compared, again):
    out = gossamer(*again)[1]
    markdown = (compared / "comparison.md").read_text()
    for row, written, shown in zip(rows_of(compared), markdown.splitlines()[2:], out.splitlines()[2:], strict=False):
        cell = written.split(" | ")[2]
        assert float(cell.split("±")[0]) == pytest.approx(float(row["nll"]), abs=0.02)
        assert cell in shown


def test_density_is_for_those_who_have_one(compared):
    active = {row["method"]: float(row["active_parameters"]) for row in rows_of(compared)}
    assert active["sgd"] == active["vi"]
    for method in ("ssvi", "rigl"):
        assert active[method] == pytest.approx(0.1 * active["vi"], rel=0.01)


def test_what_is_trained_is_said_where_it_does_not_disturb_the_table(gossamer, again, compared):
    arguments = [argument for argument in again if argument != "--quiet"]
    code, out, err = gossamer(*arguments)
    assert code == 0
    assert err.splitlines()[:2] == ["sgd, seed 0", "sgd, seed 1"]
    assert out.startswith("method")


def test_other_settings_in_the_same_folder(refused, again, compared):
    message = refused(1, *again, "--epochs", "3")
    assert message == f"{compared / 'sgd-0'} holds a run with epochs 2, not 3: give another --out, or delete it"


def test_a_method_that_fails_is_a_row_and_the_exit_code_says_so(gossamer, tmp_path):
    (tmp_path / "mine.toml").write_text('data = "digits"\n[methods.sgd]\n[methods.fast]\nmethod = "sgd"\nlr = 1e30\n')
    arguments = ["compare", tmp_path / "mine.toml", *QUICK, "--seeds", "1", "--out", tmp_path / "runs"]
    code, out, _ = gossamer(*arguments)
    assert code == 1
    assert "\nfast failed: seed 0: training diverged" in out
    assert "sgd failed" not in out
    assert "report: " in out


def test_a_wrong_setting_stops_before_the_first_step(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("trained"))
    arguments = ["compare", "sgd,ssvi", *QUICK, "--density", "2", "--out", tmp_path / "runs"]
    assert refused(1, *arguments).startswith("ssvi: density must be a number in (0, 1], got 2.0")


def test_a_run_is_no_place_for_a_comparison(refused, finished):
    before = sorted(finished.iterdir())
    message = refused(1, "compare", "sgd", *QUICK, "--out", finished)
    assert message == f"{finished} is the folder of a run: a comparison needs one of its own, give another --out"
    assert sorted(finished.iterdir()) == before


@pytest.mark.parametrize(
    ("what", "message"),
    [(["sgd,sgd"], "sgd is named twice"), (["sgd", "vi"], "vi: put commas between methods, as in sgd,vi")],
)
def test_methods_that_cannot_be_meant(refused, what, message):
    assert refused(2, "compare", *what).startswith(message)


def test_a_report_of_the_whole_comparison(gossamer, refused, compared, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = gossamer("report", compared, "--out", page)
    assert (code, out) == (0, f"{page}\n")
    assert all(name in page.read_text() for name in ("sgd", "vi", "ssvi", "rigl"))
    (tmp_path / "empty").mkdir()
    assert "is neither a run nor the folder of a comparison" in refused(1, "report", tmp_path / "empty")


def test_a_recipe_and_flags_that_win_over_it(gossamer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        'data = "digits"\nepochs = 50\nseeds = 1\nn_draws = 2\n[methods.dense]\nmethod = "sgd"\n[methods.sparse]\n'
        'method = "ssvi"\ndensity = 0.2\n'
    )
    code, out, _ = gossamer("compare", "mine.toml", "--epochs", "1", "--density", "0.1", "--quiet")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["dense", "sparse"]
    config = (tmp_path / "runs" / "mine" / "sparse-0" / "config.toml").read_text()
    assert "epochs = 1\n" in config
    assert "density = 0.1\n" in config


def test_the_default_folder_has_the_name_of_the_data(gossamer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert gossamer("compare", "sgd", "--data", "two_moons", "--seeds", "1", *QUICK)[0] == 0
    assert (tmp_path / "runs" / "compare-two_moons" / "comparison.md").exists()


def test_a_small_file_to_keep_has_every_run(compared):
    rows = json.loads((compared / "comparison.json").read_text())["trials"]
    assert [(row["label"], row["seed"]) for row in rows[:3]] == [("sgd", 0), ("sgd", 1), ("vi", 0)]
    assert rows[0]["metrics"] == json.loads((compared / "sgd-0" / "result.json").read_text())["metrics"]


def test_sets_from_outside_are_columns(gossamer, compared, again):
    code, out, err = gossamer(*again, "--ood", "uniform,permuted")
    assert (code, err) == (0, "")
    assert "AUROC uniform  AUROC permuted" in out.splitlines()[0]
    assert "; AUROC by entropy" in out
    rows = rows_of(compared)
    assert all(0 < float(row["auroc@uniform"]) < 1 for row in rows)
    assert rows[0]["auroc@uniform"] == rows[0]["auroc@uniform/entropy"]
    assert {"fpr95@permuted/energy", "aupr_in@uniform/mutual_information_se"} <= set(rows[0])


def test_sets_from_outside_are_measured_once(gossamer, again, monkeypatch):
    assert gossamer(*again, "--ood", "uniform")[0] == 0
    monkeypatch.setattr(
        "gossamer.lab.runs.evaluation.evaluate_ood", lambda *args: pytest.fail("it was evaluated again")
    )
    code, out, _ = gossamer(*again, "--ood", "uniform", "--ood-score", "max_probability")
    assert code == 0
    assert "AUROC by max probability" in out


def test_unknown_sets_from_outside_are_refused_before_training(refused, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("it trained"))
    asked = ["compare", "sgd", "--out", tmp_path / "new", "--ood", "unifrom"]
    assert "did you mean 'uniform'" in refused(1, *asked)
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def on_two_sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "sets"
    return ["compare", "sgd,rigl", "--data", "digits, two_moons", *QUICK, "--seeds", "2", "--out", folder]


def test_several_data_sets_have_a_table_each_and_one_file(gossamer, on_two_sets):
    code, out, err = gossamer(*on_two_sets)
    assert (code, err) == (0, "")
    lines, folder = out.splitlines(), on_two_sets[-1]
    assert [line for line in lines if line in ("digits", "two_moons")] == ["digits", "two_moons"]
    assert lines[-1] == f"all data sets: {folder / 'comparison'}.csv, .tex"
    for name in ("digits", "two_moons"):
        assert (folder / name / "report.html").exists()
        assert (folder / name / "rigl-1" / "result.json").exists()
    rows = rows_of(folder)
    assert [(row["data"], row["method"]) for row in rows] == [
        ("digits", "sgd"),
        ("digits", "rigl"),
        ("two_moons", "sgd"),
        ("two_moons", "rigl"),
    ]


def test_one_file_has_the_tables_in_latex(gossamer, on_two_sets):
    code, out, err = gossamer(*on_two_sets, "--latex")
    assert (code, "tables: " in err, "tables: " in out) == (0, True, False)
    assert out.count(r"\begin{table}") == out.count(r"\end{table}") == 2
    assert re.search(r"\\caption\{two\\_moons\. Mean\$\\pm\$standard error over 2 seeds", out)
    assert not set(out) & set("±↑↓")
    folder = on_two_sets[-1]
    assert (folder / "comparison.tex").read_text() == out.rstrip("\n") + "\n"
    best = max(rows_of(folder / "digits"), key=lambda row: float(row["accuracy"]))["method"]
    line = next(line for line in out.splitlines() if line.strip().startswith(f"{best} &"))
    assert line.split(" & ")[1].startswith(r"\textbf{")


def test_jobs_train_the_runs_and_the_same_command_collects_them(gossamer, refused, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = [
        "compare",
        "sgd,vi",
        "--data",
        "two_moons",
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--n-draws",
        "1",
        "--out",
        "a b",
    ]
    code, out, _ = gossamer(*command, "--print-jobs")
    lines = out.splitlines()
    assert (code, len(lines), lines[0].split()[-2:]) == (0, 2, ["--only", "sgd-0"])
    assert not list(tmp_path.iterdir())
    program, *words = shlex.split(lines[1])
    assert (program, words[:2]) == ("gossamer", ["compare", "sgd,vi"])
    assert gossamer(*words, "--quiet")[:2] == (0, "run: a b/vi-0\n")
    assert [path.name for path in (tmp_path / "a b").iterdir()] == ["vi-0"]
    assert gossamer(*words, "--quiet")[0] == 0  # a job that is started twice
    assert gossamer(*command, "--print-jobs")[1].splitlines() == lines[:1]
    before = (tmp_path / "a b" / "vi-0" / "result.json").stat().st_mtime_ns
    assert gossamer(*command, "--quiet")[0] == 0
    assert (tmp_path / "a b" / "vi-0" / "result.json").stat().st_mtime_ns == before
    assert gossamer(*command, "--print-jobs")[1:] == (
        "",
        "all runs are finished: the same command without --print_jobs collects them\n",
    )
    assert refused(2, *command, "--only", "vi-1").startswith(
        "unknown run of this comparison 'vi-1'; did you mean 'vi-0'?"
    )
