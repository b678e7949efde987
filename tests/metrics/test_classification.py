"""Metrics of class probabilities: known answers, edge cases, torchmetrics and uncertainty-calibration."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import metrics

METRICS = [
    metrics.accuracy,
    metrics.nll,
    metrics.brier,
    metrics.ece,
    metrics.classwise_ece,
    metrics.marginal_l2_debiased,
]
ERRORS = METRICS[1:]  # 0 is best


def softmax_family(n: int, classes: int, scale: float, overconfidence: float, seed: int, dtype=torch.float64):
    """Labels drawn from the softmax of logits; the network's own logits are ``overconfidence`` times too large."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    return (overconfidence * logits).to(dtype).softmax(1), labels


def by_hand(probs: torch.Tensor, labels: torch.Tensor, n_bins: int) -> float:
    """The equal-width class-wise error, bin by bin in plain Python."""
    n, classes = probs.shape
    total = 0.0
    for k in range(classes):
        bins: dict[int, list[tuple[float, bool]]] = {}
        for p, label in zip(probs[:, k].tolist(), labels.tolist(), strict=True):
            bins.setdefault(max(math.ceil(p * n_bins), 1), []).append((p, label == k))
        total += sum(abs(sum(p - y for p, y in members)) / n for members in bins.values())
    return total / classes


@pytest.mark.parametrize("classes", [2, 5])
def test_all_right_and_certain_is_no_error(classes: int):
    labels = torch.arange(40) % classes
    probs = torch.nn.functional.one_hot(labels, classes).float()
    assert metrics.accuracy(probs, labels) == 1
    assert [metric(probs, labels) for metric in ERRORS] == [0] * 5


def test_all_wrong_and_certain_is_the_largest_error():
    labels = torch.arange(40) % 4
    probs = torch.nn.functional.one_hot((labels + 1) % 4, 4).float()
    assert metrics.accuracy(probs, labels) == 0
    assert metrics.nll(probs, labels) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert metrics.brier(probs, labels) == 2
    assert metrics.ece(probs, labels) == 1
    # For each class a quarter of the examples has p = 1 and is another class; a quarter has p = 0 and is of the class.
    assert metrics.classwise_ece(probs, labels) == pytest.approx(1 / 2)
    # (1/4) (1² − 0) for p = 1; (3/4) [(1/3)² − (1/3)(2/3)/29] for p = 0.
    assert metrics.marginal_l2_debiased(probs, labels) == pytest.approx(math.sqrt(1 / 4 + 3 / 4 * (1 / 9 - 2 / 261)))


def test_one_class_only():
    probs, labels = torch.ones(6, 1), torch.zeros(6, dtype=torch.long)
    assert [metric(probs, labels) for metric in METRICS] == [1, 0, 0, 0, 0, 0]


def test_labels_of_one_class_only():
    probs, labels = torch.tensor([[0.75, 0.25]] * 8), torch.zeros(8, dtype=torch.long)
    assert metrics.classwise_ece(probs, labels) == pytest.approx(0.25)
    assert metrics.marginal_l2_debiased(probs, labels) == pytest.approx(0.25)  # no variance to take away


def test_a_single_example():
    probs, labels = torch.tensor([[0.25, 0.75]]), torch.tensor([0])
    assert metrics.accuracy(probs, labels) == 0
    assert metrics.nll(probs, labels) == pytest.approx(math.log(4))
    assert metrics.brier(probs, labels) == pytest.approx(2 * 0.75**2)
    assert metrics.ece(probs, labels) == pytest.approx(0.75)
    assert metrics.classwise_ece(probs, labels) == pytest.approx(0.75)
    assert metrics.marginal_l2_debiased(probs, labels) == 0  # a bin of one example says nothing


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 20), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_classwise_ece_bin_by_bin(n: int, classes: int, n_bins: int, seed: int):
    probs, labels = softmax_family(n, classes, 2, 1.5, seed)
    assert metrics.classwise_ece(probs, labels, n_bins) == pytest.approx(by_hand(probs, labels, n_bins), abs=1e-12)


@given(st.integers(1, 60), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_classwise_is_top_label_where_the_first_of_two_classes_always_wins(n: int, seed: int):
    """Each bin of p_2 mirrors one of p_1, so both classes have the same error."""
    probs, labels = softmax_family(n, 2, 2, 1.5, seed)
    probs = probs.sort(1, descending=True).values
    assert metrics.classwise_ece(probs, labels) == pytest.approx(metrics.ece(probs, labels), abs=1e-12)


def test_marginal_l2_with_two_bins_by_hand():
    """p_1 of 0.1, 0.2 | 0.6, 0.7: edge 0.4. Few examples, so nothing counts as discrete."""
    p = torch.tensor([0.7, 0.1, 0.2, 0.6], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    # Bins of class 1: p̄ 0.15, ȳ 1/2 (the second and third); p̄ 0.65, ȳ 1/2. Class 2 mirrors class 1.
    square = ((0.15 - 0.5) ** 2 - 0.25 + (0.65 - 0.5) ** 2 - 0.25) / 2
    assert square < 0
    assert metrics.marginal_l2_debiased(torch.stack([1 - p, p], 1), labels, 2) == 0
    labels = torch.tensor([0, 1, 1, 0])  # ȳ = 1 below and 0 above: no variance
    square = ((0.15 - 1) ** 2 + 0.65**2) / 2
    value = metrics.marginal_l2_debiased(torch.stack([1 - p, p], 1), labels, 2)
    assert value == pytest.approx(math.sqrt(square), rel=1e-12)


def test_marginal_l2_cuts_each_class_at_zero_before_the_mean():
    """Only the third class contributes; the negative squares of the others would make the mean smaller."""
    probs = torch.tensor([[0.2, 0.1, 0.0]] * 3 + [[0.2, 0.3, 0.01]] * 3, dtype=torch.float64)
    labels = torch.tensor([2, 2, 2, 0, 1, 2])
    first = (0.2 - 1 / 6) ** 2 - (5 / 36) / 5  # one value, one bin
    second = (0.1**2 + (0.3 - 1 / 3) ** 2 - (2 / 9) / 2) / 2
    third = (1 + (0.01 - 1 / 3) ** 2 - (2 / 9) / 2) / 2
    assert first < 0
    assert second < 0
    assert metrics.marginal_l2_debiased(probs, labels, 2) == pytest.approx(math.sqrt(third / 3), rel=1e-12)


def test_marginal_l2_is_zero_for_an_accurate_and_overconfident_network():
    """The warning of its docstring."""
    probs, labels = softmax_family(2000, 10, 30, 4.0, seed=0)
    assert metrics.accuracy(probs, labels) > 0.96
    assert metrics.ece(probs, labels) > 0.02
    assert metrics.marginal_l2_debiased(probs, labels) == 0


FAMILIES = {
    "calibrated": softmax_family(1000, 10, 2, 1, seed=0),
    "overconfident": softmax_family(1000, 10, 2, 3, seed=1),
    "underconfident": softmax_family(701, 5, 4, 0.3, seed=2),
    "many classes": softmax_family(600, 100, 3, 2, seed=3),
    "two classes": softmax_family(64, 2, 1, 2, seed=4),
    "fewer examples than bins": softmax_family(7, 3, 2, 2, seed=5),
    "float32": softmax_family(1000, 10, 2, 3, 6, torch.float32),
    "saturated float32": softmax_family(2000, 4, 15, 2, 7, torch.float32),
    "probabilities 0 and 1": softmax_family(500, 4, 400, 1, 8, torch.float32),
    "one value": (torch.full((50, 4), 0.25), torch.arange(50) % 4),
    "discrete": (softmax_family(900, 3, 2, 2, 9)[0].mul(8).round().div(8), torch.arange(900) % 3),
    "one continuous class": (
        torch.cat([torch.full((80, 2), 0.25), torch.linspace(0, 0.5, 80)[:, None]], 1),
        torch.arange(80) % 3,
    ),
    "neighbours in float32": (  # the midpoint of the two largest numbers up to 1 rounds to 1
        1 - torch.tensor([0.0, 2**-24]).repeat(20)[:, None].expand(40, 2),
        torch.tensor([0, 1, 0, 0]).repeat(10),
    ),
    "exactly a quarter distinct": (torch.arange(5.0).repeat(4)[:, None].expand(20, 2) / 8, torch.arange(20) % 2),
    "just below a quarter distinct": (torch.arange(5).repeat(5)[:21, None].expand(21, 2) / 8, torch.arange(21) % 2),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_marginal_l2_is_that_of_uncertainty_calibration(family: str):
    calibration = pytest.importorskip("calibration")
    probs, labels = FAMILIES[family]
    theirs = calibration.get_calibration_error(probs.numpy(), labels.numpy())
    # Squares, since the root makes 1e-8 of a rounding error of 1e-16.
    assert metrics.marginal_l2_debiased(probs, labels) ** 2 == pytest.approx(theirs**2, rel=1e-9, abs=1e-14)


def test_the_families_reach_both_kinds_of_bins_and_are_not_all_zero():
    discrete = [all(len(p.unique()) < len(p) / 4 for p in probs.T) for probs, _ in FAMILIES.values()]
    values = [metrics.marginal_l2_debiased(probs, labels) for probs, labels in FAMILIES.values()]
    assert 3 <= sum(discrete) <= len(discrete) - 3
    assert sum(value > 0 for value in values) > len(values) / 2


@pytest.mark.parametrize("n_bins", [2, 5, 40])
def test_marginal_l2_with_other_numbers_of_bins(n_bins: int):
    calibration = pytest.importorskip("calibration")
    probs, labels = FAMILIES["overconfident"]
    theirs = calibration.lower_bound_scaling_ce(probs.numpy(), labels.numpy(), num_bins=n_bins)
    assert metrics.marginal_l2_debiased(probs, labels, n_bins) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("family", ["calibrated", "overconfident", "many classes", "two classes"])
def test_ece_is_that_of_uncertainty_calibration(family: str):
    calibration = pytest.importorskip("calibration")
    probs, labels = FAMILIES[family]
    top = calibration.get_ece(probs.numpy(), labels.numpy())
    classwise = calibration.get_ece(probs.numpy(), labels.numpy(), mode="marginal")
    assert metrics.ece(probs, labels) == pytest.approx(top, rel=1e-9)
    assert metrics.classwise_ece(probs, labels) == pytest.approx(classwise, rel=1e-9)


@pytest.mark.parametrize("family", ["calibrated", "overconfident", "underconfident", "many classes", "float32"])
def test_accuracy_and_ece_are_those_of_torchmetrics(family: str):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    probs, labels = FAMILIES[family]
    classes = probs.shape[1]
    accuracy = functional.multiclass_accuracy(probs, labels, classes, average="micro")
    error = functional.multiclass_calibration_error(probs, labels, classes, n_bins=15, norm="l1")
    assert metrics.accuracy(probs, labels) == pytest.approx(float(accuracy), rel=1e-6)
    assert metrics.ece(probs, labels) == pytest.approx(float(error), rel=1e-4)  # theirs is float32


def test_brier_is_that_of_scikit_learn():
    scores = pytest.importorskip("sklearn.metrics")
    probs, labels = FAMILIES["two classes"]
    expected = 2 * scores.brier_score_loss(labels.numpy(), probs[:, 1].numpy())
    assert metrics.brier(probs, labels) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 50), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_examples_does_not_matter(n: int, classes: int, seed: int):
    probs, labels = softmax_family(n, classes, 3, 2, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for metric in METRICS:
        assert metric(probs[order], labels[order]) == pytest.approx(metric(probs, labels), abs=1e-7)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_labels_of_another_shape_are_refused(metric):
    """``(n,) == (n, 1)`` would be ``(n, n)``, and its mean a plausible number."""
    probs = torch.full((4, 2), 0.5)
    for labels in (torch.zeros(4, 1, dtype=torch.long), torch.zeros(3, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"probs must be \(n, classes\) and labels \(n,\)"):
            metric(probs, labels)
    with pytest.raises(ValueError, match="n >= 1"):
        metric(probs[:0], torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("metric", METRICS[3:], ids=lambda metric: metric.__name__)
def test_no_bins_are_refused(metric):
    with pytest.raises(ValueError, match="n_bins must be at least 1; got 0"):
        metric(torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.long), 0)


def test_the_floor_of_the_ece_is_its_mean_over_redrawn_labels():
    torch.manual_seed(0)
    probs = torch.randn(400, 4).softmax(1)
    drawn = torch.tensor([metrics.ece(probs, torch.multinomial(probs, 1)[:, 0]) for _ in range(400)])
    # The means of 200 redraws there and 400 here.
    error = float(drawn.std()) * math.sqrt(1 / 200 + 1 / 400)
    assert abs(metrics.ece_floor(probs) - float(drawn.mean())) < 4 * error


def test_the_floor_of_one_bin_has_its_closed_form():
    """With n answers of confidence c in one bin it is E|mean of n Bernoulli(c) - c|: for c = 1/2 and n = 4, 3/16."""
    probs = torch.tensor([[0.5, 0.3, 0.2]] * 4)
    assert metrics.ece_floor(probs, n_redraws=20_000) == pytest.approx(3 / 16, abs=4 * 0.17 / math.sqrt(20_000))
