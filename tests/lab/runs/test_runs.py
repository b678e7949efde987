"""Runs as Python functions: train, evaluate, predict, show."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer._text.names import trusting
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.lab import Interrupted, Settings, evaluate_run, predict_run, resume, show, train
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs import job as job_module
from gossamer.lab.runs import result as result_module
from gossamer.lab.runs.job import Job
from gossamer.lab.runs.settings import with_defaults
from gossamer.posterior import SingleNetwork
from gossamer.train import checkpoint, fit


def test_a_run_is_a_folder_that_says_everything(whole):
    folder = whole("ssvi")
    names = {"config.toml", "environment.json", "data.json", "metrics.jsonl", "subspace.jsonl", "result.json"}
    assert {path.name for path in folder.iterdir()} == names | {"checkpoint", ".lock"}
    run = Run.open(folder)
    options = Settings.from_config(run.config).options
    assert options == with_defaults("ssvi", {"density": 0.1, "update_period": 4})
    assert run.config["options"] == {name: value for name, value in options.items() if value is not None}
    rows = run.metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["step"] for row in rows] == [15, 30, 45]
    assert all(row["loss"] == pytest.approx(row["nll"] + row["kl"]) for row in rows)
    assert all(row["density"] == pytest.approx(0.1, abs=0.001) for row in rows)
    assert rows[-1]["val_accuracy"] > rows[0]["val_accuracy"]
    assert [row["step"] for row in run.updates()] == list(range(4, 33, 4))


def test_the_result_is_json_that_any_program_reads(whole):
    def refuse(name):
        raise AssertionError(name)

    for method in ("sgd", "ssvi"):
        text = (whole(method) / "result.json").read_text()
        result = json.loads(text, parse_constant=refuse)  # NaN and Infinity are not JSON
        assert result["metrics"]["accuracy"] > 0.5
        assert result["cost"]["active_parameters"] <= result["cost"]["total_parameters"]
        assert result["cost"]["checkpoint_bytes"] > 0
    assert result["cost"]["density"] == pytest.approx(0.1, abs=0.001)


def test_a_sparse_checkpoint_is_small(whole):
    sizes = {method: json.loads((whole(method) / "result.json").read_text())["cost"] for method in ("vi", "ssvi")}
    assert sizes["ssvi"]["checkpoint_bytes"] < 0.25 * sizes["vi"]["checkpoint_bytes"]


def test_the_same_settings_give_the_same_run(settings, whole, assert_same_runs, tmp_path):
    torch.rand(3)  # the state of the global generator does not matter
    train(settings("ssvi"), tmp_path / "run", quiet=True)
    assert_same_runs(tmp_path / "run", whole("ssvi"))
    other = train(replace(settings("ssvi"), seed=1), tmp_path / "other", quiet=True)
    assert other.result()["metrics"] != Run.open(whole("ssvi")).result()["metrics"]


def test_a_run_draws_from_noise_of_its_own(settings, tmp_path):
    before = torch.get_rng_state()
    with pytest.raises(Interrupted):
        train(settings("mc_dropout"), tmp_path / "run", quiet=True, stop_after=0)
    resume(tmp_path / "run", quiet=True)
    evaluate_run(tmp_path / "run")
    job_module.check(settings("ssvi"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("ssvi", {}, {"lr": 0.02, "optimizer": "Adam", "allocation": "erk", "std": "curvature", "noise": "local"}),
        ("ssvi", {"std": "gradient"}, {"lr": 0.02, "kl_weight": 0.02, "optimizer": "Adam"}),
        ("ssvi", {"lr": 0.05, "optimizer": "sgd"}, {"lr": 0.05, "optimizer": "SGD"}),
        ("sgd", {}, {"lr": 0.1, "optimizer": "SGD"}),
    ],
)
def test_a_run_says_what_it_used(method, options, expected, tmp_path):
    told = Settings(method, "digits", epochs=1, n_val=239, n_draws=1, device="cpu", options=options)
    found = train(told, tmp_path / "run", quiet=True).environment["effective"]
    assert found | expected == found
    assert found | {"model": "mlp", "device": "cpu", "precision": "32", "steps": 15} == found
    assert ("kl_weight" in found) == ("kl_weight" in expected)


def test_from_python_a_run_with_own_code_is_resumed_by_naming_it(own_modules, monkeypatch):
    (own_modules / "mine.py").write_text("from gossamer.data.digits import load\n")
    monkeypatch.syspath_prepend(own_modules)
    run = train(Settings("sgd", "mine:load", epochs=1, n_draws=1, device="cpu"), own_modules / "run", quiet=True)
    metrics = run.result()["metrics"]
    (run.folder / "result.json").unlink()
    with pytest.raises(Exception, match="If you trust it, name it again: --trust mine:load"):
        resume(run.folder, quiet=True)
    with trusting("mine:load"):
        assert resume(run.folder, quiet=True).result()["metrics"] == metrics


def test_looking_and_saving_do_not_change_the_training(settings, whole, assert_same_runs, tmp_path):
    train(settings("vi"), tmp_path / "run", quiet=True, checkpoint_seconds=0)
    assert_same_runs(tmp_path / "run", whole("vi"))


def test_what_a_gpu_has_queued_is_waited_for_on_the_clock_before_it_is_saved(settings, monkeypatch, tmp_path):
    done, save = [], job_module._save
    monkeypatch.setattr(job_module, "_wait", lambda training: done.append("wait"))
    monkeypatch.setattr(job_module, "_save", lambda job: (done.append("save"), save(job)))
    train(settings("sgd", epochs=1), tmp_path / "run", quiet=True, checkpoint_seconds=0)
    assert done.count("save") == 15
    assert all(done[i - 1] == "wait" for i, event in enumerate(done) if event == "save")


def test_mixed_precision(settings, tmp_path):
    run = train(settings("ssvi", precision="bf16", epochs=5), tmp_path / "run", quiet=True)
    assert run.result()["metrics"]["accuracy"] > 0.3
    assert evaluate_run(run.folder) == run.result()["metrics"]


def test_an_existing_run_is_refused_before_the_data_are_read(settings, whole, monkeypatch, tmp_path):
    finished = whole("ssvi")  # trains, in whichever test is the first to ask for it
    monkeypatch.setattr(Settings, "load_task", lambda self: pytest.fail("the data were read"))
    with pytest.raises(RecordError, match=r"holds a finished run: gossamer show .*; a new one needs another --out$"):
        train(settings("ssvi"), finished)
    run = Run.create(tmp_path / "unfinished run", settings("ssvi").to_config())
    with pytest.raises(RecordError, match=r"unfinished run: gossamer train --resume '.*' continues it"):
        train(settings("ssvi"), run.folder)


def test_a_folder_with_something_else_in_it_is_refused(settings, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RecordError, match="is not empty"):
        train(settings("sgd"), tmp_path, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_default_folder(settings, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = train(replace(settings("sgd", epochs=1), seed=7), quiet=True)
    assert run.folder.as_posix() == f"runs/{date.today().isoformat()}-sgd-digits-7"
    again = train(replace(settings("sgd", epochs=1), seed=7), quiet=True)
    assert again.folder == run.folder.with_name(f"{run.folder.name}-2")


def test_what_cannot_be_trained_leaves_no_folder(settings, tmp_path):
    with pytest.raises(ValueError, match=r"density must be a number in \(0, 1\]"):
        train(settings("ssvi", options={"density": 0.0}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number or none; got 1.5"),
        ({"epochs": True}, "epochs must be a whole number or none; got True"),
        ({"batch_size": -1}, "batch_size must be at least 1"),
        ({"n_draws": 0}, "n_draws must be at least 1"),
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"seed": -1}, "seed must be from 0 to 4294967295; got -1"),
        ({"seed": 2**32}, "seed must be from 0 to 4294967295"),
        ({"precision": "16"}, "precision must be 'auto' or '32' or 'bf16'; got '16'"),
        ({"device": "gpu"}, "device must be 'auto' or 'cpu' or 'cuda'; got 'gpu'"),
        ({"model": "mpl"}, "unknown model 'mpl'; did you mean 'mlp'?"),
        ({"method": "svi"}, "unknown method 'svi'; did you mean 'ssvi'?"),
        ({"data": "digit"}, "unknown data set 'digit'; did you mean 'digits'?"),
        ({"options": {"densty": 0.1}}, "unknown option of ssvi 'densty'; did you mean 'density'?"),
        ({"options": {"mode": "fast"}}, "mode of ssvi must be 'default' or 'reference'; got 'fast'"),
    ],
)
def test_settings_that_cannot_be_meant(change, message):
    with pytest.raises(ValueError, match=r"must be|unknown") as caught:
        Settings(**{"method": "ssvi", "data": "digits"} | change)
    assert str(caught.value).startswith(message)


def test_a_function_is_an_option_in_python(tmp_path):
    told = Settings("ssvi", "digits", epochs=1, options={"removal": lambda stats: stats.mean.abs()})
    with pytest.raises(RecordError, match=r"config\.toml cannot hold options\.removal"):  # which a file cannot say
        train(told, tmp_path / "run", quiet=True)


def test_config_round_trip(settings):
    told = settings("ssvi")
    assert Settings.from_config(told.to_config()) == told
    with pytest.raises(ValueError, match="the key 'data' is missing"):
        Settings.from_config({"method": "ssvi"})


def test_evaluate_gives_the_numbers_of_the_result(whole, each_method):
    run = Run.open(whole(each_method))
    state = torch.get_rng_state()
    assert evaluate_run(run.folder) == run.result()["metrics"]
    assert torch.equal(torch.get_rng_state(), state)


def test_the_cost_of_each_method_is_within_what_there_is(whole, each_method):
    cost = Run.open(whole(each_method)).result()["cost"]
    assert 0 < cost["active_parameters"] <= cost["total_parameters"]
    assert cost["density"] == cost["active_parameters"] / cost["total_parameters"]
    assert 0 < cost["inference_macs"] <= 2 * 84_480  # of the dense network, and of means and variances
    assert cost["training_macs_per_example"] > 0
    assert cost["training_macs"] >= 959 * 3 * cost["training_macs_per_example"] * (1 - 1e-12)
    assert cost["parameter_bytes"] > 0


def test_every_prediction_of_an_average_is_one_of_the_average(settings):
    """Also at the means and with local noise, and refreshed: its batch normalisation has statistics of no network."""
    task, steps = digits.load(), 60
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    posterior = fit(methods.build("ssvi", task, steps, density=0.5, average=0.25), network, task, steps)
    posterior.model[2].running_var.fill_(1e-4)
    found = result_module._other_predictions(Job(Path(), settings("ssvi"), task, None, None, None), posterior)
    assert found["mean"] == evaluate(SingleNetwork(posterior.model, posterior.refresh), task)
    assert found["mean"] != evaluate(SingleNetwork(network, posterior.refresh), task)  # the last network
    assert min(found[way]["accuracy"] for way in ("mean", "local")) > 0.8


def test_evaluate_with_other_draws_and_splits(whole):
    folder = whole("ssvi")
    values = {split: evaluate_run(folder, split=split) for split in ("train", "val", "test")}
    assert len({value["nll"] for value in values.values()}) == 3
    assert evaluate_run(folder, n_draws=5)["nll"] != values["test"]["nll"]
    with pytest.raises(ValueError, match="split must be train, val or test; got 'tset'"):
        evaluate_run(folder, split="tset")
    with pytest.raises(ValueError, match="n_draws must be at least 1; got 0"):
        evaluate_run(folder, n_draws=0)


def test_evaluating_a_run_of_a_gpu_and_of_several_ranks_needs_neither(whole, tmp_path):
    config = Run.open(whole("ssvi")).config | {"device": "cuda", "ranks": 4}
    run = Run.create(tmp_path / "run", config)
    state = checkpoint.load(whole("ssvi") / "checkpoint")
    checkpoint.save(run.checkpoint_folder, state | {"files": run.checksums()}, 45)
    assert evaluate_run(run.folder) == evaluate_run(whole("ssvi"))


def test_a_run_without_a_checkpoint_cannot_be_evaluated(settings, tmp_path):
    run = Run.create(tmp_path / "run", settings("ssvi").to_config())
    with pytest.raises(RecordError, match="has no checkpoint yet: continue it with gossamer train --resume"):
        evaluate_run(run.folder)


def test_a_finished_run_is_not_evaluated_by_an_earlier_checkpoint(settings, tmp_path):
    run = train(settings("sgd"), tmp_path / "run", quiet=True, checkpoint_seconds=0)
    (run.checkpoint_folder / "step-45.safetensors").unlink()
    with pytest.raises(RecordError, match=r"lacks its last checkpoint: delete its result\.json, then gossamer train"):
        evaluate_run(run.folder)


class TestPredict:
    @pytest.fixture
    def x(self):
        return digits.load().test[0][:6].numpy()

    def test_classes_with_their_uncertainty(self, whole, x, tmp_path):
        np.save(tmp_path / "new.npy", x)
        rows = predict_run(whole("ssvi"), tmp_path / "new.npy")
        probs = [f"p_{name}" for name in "0123456789"]
        assert [list(row) for row in rows] == [["class", "confidence", "entropy", "mutual_information", *probs]] * 6
        assert all(sum(row[name] for name in probs) == pytest.approx(1, abs=1e-5) for row in rows)
        assert all(row[f"p_{row['class']}"] == row["confidence"] for row in rows)
        assert all(row["class"] in "0123456789" and 0.1 <= row["confidence"] <= 1 for row in rows)
        labels = [str(int(label)) for label in digits.load().test[1][:6]]
        assert sum(row["class"] == label for row, label in zip(rows, labels, strict=True)) >= 3
        assert predict_run(whole("ssvi"), tmp_path / "new.npy") == rows

    @pytest.mark.parametrize("form", ["flat", "channels last", "one example", "csv", "csv with names", "big-endian"])
    def test_every_form_gives_the_same(self, whole, x, tmp_path, form):
        np.save(tmp_path / "new.npy", x)
        rows = predict_run(whole("vi"), tmp_path / "new.npy", n_draws=2)
        path = tmp_path / ("other.csv" if form.startswith("csv") else "other.npy")
        if form.startswith("csv"):
            names = ",".join(f"pixel{i}" for i in range(64)) if "names" in form else ""
            np.savetxt(path, x.reshape(6, 64), delimiter=",", header=names, comments="")
        else:
            forms = {
                "flat": x.reshape(6, 64),
                "channels last": np.moveaxis(x, 1, -1),
                "one example": x[0],
                "big-endian": x.astype(">f8"),
            }
            np.save(path, forms[form])
        if form == "one example":  # a product of one row may be summed in another order
            (row,) = predict_run(whole("vi"), path, n_draws=2)
            assert row.pop("class") == rows[0].pop("class")
            assert row == pytest.approx(rows[0], rel=1e-3)
        else:
            assert predict_run(whole("vi"), path, n_draws=2) == rows

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros((3, 63)), "has examples of shape (63,), digits has (1, 8, 8)"),
            (np.zeros(()), "has examples of shape ()"),
            (np.zeros((0, 64)), "has no examples"),
            (np.array([[np.nan] + [0.0] * 63] * 2), "has numbers that are not finite, the first in row 1"),
            (np.array([["a"] * 64]), "is not an array of numbers but of <U1"),
            (np.array([{}] * 64, dtype=object), "is not an array of numbers: it holds Python objects"),
        ],
    )
    def test_what_is_no_input(self, whole, tmp_path, array, message):
        np.save(tmp_path / "new.npy", array)
        with pytest.raises(RecordError) as caught:
            predict_run(whole("sgd"), tmp_path / "new.npy")
        assert str(caught.value).startswith(f"{tmp_path / 'new.npy'} {message}")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("new.csv", b"", "has examples of shape"),
            ("new.csv", b"a,b\n1,x\n", "is not an array of numbers"),
            ("new.csv", b"\xff\xfe\x00", "is not an array of numbers"),
            ("new.npy", b"", "is not an array of numbers"),
            ("new.npy", b"\x93NUMPY\x01\x00v\x00", "is not an array of numbers"),
            ("new.txt", b"1,2", r"inputs are read from \.npy, \.npz, \.csv"),
        ],
    )
    def test_files_that_are_no_arrays(self, whole, tmp_path, name, content, message):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RecordError, match=message):
            predict_run(whole("sgd"), tmp_path / name)

    def test_a_missing_file(self, whole, tmp_path):
        with pytest.raises(RecordError, match=r"no\.npy does not exist: check the path"):
            predict_run(whole("sgd"), tmp_path / "no.npy")


def test_pixels_are_checked_where_a_set_stores_bytes(tmp_path):
    from gossamer.lab.runs.reading import read_inputs

    task = digits.load()
    stored = task._replace(test=((task.test[0] * 255).to(torch.uint8), task.test[1]))
    path = tmp_path / "new.npy"
    np.save(path, np.full((2, 64), 255.0))
    assert read_inputs(path, stored).x.dtype == torch.uint8
    for wrong in (np.full((2, 64), 0.5), np.full((2, 64), 256), np.full((2, 64), -1)):
        np.save(path, wrong)
        with pytest.raises(RecordError, match="must have whole numbers from 0 to 255"):
            read_inputs(path, stored)


def test_numbers_are_predicted_in_their_units(tmp_path):
    told = Settings("vi", "sun1", epochs=1, batch_size=1000, n_draws=2, device="cpu")
    run = train(told, tmp_path / "run", quiet=True)
    task = told.load_task()
    np.save(tmp_path / "new.npy", task.test[0][:4].numpy())
    rows = predict_run(run.folder, tmp_path / "new.npy")
    assert all(row["low90"] < row["mean"] < row["high90"] and row["std"] > 0 for row in rows)
    assert set(run.result()["metrics"]) >= {"rmse", "nll", "crps", "coverage90"}
    assert "rmse" in show(run.folder)


def test_show(settings, whole, tmp_path):
    text = show(whole("ssvi"))
    assert "method=ssvi" in text
    assert "density=0.1" in text
    assert "accuracy" in text
    assert "weights active" in text
    run = Run.create(tmp_path / "a run", settings("vi").to_config())
    assert "no epoch is finished; continue with: gossamer train --resume '" in show(run.folder)
    run.append({"step": 15, "epoch": 1})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "epo')  # half a line
    assert "unfinished epoch 1 of 3" in show(run.folder)


def test_show_of_a_result_that_lacks_something(settings, tmp_path):
    run = Run.create(tmp_path / "run", settings("vi").to_config())
    run.write_result({"metrics": {}})
    with pytest.raises(RecordError, match=r"result\.json is broken"):
        show(run.folder)


def test_parameters_in_memory_are_those_of_all_that_predict(whole):
    """One network for a point, its means and stds for a Gaussian, and four networks for snapshots in four cycles."""
    results = {method: Run.open(whole(method)).result() for method in ("sgd", "cv_adam", "cv_sghmc")}
    size = {method: result["cost"]["parameter_bytes"] for method, result in results.items()}
    assert size["cv_adam"] == 2 * size["sgd"]
    assert size["cv_sghmc"] == 4 * size["sgd"]
    assert sum(results["cv_adam"]["curves"]["snr"]["count"]) == size["sgd"] / 4  # one of each of its float32 parameters
    assert "snr" not in results["cv_sghmc"]["curves"]
