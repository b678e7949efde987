"""No figure of the page is copied by hand: each is what the stored results say."""

import pytest

from reproductions import frame, pages
from reproductions.frame import Kept

TABLE4 = Kept.read(pages.KEPT / "em-mcmc-table4.json")


def test_the_kept_runs_of_recipes_are_found_as_rows_of_tables():
    kept = pages.full_runs("ssvi-table1", frame.find("ssvi-table1"))
    assert {run.row: len(kept.of(run.row)) for run in kept.runs}["CIFAR-10: SSVI 95 %"] == 3
    assert len({run.row for run in kept.runs}) == 7


def test_the_page_of_both_papers_holds_what_the_stored_results_say():
    assert pages.page() == pages.PAGE.read_text(encoding="utf-8"), "the page is out of date: make figures"


@pytest.mark.parametrize("path", sorted(pages.KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_stored_runs_are_what_the_rows_of_today_say(path):
    kept = Kept.read(path)
    rows = {row.label: row for row in frame.find(kept.name).rows}
    for run in kept.runs:
        assert run.told == rows[run.row].settings(small=kept.small) | {"seed": run.told["seed"]}
    assert not [run for run in kept.runs if {"argv", "git_commit"} & set(run.environment)]


@pytest.mark.parametrize(("example", "most"), [(1, 1.32), (2, 2.5)])
@pytest.mark.parametrize("name", ["DFP", "DPF"])
def test_stored_selections_are_exact_and_errors_within_the_papers(example, most, name):
    """Of what is stored, not of a training."""
    for way in ("best of 5", "24-12"):
        row = f"Example {example}: {name}, {way}"
        assert sum(TABLE4.values(row, "exact")) >= 9
        mean, error = frame.mean_error(TABLE4.values(row, "mse"))
        assert mean <= most + 2 * error
