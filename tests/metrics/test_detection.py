"""Detection of unfamiliar inputs: pairs counted one by one, scikit-learn, torchmetrics, and scores by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import metrics
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=20)


@given(SCORES, SCORES)
@settings(max_examples=60, deadline=None)
def test_auroc_is_the_share_of_pairs_in_the_right_order(inside: list[int], outside: list[int]):
    pairs = [(o > i) + (o == i) / 2 for i in inside for o in outside]
    value = metrics.auroc(torch.tensor(inside), torch.tensor(outside))
    assert value == pytest.approx(sum(pairs) / len(pairs))
    assert metrics.auroc(torch.tensor(outside), torch.tensor(inside)) == pytest.approx(1 - value)


def test_auroc_at_its_ends():
    low, high = torch.tensor([0.0, 0.1, -torch.inf]), torch.tensor([0.2, torch.inf])
    assert metrics.auroc(low, high) == 1
    assert metrics.auroc(high, low) == 0
    assert metrics.auroc(torch.ones(3), torch.ones(2)) == 0.5
    assert metrics.auroc(torch.zeros(1), torch.ones(1)) == 1


def test_auroc_is_that_of_torchmetrics_and_scikit_learn():
    functional = pytest.importorskip("torchmetrics.functional.classification")
    scores = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    inside = torch.rand(400, generator=generator).mul(20).round().div(20)
    outside = torch.rand(300, generator=generator).sqrt().mul(20).round().div(20)
    score, target = torch.cat([inside, outside]), torch.cat([torch.zeros(400), torch.ones(300)]).long()
    ours = metrics.auroc(inside, outside)
    assert ours == pytest.approx(float(functional.binary_auroc(score, target)), abs=1e-6)
    assert ours == pytest.approx(scores.roc_auc_score(target.numpy(), score.numpy()), abs=1e-12)


def test_auroc_refuses_what_has_no_order():
    with pytest.raises(ValueError, match="got 0 and 2"):
        metrics.auroc(torch.zeros(0), torch.zeros(2))
    with pytest.raises(ValueError, match="NaN"):
        metrics.auroc(torch.tensor([torch.nan]), torch.zeros(2))


def scikit_learn(inside, outside):
    """AUROC, both AUPR and FPR95 by scikit-learn."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    score, is_out = np.concatenate([inside, outside]), np.repeat([0, 1], [len(inside), len(outside)])
    fpr, tpr, _ = roc_curve(1 - is_out, -score, drop_intermediate=False)
    return [
        roc_auc_score(is_out, score),
        average_precision_score(is_out, score),
        average_precision_score(1 - is_out, -score),
        fpr[np.argmax(tpr >= 0.95 - 1e-9)],
    ]


@given(SCORES, SCORES)
@settings(max_examples=60, deadline=None)
def test_detection_of_scores_with_many_ties_is_that_of_scikit_learn(inside: list[int], outside: list[int]):
    found = metrics.detect(torch.tensor(inside), torch.tensor(outside))
    assert list(found) == pytest.approx(scikit_learn(np.array(inside), np.array(outside)), abs=1e-12)


@pytest.mark.parametrize(("n_in", "n_out"), [(20, 1000), (1000, 20), (401, 399)])
def test_detection_is_that_of_scikit_learn(n_in: int, n_out: int):
    generator = torch.Generator().manual_seed(n_in)
    inside = torch.randn(n_in, generator=generator, dtype=torch.float64)
    outside = 1 + torch.randn(n_out, generator=generator, dtype=torch.float64)
    assert list(metrics.detect(inside, outside)) == pytest.approx(scikit_learn(inside.numpy(), outside.numpy()))


def test_a_perfect_score_and_one_that_says_nothing():
    assert metrics.detect(torch.zeros(30), torch.ones(10)) == (1, 1, 1, 0)
    assert metrics.detect(torch.zeros(30), torch.zeros(10)) == (0.5, 0.25, 0.75, 1)


def test_recall_is_a_share():
    with pytest.raises(ValueError, match="recall must be above 0"):
        metrics.fpr_at_recall(torch.zeros(2), torch.zeros(2), recall=95)


def test_scores_of_classes_by_hand():
    """Two draws, three classes: one example on which they agree and one on which they do not."""
    logits = torch.tensor([[[3.0, 0.0, 1.0], [4.0, 0.0, 0.0]], [[3.0, 0.0, 1.0], [0.0, 4.0, 0.0]]])
    scores = metrics.scores_of(Prediction(logits))
    weights = np.exp(logits.double().numpy())
    probs = weights / weights.sum(2, keepdims=True)
    mean = probs.mean(0)
    entropy = -(mean * np.log(mean)).sum(1)
    expected = {
        "max_probability": -mean.max(1),
        "entropy": entropy,
        "mutual_information": entropy + (probs * np.log(probs)).sum(2).mean(0),
        "energy": -np.log(weights.sum(2)).mean(0),
    }
    assert list(scores) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name].numpy(), values, atol=1e-12)
    assert float(scores["mutual_information"][0]) == 0


def test_scores_tell_very_sure_predictions_apart():
    """In float32 both probabilities are exactly one."""
    scores = metrics.scores_of(Prediction(torch.tensor([[[20.0, 0.0], [25.0, 0.0]]])))
    assert scores["max_probability"][0] > scores["max_probability"][1]


def test_scores_of_numbers_are_their_standard_deviations():
    prediction = Prediction(torch.tensor([[[1.0]], [[3.0]]]), Gaussian(noise_std=2.0))
    scores = metrics.scores_of(prediction)
    assert float(scores["epistemic_std"]) == pytest.approx(1.0)
    assert float(scores["std"]) == pytest.approx(math.sqrt(5.0))
