"""The arrays behind the report, with known values and bounded sizes."""

import math

import pytest
import torch

from gossamer.lab.runs import result
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction
from gossamer.types import Task


def classified(n, n_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(3, n, n_classes, generator=generator)
    return Prediction(outputs), torch.randint(n_classes, (n,), generator=generator)


def regressed(n, scale=1.0, seed=0):
    """Targets from the predicted distribution, one of four draws at random, its std times ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    mean, raw = torch.randn(4, n, 1, generator=generator), torch.randn(1, n, 1, generator=generator)
    prediction = Prediction(torch.cat([mean, raw.expand_as(mean)], -1), Gaussian())
    means, stds = Gaussian().split(prediction.outputs)
    chosen = torch.randint(4, (n,), generator=generator), torch.arange(n)
    y = means[chosen] + scale * stds[chosen] * torch.randn(n, 1, generator=generator)
    split = torch.zeros(n, 3), y
    task = Task(split, split, split, Gaussian(), 2, target_mean=100.0, target_std=10.0)
    return prediction, task, y


def test_right_and_wrong_add_up_to_all_in_every_histogram():
    prediction, y = classified(200)
    found = result.class_curves(prediction, y)
    n_right = int((prediction.probs.argmax(1) == y).sum())
    for name in ("entropy", "mutual_information"):
        assert sum(found[name]["count"]) == 200
        assert sum(found[name]["right"]) == n_right
        assert all(r <= c for r, c in zip(found[name]["right"], found[name]["count"], strict=True))


def test_the_confusion_matrix_counts_labels_and_predictions():
    prediction, y = classified(200)
    found = result.class_curves(prediction, y)
    matrix = torch.zeros(4, 4, dtype=torch.long)
    for label, predicted, count in zip(*found["confusion"].values(), strict=True):
        matrix[label, predicted] = count
    predicted = prediction.probs.argmax(1)
    assert matrix.sum(1).tolist() == y.bincount(minlength=4).tolist()
    assert matrix.sum(0).tolist() == predicted.bincount(minlength=4).tolist()
    assert matrix.diag().tolist() == y[predicted == y].bincount(minlength=4).tolist()


@pytest.mark.parametrize(("n", "n_classes"), [(1, 2), (20_000, 3), (5_000, 200)])
def test_curves_of_classes_are_small_however_many_examples_there_are(n, n_classes):
    prediction, y = classified(n, n_classes)
    found = result.class_curves(prediction, y)
    assert all(len(values) <= 1024 for curve in found.values() for values in curve.values())
    assert len(result.examples(prediction, (torch.zeros(n, 3), y))["surest_mistakes"]) <= result.N_EXAMPLES


def test_the_surest_mistakes_are_wrong_and_in_order():
    prediction, y = classified(300)
    found = result.examples(prediction, (torch.zeros(300, 1, 4, 4), y))
    mistakes = found["surest_mistakes"]
    assert all(one["label"] != one["predicted"] for one in mistakes)
    sure = [max(one["probs"]) for one in mistakes]
    assert sure == sorted(sure, reverse=True)
    wrong = prediction.confidence[prediction.probs.argmax(1) != y]
    assert sure[0] == pytest.approx(float(wrong.max()), rel=1e-5)
    assert len(mistakes[0]["image"]) == 4


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_coverage_at_all_levels_is_that_of_the_intervals(scale):
    prediction, task, y = regressed(400, scale)
    found = result.number_curves(prediction, task, y)["coverage"]
    for nominal, actual in zip(found["nominal"], found["actual"], strict=True):
        low, high = prediction.interval(nominal)
        inside = float(((low <= y) & (y <= high)).double().mean())
        assert actual == pytest.approx(inside, abs=1e-6)
        if scale == 1.0:
            assert abs(actual - nominal) < 4 * math.sqrt(nominal * (1 - nominal) / 400)


def test_points_and_errors_are_in_original_units():
    prediction, task, y = regressed(400)
    found = result.number_curves(prediction, task, y)
    assert found["points"]["target"][0] == pytest.approx(float(y[0]) * 10 + 100, rel=1e-5)
    assert found["points"]["low90"][0] < found["points"]["mean"][0] < found["points"]["high90"][0]
    assert sum(found["errors"]["count"]) == 400
    mean_square = sum(n * r**2 for n, r in zip(found["errors"]["count"], found["errors"]["rmse"], strict=True)) / 400
    assert math.sqrt(mean_square) == pytest.approx(10 * float((prediction.mean - y).square().mean().sqrt()), rel=1e-4)
    assert sum(found["std"]["count"]) == sum(found["epistemic_std"]["count"]) == 400
    assert 10 ** found["std"]["edges"][-1] == pytest.approx(10 * float(prediction.std.max()), rel=1e-4)


def test_one_network_has_no_epistemic_std_and_many_points_are_thinned():
    prediction, task, y = regressed(3_000)
    single = Prediction(prediction.outputs[:1], Gaussian())
    found = result.number_curves(single, task, y)
    assert "epistemic_std" not in found
    assert len(found["points"]["mean"]) == result.N_POINTS
