"""Which groups are cut: against choices made by hand and by brute force."""

from __future__ import annotations

import pytest
import torch

from gossamer.sparsity.groups import GROUP_CRITERIA, cut

SCORES = torch.tensor([3.0, 1.0, 2.0, 1.0])
GROUPS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def kept_groups(mask):
    return GROUPS[mask].unique().tolist()


@pytest.mark.parametrize(
    ("budget", "groups"), [(8, [0, 1, 2, 3]), (7, [0, 2, 3]), (6, [0, 2, 3]), (4, [0, 2]), (0, [0])]
)
def test_as_many_whole_groups_stay_as_fit_and_of_equal_ones_the_first_goes(budget, groups):
    assert kept_groups(cut({"w": [(SCORES, GROUPS)]}, budget=budget)["w"]) == groups


@pytest.mark.parametrize(
    ("threshold", "groups"), [(0.5, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3]), (1.5, [0, 2]), (99.0, [0])]
)
def test_what_is_below_the_threshold_goes_but_never_all(threshold, groups):
    assert kept_groups(cut({"w": [(SCORES, GROUPS)]}, threshold=threshold)["w"]) == groups


def test_an_entry_goes_with_the_first_of_its_groups():
    rows, columns = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 2, 0, 1, 2])
    scored = {"w": [(torch.tensor([5.0, 1.0]), rows), (torch.tensor([9.0, 2.0, 9.0]), columns)]}
    assert cut(scored, threshold=1.5)["w"].tolist() == [True, True, True, False, False, False]
    assert cut(scored, threshold=2.5)["w"].tolist() == [True, False, True, False, False, False]
    assert cut(scored, budget=3)["w"].tolist() == [True, True, True, False, False, False]
    assert cut(scored, budget=2)["w"].tolist() == [True, False, True, False, False, False]


def test_all_weights_share_one_order_and_none_is_emptied():
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0, 30.0])
    scored = {"a": [(first, torch.tensor([0, 1]))], "b": [(second, torch.tensor([0, 1, 2]))]}
    kept = cut(scored, budget=3)
    assert [mask.tolist() for mask in kept.values()] == [[False, True], [False, True, True]]
    assert [mask.tolist() for mask in cut(scored, threshold=25.0).values()] == [[False, True], [False, False, True]]


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_is_met_by_the_fewest_groups(seed):
    """By brute force: cutting groups one by one, in the order of their scores, until few enough entries are left."""
    generator = torch.Generator().manual_seed(seed)
    axes = [
        (torch.rand(6, generator=generator), torch.arange(30) // 5),
        (torch.rand(5, generator=generator), torch.arange(30) % 5),
    ]
    scores = torch.cat([score for score, _ in axes])
    numbers = torch.stack([axes[0][1], axes[1][1] + 6])
    budget = 12
    going = torch.zeros(11, dtype=torch.bool)
    for group in scores.argsort():
        if int((~going[numbers].any(0)).sum()) <= budget:
            break
        going[group] = True
    assert torch.equal(cut({"w": axes}, budget=budget)["w"], ~going[numbers].any(0))


def test_a_group_that_is_not_a_number_goes_first():
    kept = cut({"w": [(torch.tensor([1.0, float("nan"), 2.0]), torch.tensor([0, 1, 2]))]}, budget=2)["w"]
    assert kept.tolist() == [True, False, True]


@pytest.mark.parametrize("name", ["range", "signed_range"])
def test_a_single_weight_has_no_range(name):
    with pytest.raises(ValueError, match="has no range"):
        GROUP_CRITERIA[name](torch.ones(3, 1))


@pytest.mark.parametrize(("name", "scores"), [("range", [2, 0]), ("signed_range", [4, 0]), ("mean_square", [5, 4])])
def test_scores_of_groups(name, scores):
    assert GROUP_CRITERIA[name](torch.tensor([[-3.0, 1.0], [2.0, 2.0]])).tolist() == scores
