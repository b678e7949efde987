"""Several methods, several seeds, one table; what fails is a row, what is done is not done again."""

import csv
import json
import math
import os
import signal
import statistics
from dataclasses import replace

import pytest

from gossamer.lab import Interrupted, Settings, compare, read_recipe
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs import job as job_module
from gossamer.lab.runs.comparison import Comparison, Entry
from gossamer.lab.runs.job import settings_of
from gossamer.train import Training


@pytest.fixture(scope="module")
def entries(settings):
    return {method: settings(method, epochs=2) for method in ("sgd", "vi", "ssvi", "rigl")}


@pytest.fixture(scope="module")
def comparison(entries, tmp_path_factory):
    """Four methods, two seeds."""
    out = tmp_path_factory.mktemp("comparison")
    return compare(entries, 2, out, quiet=True), out


def test_means_and_standard_errors_are_those_of_the_runs(comparison):
    result, out = comparison
    for row in result.table():
        values = [Run.open(out / f"{row['method']}-{seed}").result()["metrics"]["nll"] for seed in (0, 1)]
        assert row["seeds"] == 2
        assert row["nll"] == pytest.approx(statistics.mean(values))
        assert row["nll_se"] == pytest.approx(statistics.stdev(values) / math.sqrt(2))
        assert values[0] != values[1]
    assert not result.has_failures


def test_all_forms_of_the_table_have_the_same_numbers(comparison):
    result, out = comparison
    rows = result.table()
    with (out / "comparison.csv").open() as file:
        by_csv = list(csv.DictReader(file))
    markdown = [line.strip("| \n").split(" | ") for line in (out / "comparison.md").read_text().splitlines()]
    text = result.to_text().splitlines()
    assert [row["method"] for row in rows] == ["sgd", "vi", "ssvi", "rigl"]
    assert text[-1] == "mean±standard error over 2 seeds; costs are means"
    for row, strings, cells, line in zip(rows, by_csv, markdown[2:], text[2:6], strict=True):
        # Memory may be known for one seed alone: then it has no error.
        assert {key: float(strings[key]) if strings[key] else None for key in row if key != "method"} == {
            key: value for key, value in row.items() if key != "method"
        }
        named = dict(zip(markdown[0], cells, strict=True))
        for key, head, scale in (("accuracy", "accuracy, % ↑", 100), ("nll", "NLL, ↓", 1), ("ece", "ECE, % ↓", 100)):
            mean, error = (float(part) for part in named[head].split("±"))
            digits = len(named[head].split("±")[1].partition(".")[2])
            assert (mean, error) == (round(scale * row[key], digits), round(scale * row[f"{key}_se"], digits))
            assert named[head] in line
        assert float(named["weights, k"]) == round(row["active_parameters"] / 1000, 1)
        assert {"brier", "mutual_information"} <= set(row)  # the files have what the table has no room for


def test_every_row_has_every_cost(comparison):
    result, _ = comparison
    told = ("training_macs", "seconds", "parameter_bytes", "prediction_seconds")
    assert all(row[name] > 0 for row in result.table() for name in told)
    heads = [name for name in result.to_text().splitlines()[0].split() if name != "memory"]
    assert heads == ["method", "accuracy", "NLL", "ECE", "weights", "size", "train", "time", "predict"]


COSTS = ("active_parameters", "parameter_bytes", "training_macs", "seconds", "peak_memory_bytes", "prediction_seconds")


def test_the_table_of_a_terminal_has_at_most_a_hundred_columns():
    quality = {"accuracy": 0.97123, "nll": 0.12345, "ece": 0.0123}
    entries = [
        Entry(label, [{"metrics": {k: v * (1 + s / 100) for k, v in quality.items()}, "cost": dict.fromkeys(COSTS, 1e4)}
                      for s in range(3)])
        for label in ("bayes_compression", "sgd")
    ]  # fmt: skip
    assert "ECE" in Comparison(entries, []).to_text()
    long = Comparison([replace(entries[0], label="a label of twenty-nine letters")], [])
    assert max(map(len, long.to_text().splitlines())) <= 100
    assert "without ECE, which the files have" in long.to_text()
    assert "ECE" in long.to_markdown()


def test_what_is_finished_is_not_trained_again(comparison, entries, monkeypatch):
    result, out = comparison
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("trained again"))
    assert compare(entries, 2, out, quiet=True).table() == result.table()


def test_one_seed_has_no_standard_error(comparison, entries):
    _, out = comparison
    one = compare({"sgd": entries["sgd"]}, 1, out, quiet=True)
    assert one.table()[0]["nll_se"] is None
    assert "±" not in one.to_text()


def test_a_method_that_fails_is_a_row_and_the_others_go_on(settings, monkeypatch, tmp_path):
    entries = {
        "dense": settings("sgd", epochs=1),
        "too large": settings("sgd", epochs=1, options={"lr": 1e30}),
        "broken": settings("rigl", epochs=1),
    }
    start = job_module.start

    def fail_for_rigl(settings, task, fabric):
        if settings.method == "rigl" and settings.seed == 1:
            raise RuntimeError("out of\nmemory | really")
        return start(settings, task, fabric)

    monkeypatch.setattr(job_module, "start", fail_for_rigl)
    said = []
    result = compare(entries, 2, tmp_path, quiet=True, say=said.append)
    dense, large, broken = result.table()
    assert "failed" not in dense
    assert large["failed"].startswith("seed 0: training diverged at step ")
    assert broken["failed"] == "seed 1: RuntimeError: out of memory | really"
    assert [row["seeds"] for row in result.table()] == [2, 0, 1]
    assert result.has_failures
    assert [path.name for path in result.folders] == ["dense-0", "dense-1", "broken-0"]
    assert said[0] == "dense, seed 0"
    assert sum("failed" in line for line in said) == 3
    lines = (tmp_path / "comparison.md").read_text().splitlines()
    assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1  # the text does not break the table
    assert "out of memory" in result.to_text()


def test_everything_fails(settings, tmp_path):
    result = compare({"a": settings("sgd", epochs=1, options={"lr": 1e30})}, 1, tmp_path / "new", quiet=True)
    assert result.folders == []
    assert (tmp_path / "new" / "comparison.md").exists()


def test_a_run_with_other_settings_is_found_before_anything_is_trained(comparison, entries, monkeypatch):
    _, out = comparison
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("trained"))
    longer = {method: replace(settings, epochs=9) for method, settings in entries.items()}
    with pytest.raises(RecordError, match="holds a run with epochs 2, not 9: give another --out, or delete it"):
        compare(longer, 2, out, quiet=True)
    denser = {"ssvi": replace(entries["ssvi"], options={"density": 0.5, "update_period": 4})}
    with pytest.raises(RecordError, match=r"holds a run with density 0\.1, not 0\.5"):
        compare(denser, 2, out, quiet=True)
    default = {"ssvi": replace(entries["ssvi"], options={})}
    with pytest.raises(RecordError, match=r"holds a run with density 0\.1, not 0\.05"):
        compare(default, 2, out, quiet=True)


def test_a_run_with_a_setting_that_no_longer_exists_is_taken_as_it_is(settings, tmp_path, monkeypatch):
    """Version 0.3.0.dev recorded ``fused``."""
    entries = {"sgd": settings("sgd", epochs=1)}
    compare(entries, 1, tmp_path, quiet=True)
    config = tmp_path / "sgd-0" / "config.toml"
    config.write_text('fused = "auto"\n' + config.read_text())
    assert settings_of(Run.open(tmp_path / "sgd-0")).method == "sgd"
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("trained"))
    compare(entries, 1, tmp_path, quiet=True)


def test_a_run_of_before_a_setting_existed_is_taken_as_it_is(settings, tmp_path, monkeypatch):
    entries = {"sgd": settings("sgd", epochs=1)}
    compare(entries, 1, tmp_path, quiet=True)
    config = tmp_path / "sgd-0" / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(("capture", "momentum"))))
    assert len(config.read_text().splitlines()) == len(lines) - 2  # a setting, and an option of the method
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("trained"))
    compare(entries, 1, tmp_path, quiet=True)
    with pytest.raises(RecordError, match="holds a run with capture True, not False"):
        compare({"sgd": replace(entries["sgd"], capture=False)}, 1, tmp_path, quiet=True)
    with pytest.raises(RecordError, match=r"holds a run with momentum 0\.9, not 0\.5"):
        compare({"sgd": replace(entries["sgd"], options={"momentum": 0.5})}, 1, tmp_path, quiet=True)


def test_ctrl_c_stops_everything_and_the_same_command_goes_on(settings, monkeypatch, tmp_path):
    entries = {method: settings(method, epochs=1) for method in ("sgd", "vi")}
    uninterrupted = compare(entries, 1, tmp_path / "whole", quiet=True)
    advance = Training.advance

    def interrupt(self):
        if self.step == 7 and self.model.state_dict().keys() >= {"1.weight.mean"}:  # of vi
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "advance", interrupt)
        with pytest.raises(Interrupted, match="interrupted; give the same command again"):
            compare(entries, 1, tmp_path / "runs", quiet=True)
    assert Run.open(tmp_path / "runs" / "sgd-0").result() is not None
    assert Run.open(tmp_path / "runs" / "vi-0").result() is None
    again = compare(entries, 1, tmp_path / "runs", quiet=True)
    # The checkpoint holds its seconds, of as many digits as they happen to have.
    measured = {"seconds": 0, "peak_memory_bytes": 0, "prediction_seconds": 0, "checkpoint_bytes": 0}
    for one, other in zip(again.table(), uninterrupted.table(), strict=True):
        assert one | measured == other | measured


@pytest.mark.parametrize(("seeds", "change", "message"), [(0, {}, "seeds must be"), (1, {"ranks": 2}, "one process")])
def test_what_cannot_be_compared(settings, tmp_path, seeds, change, message):
    with pytest.raises(ValueError, match=message):
        compare({"sgd": settings("sgd", **change)}, seeds, tmp_path, quiet=True)


def test_numbers_that_are_not_finite_are_left_out_of_the_json(tmp_path):
    run = Run.create(tmp_path / "run", {"method": "sgd", "seed": 0})
    cost = {"active_parameters": 1, "total_parameters": 1, "checkpoint_bytes": 1, "seconds": 1.0}
    run.write_result({"model": "mlp", "metrics": {"nll": math.inf, "ece": None, "accuracy": 0.5}, "cost": cost})
    kept = Comparison([Entry("sgd", [run.result()])], [run.folder]).to_json()
    assert json.loads(kept, parse_constant=pytest.fail)["trials"][0]["metrics"] == {"accuracy": 0.5}


RECIPE = """# Sparse against dense
data = "digits"
epochs = 5
seeds = 4

[methods.sgd]
[methods."ssvi 5 %"]
method = "ssvi"
density = 0.05
batch_size = 128
"""


def test_a_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    entries, seeds = read_recipe(tmp_path / "recipe.toml")
    assert seeds == 4
    assert entries == {
        "sgd": Settings("sgd", "digits", epochs=5),
        "ssvi 5 %": Settings("ssvi", "digits", epochs=5, batch_size=128, options={"density": 0.05}),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epochs", "epoch"), "[methods.sgd]: unknown key 'epoch'; did you mean 'epochs'?"),
        (("density", "densty"), "unknown option of ssvi 'densty'; did you mean 'density'?"),
        (("0.05", "'x'"), "density of ssvi must be a number; got 'x'"),
        (("seeds = 4", "seeds = 'x'"), "seeds must be a whole number from 1; got 'x'"),
        (("[methods.sgd]", "methods = 3"), "is broken"),
        (("[methods", "[other"), "compares nothing"),
        (("epochs =", "epochs ="[:-1]), "is broken"),
        (('"digits"', '"digit"'), "unknown data set 'digit'; did you mean 'digits'?"),
    ],
)
def test_a_wrong_recipe_names_the_file_and_the_key(tmp_path, change, message):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace(*change))
    with pytest.raises(RecordError) as caught:
        read_recipe(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match="cannot read"):
        read_recipe(tmp_path / "no.toml")
