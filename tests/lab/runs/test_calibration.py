"""Runs calibrate themselves where enough examples are held out, and train on them where there are too few."""

import inspect
import json
import sys
import types

import numpy as np
import pytest
import torch

from gossamer import data, load, load_run, methods
from gossamer.evaluate import predict_inputs, summarize
from gossamer.lab import Settings, resume, train, trusting
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.evaluation import evaluate_conformal, evaluate_run
from gossamer.lab.runs.job import settings_of
from gossamer.lab.runs.progress import Interrupted
from gossamer.lab.runs.reading import predict_run
from gossamer.layers import sparse_weights
from gossamer.models import mlp
from gossamer.posterior import LEAST_HELD_OUT, Mixture
from gossamer.train import Training, checkpoint
from gossamer.train.fitting import WIDTHS, calibrate_held_out
from gossamer.types import Task

MOONS = {"epochs": 2, "n_draws": 4, "device": "cpu", "n_val": LEAST_HELD_OUT}


def moons(*, options=None, **changes):
    return Settings(
        "ssvi", "two_moons", **MOONS | changes, options={"density": 0.3, "update_period": 4, **(options or {})}
    )


def sizes(**changes):
    task = Settings("sgd", "digits", **changes).load_task()
    return tuple(len(y) for _, y in (task.train, task.val, task.test))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    return train(moons(), tmp_path_factory.mktemp("calibrated") / "run", quiet=True).folder


def test_few_held_out_examples_are_trained_on_unless_asked_for():
    assert sizes() == (959 + 239, 0, 599)
    assert sizes(n_val=239) == sizes(calibrate=False) == (959, 239, 599)
    assert sizes(n_val=0) == (1198, 0, 599)
    kept, joined = data.load("digits"), Settings("sgd", "digits").load_task()
    assert torch.equal(Settings("sgd", "digits", n_val=239).load_task().val[0], kept.val[0])
    for part, one, other in zip(joined.train, kept.train, kept.val, strict=True):
        assert torch.equal(part, torch.cat([one, other]))
    assert torch.equal(joined.test[0], kept.test[0])


def test_the_record_of_own_data_counts_what_is_trained_on(tmp_path):
    rows = [f"{i},{2 * i}.5" for i in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    told = {"target": "y"}
    joined, kept = (Settings("sgd", str(tmp_path / "t.csv"), **told, n_val=n).load_task() for n in (None, 8))
    assert joined.record["sizes"] == {"train": 80, "val": 0, "test": 20}
    assert kept.record["sizes"] == {"train": 72, "val": 8, "test": 20}


def test_rows_that_a_file_holds_out_are_trained_on_alike(tmp_path):
    x, y = np.arange(100.0).reshape(50, 2), np.arange(50) % 3
    parts = {"train": slice(30), "val": slice(30, 40), "test": slice(40, 50)}
    np.savez(
        tmp_path / "a.npz",
        **{f"{k}_{name}": v[rows] for name, rows in parts.items() for k, v in zip("xy", (x, y), strict=True)},
    )
    joined, kept = (Settings("sgd", str(tmp_path / "a.npz"), calibrate=is_on).load_task() for is_on in (True, False))
    assert (joined.n_data, len(joined.val[1]), len(joined.test[1])) == (40, 0, 10)
    assert (kept.n_data, len(kept.val[1]), len(kept.test[1])) == (30, 10, 10)


def test_a_run_with_enough_held_out_examples_predicts_as_calibrated_everywhere(calibrated, tmp_path):
    result = Run.open(calibrated).result()
    found, metrics = result["calibration"], result["metrics"]
    assert found["temperature"] in WIDTHS
    assert found["logit_temperature"] != 1
    assert found["nll_after"] < found["nll_before"]

    assert evaluate_run(calibrated) == metrics
    loaded = load_run(calibrated, device="cpu")
    assert loaded.posterior.temperature == found["logit_temperature"]
    sizes = {"n_draws": loaded.settings.n_draws, "seed": loaded.settings.seed}
    prediction = predict_inputs(loaded.posterior, loaded.task, loaded.task.test[0], **sizes)
    assert summarize(prediction, loaded.task, loaded.task.test[1]) == metrics

    again = load(loaded.save(tmp_path / "run.safetensors"), mlp(2, out_features=2))
    in_file = predict_inputs(again, loaded.task, loaded.task.test[0], **sizes)
    torch.testing.assert_close(in_file.probs, prediction.probs)

    np.save(tmp_path / "x.npy", loaded.task.test[0].numpy())
    rows = predict_run(calibrated, tmp_path / "x.npy")
    probs = torch.tensor([[row["p_upper"], row["p_lower"]] for row in rows])
    torch.testing.assert_close(probs, prediction.probs.float())

    plain = train(moons(calibrate=False), tmp_path / "plain", quiet=True).result()
    assert "calibration" not in plain
    assert plain["metrics"] != metrics
    assert plain["layers"][0]["active"] == result["layers"][0]["active"]


@pytest.mark.parametrize("options", [{}, {"members": 2}], ids=["one", "mixture"])
def test_a_run_that_was_stopped_is_calibrated_as_one_that_was_not(options, tmp_path, assert_same_runs):
    whole = train(moons(options=options), tmp_path / "whole", quiet=True)
    with pytest.raises(Interrupted):
        train(moons(options=options), tmp_path / "run", quiet=True, stop_after=0)
    resumed = resume(tmp_path / "run", quiet=True)
    assert resumed.result()["calibration"] == whole.result()["calibration"]
    assert_same_runs(tmp_path / "run", tmp_path / "whole")
    posterior = load_run(tmp_path / "run", device="cpu").posterior
    assert isinstance(posterior, Mixture) == bool(options)
    assert posterior.temperature == whole.result()["calibration"]["logit_temperature"]


def test_too_few_held_out_examples_calibrate_nothing(tmp_path):
    run = train(moons(n_val=LEAST_HELD_OUT - 1), tmp_path / "run", quiet=True)
    assert "calibration" not in run.result()


def presets(name):
    known = inspect.signature(methods.find(name)).parameters
    return "preset" in known, "mode" in known


@pytest.mark.parametrize("name", [name for name in methods.names() if any(presets(name))])
def test_the_numbers_of_a_paper_are_made_without_calibration(name):
    task = moons().load_task()
    has_preset, has_mode = presets(name)
    assert methods.build(name, task, 60).suited_to(mlp(2)).calibrates
    told = [{"mode": "reference"}] * has_mode + [{"preset": "paper_example1"}] * has_preset
    for options in told:
        method = methods.build(name, task, 60, **options)
        assert not method.calibrates
        assert not method.suited_to(mlp(2)).calibrates


@pytest.mark.parametrize("name", ["ssvi", "vi"])
def test_a_training_in_reference_mode_stays_as_it_is(name):
    task = moons().load_task()
    training = Training(methods.build(name, task, 2, mode="reference"), mlp(2), task, 2)
    list(training.run())
    assert calibrate_held_out(training) is None
    assert training.posterior().temperature == 1


def of_an_earlier_version(folder):
    """The records as they were written when no run calibrated."""
    config = folder / "config.toml"
    assert "calibrate = false\n" in config.read_text()
    config.write_text(config.read_text().replace("calibrate = false\n", ""))
    state = checkpoint.load(folder / "checkpoint")
    del state["files"]["config.toml"]["calibrate"]
    checkpoint.save(folder / "checkpoint", state, state["training"]["step"])


def test_runs_of_an_earlier_version_keep_their_held_out_examples(tmp_path):
    told = Settings("sgd", "digits", epochs=1, n_draws=1, device="cpu", calibrate=False)
    whole = train(told, tmp_path / "whole", quiet=True)
    with pytest.raises(Interrupted):
        train(told, tmp_path / "run", quiet=True, stop_after=0)
    for folder in (whole.folder, tmp_path / "run"):
        of_an_earlier_version(folder)
        settings = settings_of(Run.open(folder))
        assert not settings.calibrate
        assert len(settings.load_task().val[1]) == 239
    assert evaluate_run(whole.folder) == whole.result()["metrics"]
    assert evaluate_run(whole.folder, split="val").keys() == whole.result()["metrics"].keys()
    assert resume(tmp_path / "run", quiet=True).result()["metrics"] == whole.result()["metrics"]


def test_an_earlier_run_on_many_held_out_examples_is_not_calibrated_when_it_goes_on(tmp_path):
    with pytest.raises(Interrupted):
        train(moons(calibrate=False), tmp_path / "run", quiet=True, stop_after=0)
    of_an_earlier_version(tmp_path / "run")
    assert "calibration" not in resume(tmp_path / "run", quiet=True).result()


def numbers(root=None) -> Task:
    """As sun1, with fewer variables and examples; 500 are held out."""
    task = data.load("sun1", n_train=600, n_test=50)
    train, val, test = ((x[:600, :20], y[:600]) for x, y in (task.train, task.val, task.test))
    return task._replace(train=train, val=(val[0][:LEAST_HELD_OUT], val[1][:LEAST_HELD_OUT]), test=test)


@pytest.fixture
def own_task(monkeypatch):
    """``own_numbers:load``, which a run can name."""
    module = types.ModuleType("own_numbers")
    module.load = numbers
    monkeypatch.setitem(sys.modules, "own_numbers", module)
    return "own_numbers:load"


def test_numbers_get_a_width_and_no_temperature(own_task, tmp_path):
    told = Settings("ssvi", own_task, epochs=2, n_draws=4, device="cpu", options={"density": 0.3})
    run = train(told, tmp_path / "run", quiet=True)
    found = run.result()["calibration"]
    assert found["temperature"] in WIDTHS
    assert found["logit_temperature"] == 1
    with trusting(own_task):
        assert evaluate_run(run.folder) == run.result()["metrics"]
        loaded = load_run(run.folder, device="cpu")
    assert {weight.calibration for weight in sparse_weights(loaded.model).values()} == {found["temperature"]}
    assert loaded.posterior.temperature == 1


def test_numbers_of_a_network_without_noise_have_nothing_to_calibrate(own_task, tmp_path):
    run = train(Settings("sgd", own_task, epochs=1, n_draws=1, device="cpu"), tmp_path / "run", quiet=True)
    assert "calibration" not in run.result()


def test_an_evaluation_without_held_out_examples_says_how_to_get_them(tmp_path):
    told = Settings("sgd", "digits", epochs=1, n_draws=1, device="cpu")
    folder = train(told, tmp_path / "run", quiet=True).folder
    for evaluate in (evaluate_conformal, lambda folder: evaluate_run(folder, split="val")):
        with pytest.raises((ValueError, RecordError), match="train with --n_val N to hold out N") as refusal:
            evaluate(folder)
        assert "\n" not in str(refusal.value)


def test_what_was_found_is_plain_json(calibrated):
    kept = json.loads((calibrated / "result.json").read_text())["calibration"]
    assert kept.keys() == {"temperature", "nll_before", "nll_after", "logit_temperature"}
