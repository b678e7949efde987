"""Conformal promises, on fresh simulations: coverage within Monte Carlo error of what is promised, and exact ranks."""

import math

import pytest
import torch
from scipy.stats import beta

from gossamer import conformal

LEVELS = [0.5, 0.8, 0.9, 0.99]
ROUNDS, N_VAL, N_TEST = 400, 199, 50


def misled_probs(n, generator, classes=5):
    """Probabilities, and labels from others: the network is overconfident, its order of the classes partly wrong."""
    logits = 1.5 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    noisy = 2 * logits + torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return noisy.softmax(1), labels


def misled_numbers(n, generator):
    """Means that are biased, stds that are too small and only loosely related to the errors."""
    x = torch.rand(n, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * x) + (0.1 + x) * torch.randn(n, generator=generator, dtype=torch.float64)
    return torch.sin(6 * x) + 0.2, 0.3 * (0.2 + x), y


def coverage_bounds(level):
    """Mean coverage over ROUNDS calibrations, n of them, m tests each, four Monte Carlo standard errors either way.

    Given the calibration examples coverage is Beta(k, n + 1 − k), k = ⌈(n + 1) level⌉, so that a share of m tests has
    the variance of a beta-binomial; its mean is k / (n + 1).
    """
    k = math.ceil(round((N_VAL + 1) * level, 9))
    mean = k / (N_VAL + 1)
    variance = beta.var(k, N_VAL + 1 - k) * (1 - 1 / N_TEST) + mean * (1 - mean) / N_TEST
    error = math.sqrt(variance / ROUNDS)
    return mean - 4 * error, mean + 4 * error


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_cover_as_promised_and_no_more(level, score):
    generator = torch.Generator().manual_seed(int(1000 * level))
    inside, never_empty = [], []
    for i in range(ROUNDS):
        probs, labels = misled_probs(N_VAL + N_TEST, generator)
        for found, may_be_empty in ((inside, True), (never_empty, False)):
            noise = torch.Generator().manual_seed(i)
            given = probs[:N_VAL], labels[:N_VAL], probs[N_VAL:], level, score
            sets = conformal.class_sets(*given, may_be_empty=may_be_empty, generator=noise)
            found.append(sets.gather(1, labels[N_VAL:, None]).double().mean())
    low, high = coverage_bounds(level)
    assert low <= float(torch.stack(inside).mean()) <= high
    assert float(torch.stack(never_empty).mean()) >= float(torch.stack(inside).mean())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["scaled", "shifted"])
def test_intervals_cover_as_promised_and_no_more(level, kind):
    generator = torch.Generator().manual_seed(int(1000 * level) + 1)
    inside = []
    for _ in range(ROUNDS):
        mean, std, y = misled_numbers(N_VAL + N_TEST, generator)
        if kind == "scaled":
            pair = mean, std
            make = conformal.scaled_intervals
        else:
            pair = mean - std, mean + std
            make = conformal.shifted_intervals
        val, test = ([part[rows] for part in pair] for rows in (slice(N_VAL), slice(N_VAL, None)))
        low, high = make(*val, y[:N_VAL], *test, level)
        inside.append(((low <= y[N_VAL:]) & (y[N_VAL:] <= high)).double().mean())
    low, high = coverage_bounds(level)
    assert low <= float(torch.stack(inside).mean()) <= high


def test_the_rank_of_the_threshold():
    scores = torch.arange(1.0, 100.0)[torch.randperm(99, generator=torch.Generator().manual_seed(0))]
    for level, rank in [(0.9, 90), (0.5, 50), (0.99, 99), (0.895, 90), (0.001, 1)]:
        assert float(conformal.threshold(scores, level)) == rank
    assert float(conformal.threshold(scores, 0.991)) == math.inf
    assert conformal.threshold(torch.zeros(20, 3), 0.9).shape == (3,)
    assert float(conformal.threshold(torch.zeros(0), 0.9)) == math.inf


def test_too_few_examples_give_everything():
    probs = torch.tensor([[0.6, 0.3, 0.1]])
    assert conformal.class_sets(probs.expand(5, 3), torch.zeros(5).long(), probs, 0.9).all()
    low, high = conformal.scaled_intervals(torch.zeros(5), torch.ones(5), torch.zeros(5), torch.zeros(2), torch.ones(2))
    assert low.tolist() == [-math.inf] * 2
    assert high.tolist() == [math.inf] * 2


def test_scores_by_hand():
    probs = torch.tensor([[0.1, 0.6, 0.3], [0.4, 0.4, 0.2]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.6, 0.9], [0.4, 0.8, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(conformal.class_scores(probs, "aps"), expected)
    torch.testing.assert_close(conformal.class_scores(probs, "lac"), 1 - probs)
    u = torch.tensor([0.0, 0.25], dtype=torch.float64)
    expected = torch.tensor([[0.9, 0.0, 0.6], [0.1, 0.5, 0.85]], dtype=torch.float64)
    torch.testing.assert_close(conformal.class_scores(probs, "aps", u), expected)


def test_sets_of_a_sure_network_stay_small():
    """Without u, the sums of 95 sure examples of 100 are near one, and the other sets would need all classes."""
    sure, unsure = [0.999, 0.0005, 0.0005], [0.5, 0.3, 0.2]
    probs = torch.tensor([sure] * 95 + [unsure] * 5, dtype=torch.float64)
    sets = conformal.class_sets(probs, torch.zeros(100).long(), probs, 0.9)
    assert sets[:95].sum() == 95
    assert sets[95:].sum() < 15
    assert torch.equal(sets, conformal.class_sets(probs, torch.zeros(100).long(), probs, 0.9))


def test_sets_are_empty_only_where_asked():
    """A network that is right more often than is promised: half of its most probable classes would be left out."""
    sure = torch.tensor([[0.9, 0.1], [0.95, 0.05]]).repeat(50, 1)
    labels = torch.zeros(100).long()
    assert conformal.class_sets(sure, labels, sure, 0.4, "lac", may_be_empty=True).sum() == 50
    assert conformal.class_sets(sure, labels, sure, 0.4, "lac").sum() == 100


def test_wrong_arguments_are_named():
    probs, labels = torch.full((4, 2), 0.5), torch.zeros(4).long()
    with pytest.raises(ValueError, match="level is a probability between 0 and 1; got 90"):
        conformal.class_sets(probs, labels, probs, 90)
    with pytest.raises(ValueError, match="score must be 'aps' or 'lac'; got 'raps'"):
        conformal.class_sets(probs, labels, probs, score="raps")
    with pytest.raises(ValueError, match=r"got \(4, 2\), \(3,\) and \(4, 2\)"):
        conformal.class_sets(probs, labels[:3], probs)
    with pytest.raises(ValueError, match="NaN"):
        conformal.threshold(torch.tensor([math.nan]))
