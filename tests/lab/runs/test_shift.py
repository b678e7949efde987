"""Evaluations away from the training data: recorded in the run, equal to what the predictions give."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from gossamer import lab, metrics
from gossamer._text.formats import percent
from gossamer.data import CORRUPTIONS, corrupt
from gossamer.evaluate import summarize
from gossamer.lab.record import RecordError, Run
from gossamer.lab.report.evaluation import corruption_tables
from gossamer.lab.runs.evaluation import (
    evaluate_corruptions,
    evaluate_ood,
    outside,
)
from gossamer.lab.runs.job import restored

SCORES = ["max_probability", "entropy", "mutual_information", "energy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    settings = lab.Settings("ssvi", "digits", epochs=2, n_draws=3, device="cpu", options={"density": 0.2})
    return lab.train(settings, tmp_path_factory.mktemp("shift") / "run", quiet=True).folder


def test_detection_is_recorded_and_equals_that_of_the_predictions(folder):
    found = evaluate_ood(folder, ["uniform", "permuted"])
    assert Run.open(folder).evaluation()["ood"] == json.loads(json.dumps(found))
    assert json.loads((folder / "evaluation.json").read_text())["format"] == 1
    job = restored(folder)
    x = outside("permuted", job.task).x
    inside, far = (job.predict(inputs) for inputs in (job.task.test[0], x))
    entry = found["permuted"]
    assert (entry["n"], entry["n_test"], entry["n_draws"], entry["note"]) == (599, 599, 3, "")
    assert entry["step"] == job.training.steps
    assert list(entry["scores"]) == SCORES
    labels = [0] * 599 + [1] * 599
    entropies = torch.cat([metrics.scores_of(side)["entropy"] for side in (inside, far)])
    assert entry["scores"]["entropy"]["auroc"] == pytest.approx(roc_auc_score(labels, entropies))
    for score in entry["scores"].values():
        assert len(score["edges"]) == len(score["count_in"]) + 1
        assert sum(score["count_in"]) == sum(score["count_out"]) == 599


def test_a_second_evaluation_keeps_the_sets_of_the_first(folder):
    evaluate_ood(folder, ["uniform"])
    before = Run.open(folder).evaluation()["ood"]["uniform"]
    evaluate_ood(folder, ["permuted"], n_draws=1)
    after = Run.open(folder).evaluation()["ood"]
    assert after["uniform"] == before
    assert after["permuted"]["n_draws"] == 1


def test_nothing_is_recorded_when_a_set_is_unknown(folder):
    before = Run.open(folder).evaluation()
    with pytest.raises(RecordError, match="unknown data set or file"):
        evaluate_ood(folder, ["uniform", "nothing"], n_draws=2)
    assert Run.open(folder).evaluation() == before


def test_numbers_are_detected_by_their_standard_deviations(tmp_path):
    run = lab.train(lab.Settings("ssvi", "sun1", epochs=1, n_draws=2, device="cpu"), tmp_path / "run", quiet=True)
    assert list(evaluate_ood(run.folder, ["uniform"])["uniform"]["scores"]) == ["std", "epistemic_std"]


def test_corrupted_images_are_evaluated_at_every_severity(folder):
    found = evaluate_corruptions(folder, n_draws=1)
    assert Run.open(folder).evaluation()["corruptions"] == json.loads(json.dumps(found))
    entry = found["generated"]
    assert list(entry["corruptions"]) == list(CORRUPTIONS)
    assert (entry["n"], entry["n_draws"]) == (599, 1)
    job = restored(folder, n_draws=1)
    x, y = job.task.test
    assert entry["clean"] == pytest.approx(summarize(job.predict(x), job.task, y))
    values = summarize(job.predict(corrupt(x, "contrast", 4)), job.task, y)
    for metric, value in values.items():
        assert entry["corruptions"]["contrast"][metric][3] == pytest.approx(value)
    by_severity = [row["accuracy"] for row in entry["corruptions"].values()]
    rows, means = corruption_tables(found)
    assert means.rows[0][2:] == [percent(value) for value in np.mean(by_severity, axis=0)]
    assert [len(row) for row in rows.rows] == [6] * 15
    assert [row[0] for row in means.rows][:3] == ["accuracy", "NLL", "ECE"]


def test_published_files_are_evaluated_with_their_own_labels(folder, tmp_path):
    """Files in the form of CIFAR-10-C that hold, five times, the test images as bytes: nothing is corrupted."""
    job = restored(folder, n_draws=1)
    x, y = job.task.test
    images = (x * 255).round().byte().movedim(1, -1).numpy()
    for name in CORRUPTIONS:
        np.save(tmp_path / f"{name}.npy", np.concatenate([images] * 5))
    np.save(tmp_path / "labels.npy", np.tile(y.numpy().astype(np.uint8), 5))
    entry = evaluate_corruptions(folder, str(tmp_path), n_draws=1)[tmp_path.name]
    for row in entry["corruptions"].values():
        # Bytes round a pixel by 1/510 at most: a borderline image may change sides.
        assert row["accuracy"] == pytest.approx([entry["clean"]["accuracy"]] * 5, abs=2.1 / 599)


def test_only_images_are_corrupted(tmp_path, folder):
    run = lab.train(lab.Settings("sgd", "two_moons", epochs=1, device="cpu"), tmp_path / "run", quiet=True)
    with pytest.raises(RecordError, match="two_moons has no images to corrupt"):
        evaluate_corruptions(run.folder)
    with pytest.raises(RecordError, match="there is no such folder"):
        evaluate_corruptions(folder, "nowhere")
