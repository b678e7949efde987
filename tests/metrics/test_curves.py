"""Curves: their numbers agree with the metrics they stand behind, and with torchmetrics."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import metrics

SEEDS = st.integers(0, 10**6)


def predictions(n: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, classes, generator=generator)).softmax(1)
    return probs, torch.randint(classes, (n,), generator=generator)


@given(st.integers(1, 80), st.integers(1, 5), st.integers(1, 20), SEEDS)
@settings(max_examples=50, deadline=None)
def test_the_reliability_curve_sums_to_accuracy_and_ece(n: int, classes: int, n_bins: int, seed: int):
    probs, labels = predictions(n, classes, seed)
    edges, confidence, accuracy, count = metrics.reliability_curve(probs, labels, n_bins)
    assert edges.shape == (n_bins + 1,)
    assert count.sum() == n
    assert ((count == 0) == confidence.isnan()).all()
    assert ((count == 0) == accuracy.isnan()).all()
    share = count / n
    assert float((share * accuracy).nansum()) == pytest.approx(metrics.accuracy(probs, labels), abs=1e-6)
    gap = float((share * (confidence - accuracy).abs()).nansum())
    assert gap == pytest.approx(metrics.ece(probs, labels, n_bins), abs=1e-6)
    filled = count > 0
    assert (confidence[filled] >= edges[:-1][filled] - 1e-12).all()
    assert (confidence[filled] <= edges[1:][filled] + 1e-12).all()


def test_the_reliability_of_certain_predictions_is_in_the_last_bin():
    probs = torch.eye(3).repeat(4, 1)
    curve = metrics.reliability_curve(probs, torch.arange(12) % 3)
    assert curve.count.tolist() == [0] * 14 + [12]
    assert (curve.confidence[-1], curve.accuracy[-1]) == (1, 1)


def test_an_edge_belongs_to_the_bin_below():
    curve = metrics.reliability_curve(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), n_bins=2)
    assert curve.count.tolist() == [1, 0]


@given(st.integers(1, 60), SEEDS)
@settings(max_examples=40, deadline=None)
def test_selective_accuracy_example_by_example(n: int, seed: int):
    probs, labels = predictions(n, 3, seed)
    uncertainty = torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))  # many ties
    coverage, accuracy, aurc = metrics.selective_accuracy(probs, labels, uncertainty)
    is_right = [bool(probs[i].argmax() == labels[i]) for i in range(n)]
    groups = [[is_right[i] for i in range(n) if int(uncertainty[i]) == level] for level in range(4)]
    expected = [sum(group) / len(group) for group in groups for _ in group]  # over random orders of equals
    risks = []
    for m in range(1, n + 1):
        right = sum(expected[:m])
        assert float(coverage[m - 1]) == pytest.approx(m / n)
        assert float(accuracy[m - 1]) == pytest.approx(right / m)
        risks.append(1 - right / m)
    assert aurc == pytest.approx(sum(risks) / n)


def test_selective_accuracy_of_all_right_and_all_wrong():
    probs = torch.eye(2).repeat(5, 1)
    labels = torch.arange(10) % 2
    right, wrong = metrics.selective_accuracy(probs, labels), metrics.selective_accuracy(probs, 1 - labels)
    assert (right.accuracy == 1).all()
    assert (wrong.accuracy == 0).all()
    assert (right.aurc, wrong.aurc) == (0, 1)


def test_the_best_order_has_the_smallest_area():
    probs, labels = predictions(300, 4, 0)
    wrong = (probs.argmax(1) != labels).float()
    areas = [metrics.selective_accuracy(probs, labels, u).aurc for u in (wrong, torch.zeros(300), 1 - wrong)]
    assert areas == sorted(areas)
    assert float(metrics.selective_accuracy(probs, labels, wrong).accuracy[0]) == 1


def test_the_order_of_equally_uncertain_examples_does_not_matter():
    probs, labels = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1, 0])
    curves = [metrics.selective_accuracy(probs[order], labels[order]) for order in ([0, 1, 2], [2, 1, 0])]
    for curve in curves:
        assert curve.accuracy.tolist() == [0.5, 0.5, 2 / 3]
        assert curve.aurc == pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3, rel=1e-15)


def test_selective_accuracy_sorts_by_confidence_unless_told():
    probs, labels = predictions(200, 5, 1)
    own, given = (metrics.selective_accuracy(probs, labels, u) for u in (None, 1 - probs.double().max(1).values))
    torch.testing.assert_close(own.accuracy, given.accuracy, rtol=0, atol=0)


def test_selective_area_is_that_of_uncertainty_calibration():
    calibration = pytest.importorskip("calibration")
    probs, labels = predictions(500, 5, 2)
    confidence, predicted = probs.max(1)
    area, _ = calibration.get_selective_stats(confidence.numpy(), (predicted == labels).numpy())
    assert 1 - metrics.selective_accuracy(probs, labels).aurc == pytest.approx(area, rel=1e-12)


def test_an_uncertainty_of_another_shape_is_refused():
    probs, labels = predictions(5, 2, 0)
    with pytest.raises(ValueError, match=r"uncertainty must be of shape \(5,\); got \(5, 1\)"):
        metrics.selective_accuracy(probs, labels, torch.zeros(5, 1))
