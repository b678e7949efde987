"""Two processes with data of their own keep one support and the same parameters."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

FOLDER = str(Path(__file__).parent)
sys.path.insert(0, FOLDER)  # the processes import what they run by its name
two_ranks = importlib.import_module("two_ranks")
sys.path.remove(FOLDER)

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        torch.multiprocessing.spawn(two_ranks.worker, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("case", two_ranks.CASES)
def test_ranks_agree(results, case):
    first, second = (result[case] for result in results)
    assert first["state"].keys() == second["state"].keys()
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert first["record"] == second["record"]
    for name, start in first["start"].items():
        assert not torch.equal(start, first["state"][f"{name}.weight.support.position"])
        assert not torch.equal(start, second["start"][name])  # what each rank drew for itself


def test_updates_are_made_when_due_and_postponed_together(results):
    for case in two_ranks.CASES:
        steps = [entry["step"] for entry in results[0][case]["record"]]
        assert steps == ([4, 5, 8] if case == "not finite on one rank" else [4, 8])
    assert results[0]["not finite on one rank"]["record"][0]["postponed"]
    assert all(set(entry["active"]) >= {"module.branch"} for entry in results[1]["one rank uses more"]["record"])


def test_a_budget_that_moves_between_layers_is_refused(results):
    assert all("use scope='layer'" in result["global"]["error"] for result in results)


def test_all_weights_at_once_are_the_same_supports_and_records(results):
    for result in results:
        one_by_one, at_once = result["sampled gradient"], result["all at once"]
        assert at_once["record"] == one_by_one["record"]
        for name, value in one_by_one["state"].items():
            torch.testing.assert_close(at_once["state"][name], value, msg=name)


def test_a_network_used_before_its_positions_are_broadcast_follows_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    torch.multiprocessing.spawn(two_ranks.forward_then_meet, args=(str(tmp_path),), nprocs=2)
    assert all(torch.load(tmp_path / f"rank{rank}.pt") < 1e-5 for rank in (0, 1))


def test_what_is_alike_is_not_sent_before_each_pass_but_statistics_of_batch_normalisation_are(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    torch.multiprocessing.spawn(two_ranks.count_broadcast, args=(str(tmp_path),), nprocs=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for (first, second), has_others in zip(zip(*ranks, strict=True), (True, False, False), strict=True):
        before, *after = first["sent"]
        assert before == first["others"] + sum(buffer.nbytes for buffer in first["alike"])
        assert after == ([first["others"]] * 6 if has_others else [])
        assert first["moves"] >= 2
        for one, other in zip(first["alike"], second["alike"], strict=True):
            assert torch.equal(one, other)


def test_the_choice_from_candidates_is_that_from_the_dense_mean_for_fewer_bytes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    torch.multiprocessing.spawn(two_ranks.choose, args=(str(tmp_path),), nprocs=2)
    (*first, is_broken), (*second, also_broken) = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert is_broken
    assert also_broken
    for one, other in zip(first, second, strict=True):
        for dense, found, theirs in zip(one["dense"], one["candidates"], other["candidates"], strict=True):
            assert torch.equal(dense, found), (one["kind"], one["rate"])
            assert torch.equal(theirs, found)
    share = {(each["kind"], each["rate"]): each["share"] for each in first}
    # A bit per entry, and k positions of 4 bytes and up to 2k means to find the threshold: a rate of 0.02 is 0.004 n.
    overhead = 1 / 32 + 3 * 0.02 * 0.2
    assert overhead / 2 < share["all zero", 0.02] < 1.1 * overhead
    assert share["heavy tails", 0.02] < 1.5 * overhead
    assert share["normal", 0.3] < 0.8
    assert max(share.values()) < 1 + 1 / 32 + 3 * 0.2  # never much more than the dense gradient
