"""Scores of doubt by features: those of scikit-learn."""

import numpy as np
import pytest
import torch

from gossamer import metrics
from reproductions.ssvi_table3 import neighbour_distance, relative_mahalanobis


def features(seed: int, n: int, shift: float = 0.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator) @ torch.randn(5, 7, generator=torch.Generator().manual_seed(9)) + shift
    return x, torch.arange(n) % 3


def test_distances_in_features_are_those_of_scikit_learn():
    neighbors, covariance = pytest.importorskip("sklearn.neighbors"), pytest.importorskip("sklearn.covariance")
    (train, labels), (inside, _), (outside, _) = features(0, 300), features(1, 80), features(2, 60, shift=1.0)
    train = train + 0.5 * labels[:, None]
    own = train - torch.stack([train[labels == label].mean(0) for label in range(3)])[labels]  # of rank 5 in 7 columns
    fitted = neighbors.NearestNeighbors(n_neighbors=10).fit(torch.nn.functional.normalize(train.double()).numpy())
    classes, whole = (
        covariance.EmpiricalCovariance(assume_centered=c).fit(x.double().numpy())
        for c, x in ((True, own), (False, train))
    )
    ours, theirs = [], []
    for x in (inside, outside):
        distance = fitted.kneighbors(torch.nn.functional.normalize(x.double()).numpy())[0][:, -1]
        means = [train[labels == label].mean(0) for label in range(3)]
        nearest = np.min([classes.mahalanobis((x - mean).double().numpy()) for mean in means], 0)
        theirs.append((distance, nearest - whole.mahalanobis(x.double().numpy())))
        ours.append((neighbour_distance(train, x, 10), relative_mahalanobis(train, labels, x)))
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine[0].numpy(), its[0], rtol=1e-5)
        np.testing.assert_allclose(mine[1].numpy(), its[1], rtol=1e-3, atol=1e-3)
    roc_auc_score = pytest.importorskip("sklearn.metrics").roc_auc_score
    truth = np.r_[np.zeros(80), np.ones(60)]
    for i in range(2):
        expected = roc_auc_score(truth, np.r_[theirs[0][i], theirs[1][i]])
        assert metrics.auroc(ours[0][i], ours[1][i]) == pytest.approx(expected, abs=2e-3)


def test_a_neighbour_is_one_of_the_training_examples():
    with pytest.raises(ValueError, match="k must be from 1 to the 300 training examples; got 301"):
        neighbour_distance(features(0, 300)[0], features(1, 2)[0], 301)
