"""FDR and FNDR against counts by hand and against scikit-learn."""

import pytest
import torch
from sklearn.metrics import precision_score

from gossamer.metrics import false_discovery_rate, false_non_discovery_rate

RATES = (false_discovery_rate, false_non_discovery_rate)


def mask(n, *columns):
    found = torch.zeros(n, dtype=torch.bool)
    found[list(columns)] = True
    return found


@pytest.mark.parametrize(
    ("selected", "fdr", "fndr"),
    [
        ((0, 1, 2, 3, 4), 0.0, 0.0),
        ((0, 1, 2, 3, 4, 7, 900), 2 / 7, 0.0),
        ((0, 1, 2), 0.0, 2 / 997),
        ((0, 1, 2, 5), 1 / 4, 2 / 996),
        ((), 0.0, 5 / 1000),
        (range(1000), 995 / 1000, 0.0),
    ],
)
def test_counts_by_hand(selected, fdr, fndr):
    """Five of 1,000 variables matter, as in the simulated examples."""
    both = mask(1000, *selected), mask(1000, 0, 1, 2, 3, 4)
    assert tuple(rate(*both) for rate in RATES) == (pytest.approx(fdr), pytest.approx(fndr))


def test_they_are_one_minus_precisions_of_the_selection_and_of_its_complement():
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        selected, relevant = torch.rand(2, 50, generator=random) < 0.3
        assert false_discovery_rate(selected, relevant) == pytest.approx(1 - precision_score(relevant, selected))
        assert false_non_discovery_rate(selected, relevant) == pytest.approx(1 - precision_score(~relevant, ~selected))


@pytest.mark.parametrize("rate", RATES)
def test_what_is_no_pair_of_masks_is_refused(rate):
    with pytest.raises(ValueError, match=r"must be booleans; got torch.float32 and torch.bool"):
        rate(torch.ones(3), mask(3, 0))
    with pytest.raises(ValueError, match=r"must be \(variables,\), one or more of them; got \(3,\) and \(4,\)"):
        rate(mask(3), mask(4))
    with pytest.raises(ValueError, match=r"one or more"):
        rate(mask(0), mask(0))
