"""Evaluations away from the training data: recorded in the run, equal to what the predictions give."""

import json

import pytest
import torch
from sklearn.metrics import roc_auc_score

from gossamer import metrics, runs
from gossamer.record import RecordError, Run
from gossamer.runs.outside import outside
from gossamer.runs.reader import restored
from gossamer.runs.shift import evaluate_ood, predict

SCORES = ["max_probability", "entropy", "mutual_information", "energy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    settings = runs.Settings("ssvi", "digits", epochs=2, n_draws=3, device="cpu", options={"density": 0.2})
    return runs.train(settings, tmp_path_factory.mktemp("shift") / "run", quiet=True).folder


def test_detection_is_recorded_and_equals_that_of_the_predictions(folder):
    found = evaluate_ood(folder, ["uniform", "permuted"])
    assert Run.open(folder).evaluation()["ood"] == json.loads(json.dumps(found))
    assert json.loads((folder / "evaluation.json").read_text())["format"] == 1
    job = restored(folder)
    x = outside("permuted", job.task).x
    inside, far = (predict(job, inputs) for inputs in (job.task.test[0], x))
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
    run = runs.train(runs.Settings("ssvi", "sun1", epochs=1, n_draws=2, device="cpu"), tmp_path / "run", quiet=True)
    assert list(evaluate_ood(run.folder, ["uniform"])["uniform"]["scores"]) == ["std", "epistemic_std"]
