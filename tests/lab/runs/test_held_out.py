"""What the held-out examples add to a run, against the functions behind it."""

import json

import numpy as np
import pytest
import torch

from gossamer import conformal, lab, metrics
from gossamer.evaluate import summarize
from gossamer.lab.record import RecordError, Run
from gossamer.lab.report.evaluation import conformal_table, selective_table, temperature_table
from gossamer.lab.runs.evaluation import (
    evaluate_conformal,
    evaluate_selective,
    evaluate_temperature,
)
from gossamer.lab.runs.job import restored
from gossamer.lab.runs.reading import predict_run
from gossamer.posterior import at_temperature, fit_temperature


def trained(folder, method, data, **settings):
    return lab.train(lab.Settings(method, data, n_draws=4, device="cpu", **settings), folder, quiet=True).folder


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("classes") / "run", "ssvi", "digits", epochs=3, n_val=239)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("numbers") / "run", "ssvi", "sun1", epochs=2)


def kept(folder, kind):
    return Run.open(folder).evaluation()[kind]


def test_the_temperature_is_fitted_on_held_out_examples_and_judged_on_the_test_data(classes):
    found = evaluate_temperature(classes)
    assert kept(classes, "temperature") == json.loads(json.dumps(found))
    job = restored(classes)
    (x_val, y_val), (x, y) = job.task.val, job.task.test
    expected = fit_temperature(job.predict(x_val), y_val)
    assert found["val"]["temperature"] == pytest.approx(expected)
    after = summarize(at_temperature(job.predict(x), expected), job.task, y)
    assert found["val"]["after"] == pytest.approx(after)
    assert temperature_table(found).rows[0][0] == "1"


def test_sets_cover_the_test_data(classes):
    found = evaluate_conformal(classes, 0.8)
    assert kept(classes, "conformal")["0.8"] == json.loads(json.dumps(found["0.8"]))
    entry = found["0.8"]
    assert (entry["n_val"], entry["n_test"]) == (239, 599)
    job = restored(classes)
    probs_val, probs = (job.predict(split[0]).probs.double() for split in (job.task.val, job.task.test))
    sets = conformal.class_sets(probs_val, job.task.val[1], probs, 0.8, "lac")
    lac = entry["kinds"]["lac"]
    assert lac["coverage"] == pytest.approx(float(sets.gather(1, job.task.test[1][:, None]).double().mean()), abs=1e-6)
    for kind in entry["kinds"].values():
        assert sum(kind["sizes"]) == 599
        assert kind["mean_size"] == pytest.approx(sum(i * n for i, n in enumerate(kind["sizes"])) / 599)
    assert [row[1] for row in conformal_table(found).rows] == ["aps", "lac"]
    evaluate_conformal(classes, 0.9)
    assert set(kept(classes, "conformal")) == {"0.8", "0.9"}


def test_intervals_are_in_original_units(numbers):
    entry = evaluate_conformal(numbers, 0.8)["0.8"]
    job = restored(numbers)
    (x_val, y_val), (x, y) = job.task.val, job.task.test
    val, test = job.predict(x_val), job.predict(x)
    low, high = conformal.scaled_intervals(val.mean, val.std, y_val, test.mean, test.std, 0.8)
    scaled = entry["kinds"]["scaled"]
    assert scaled["coverage"] == pytest.approx(metrics.coverage(low, high, y))
    assert scaled["mean_width"] == pytest.approx(job.task.target_std * float((high - low).double().mean()))
    assert list(entry["kinds"]) == ["predicted", "scaled", "shifted"]


@pytest.mark.filterwarnings("ignore:inputs leave the range")
def test_predict_applies_what_was_learnt(classes, numbers, tmp_path):
    inputs = tmp_path / "x.npy"
    with pytest.raises(RecordError, match=r"has no conformal sets or intervals of 0.7: .*gossamer evaluate .* 0.7"):
        predict_run(classes, inputs, conformal=0.7)
    entry = evaluate_conformal(classes, 0.8)["0.8"]["kinds"]["lac"]
    task = restored(classes).task
    np.save(inputs, task.test[0].numpy())
    rows = predict_run(classes, inputs, conformal=0.8)
    held = [str(y) in row["set"].split(", ") for row, y in zip(rows, task.test[1].tolist(), strict=True)]
    assert np.mean(held) == pytest.approx(entry["coverage"], abs=0.005)
    with pytest.raises(RecordError, match="that of 4 draws: leave n_draws out"):
        predict_run(classes, inputs, 5, conformal=0.8)
    temperature = evaluate_temperature(classes)["val"]["temperature"]
    scaled, plain = predict_run(classes, inputs, temperature=True), predict_run(classes, inputs)
    assert (np.mean([row["entropy"] for row in scaled]) > np.mean([row["entropy"] for row in plain])) == (
        temperature > 1
    )

    entry, task = evaluate_conformal(numbers, 0.8)["0.8"]["kinds"]["scaled"], restored(numbers).task
    np.save(inputs, task.test[0].numpy())
    rows = predict_run(numbers, inputs, conformal=0.8)
    assert np.mean([row["high80"] - row["low80"] for row in rows]) == pytest.approx(entry["mean_width"], rel=0.01)


def test_the_right_to_abstain(classes):
    found = evaluate_selective(classes)
    assert kept(classes, "selective") == json.loads(json.dumps(found))
    job = restored(classes)
    x, y = job.task.test
    prediction = job.predict(x)
    for name, score in metrics.scores_of(prediction).items():
        curve = metrics.selective_accuracy(prediction.probs, y, score)
        assert found[name]["aurc"] == pytest.approx(curve.aurc)
        assert found[name]["accuracy"][-1] == pytest.approx(float((prediction.probs.argmax(1) == y).double().mean()))
        assert 0 <= found[name]["excess_aurc"] <= curve.aurc
    table = selective_table(found)
    assert {len(row) for row in table.rows} == {len(table.head)}


def test_numbers_have_no_temperature(numbers):
    for evaluate in (evaluate_temperature, evaluate_selective):
        with pytest.raises(RecordError, match="is for classes, and sun1 has numbers: --conformal"):
            evaluate(numbers)


def test_a_run_without_held_out_examples_is_told_so(classes, monkeypatch):
    job = restored(classes)
    job.task = job.task._replace(val=(torch.zeros(0, 1, 8, 8), torch.zeros(0).long()))
    with pytest.raises(ValueError, match="no examples in its val split"):
        evaluate_conformal(job)
