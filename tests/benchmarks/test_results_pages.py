"""README and the page of results hold what the files in ``results/`` say, and nothing is missing there."""

import json
from pathlib import Path

import pytest

from benchmarks.pages import PLACE, PLACES, fill_recorded, recorded_environments, recorded_tables
from benchmarks.state import CASES
from benchmarks.trials import Trial, Trials
from gossamer.lab import read_recipe
from gossamer.lab.record import RecordError
from gossamer.lab.runs.settings import with_defaults
from gossamer.methods import as_recorded

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [
    ROOT / name
    for name in (
        "README.md",
        "docs/results.md",
        "docs/citizen.md",
        "docs/studies/learned-std.md",
        "docs/studies/noise.md",
        "docs/uci.md",
        "docs/reliability.md",
        "docs/scale.md",
        "docs/guides/variable-selection.md",
        "docs/guides/which-method.md",
        "docs/tutorials/finetune.md",
        "docs/guides/deploy.md",
        "docs/guides/prediction.md",
        "docs/guides/own-data.md",
    )
]
COSTS = ("active_parameters", "checkpoint_bytes", "parameter_bytes", "training_macs", "seconds", "prediction_seconds")


def places(page: Path) -> list[str]:
    return [found[3] for found in PLACE.finditer(page.read_text(encoding="utf-8")) if found[2] == PLACES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_holds_what_the_stored_results_say(page):
    text = page.read_text(encoding="utf-8")
    filled = fill_recorded(text, RESULTS)
    assert filled == text, f"{page.name} is out of date: make figures"


def test_every_stored_table_is_shown_somewhere():
    shown = [name for page in PAGES for name in places(page)]
    assert set(recorded_tables(RESULTS)) <= set(shown)


def options_of(told, trial):
    """The stored options; a file leaves out what is None, and has what a method chose where it is to choose now."""
    options = with_defaults(told["method"], as_recorded(told["method"], trial.settings["options"]))
    return {name: None if told["options"][name] is None else value for name, value in options.items()}


@pytest.mark.parametrize("name", ["all-methods-digits", "all-methods-fashion"])
def test_the_comparison_of_all_methods_is_whole(name):
    """Every seed of every row of the recipe has finished, with the settings of the recipe and every cost."""
    entries, seeds = read_recipe(ROOT / "recipes" / f"{name}.toml")
    trials = Trials.read(RESULTS / f"{name}.json")
    assert not trials.failures
    assert list(trials.by_label()) == list(entries)
    for label, found in trials.by_label().items():
        assert [trial.seed for trial in found] == list(range(seeds))
        for trial in found:
            told = {key: getattr(entries[label], key) for key in trial.settings}
            assert trial.settings | {"options": options_of(told, trial)} == told
            assert all(trial.cost[cost] > 0 for cost in COSTS)
            assert trial.metrics["accuracy"] > 0.5  # chance is 0.1


@pytest.mark.parametrize(("name", "model"), [("digits", "mlp"), ("digits-conv", "conv_net")])
def test_the_stored_digits_are_those_of_the_recipe(name, model):
    entries, seeds = read_recipe(ROOT / "recipes" / "digits.toml")
    trials = Trials.read(RESULTS / f"{name}.json")
    assert not trials.failures
    assert list(trials.by_label()) == list(entries)
    for label, found in trials.by_label().items():
        settings = entries[label]
        assert [trial.seed for trial in found] == list(range(seeds))
        for trial in found:
            told = {"model": model, "data": "digits"}
            told |= {key: getattr(settings, key) for key in trial.settings if key not in told}
            assert trial.settings | {"options": options_of(told, trial)} == told


def test_the_stored_bytes_are_of_every_case():
    rows = recorded_tables(RESULTS)["bytes"].rows
    assert [row[0] for row in rows] == [case.label for case in CASES]


def test_new_results_appear_in_a_page(tmp_path):
    places = ["<!-- bench:results:digits -->", "<!-- bench:results:digits-environment -->"]
    page = "".join(f"{place}\nold\n<!-- /bench -->\n" for place in places)
    trial = Trial("ssvi", 0, {}, {"accuracy": 0.912}, {"active_parameters": 1234})
    Trials([trial], {"cpu": "a CPU", "versions": {"torch": "2"}, "date": "2026-01-31"}).write(tmp_path / "digits.json")
    filled = fill_recorded(page, tmp_path)
    assert "| ssvi | 1 | 1,234 | 91.2 % | – | – | – |" in filled
    assert "a CPU; torch 2; 2026-01-31\n" in filled
    assert "old" not in filled


def test_a_place_for_what_is_not_stored(tmp_path):
    with pytest.raises(ValueError, match="a place for 'recipes', but the results have only"):
        fill_recorded("<!-- bench:results:recipes -->\n<!-- /bench -->", tmp_path)


def test_files_of_other_kinds_are_left_alone(tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"cells": []}))
    assert recorded_tables(tmp_path) == {}
    assert recorded_environments(tmp_path) == {}


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match="is no folder of results"):
        recorded_tables(tmp_path / "no")


def test_a_page_without_places(tmp_path):
    with pytest.raises(ValueError, match="no place for a table: write <!-- bench:results:recipes -->"):
        fill_recorded("# A page\n", tmp_path)


@pytest.mark.parametrize("recipe", ["ssvi-cifar10-95-default", "ssvi-cifar10-95-colder"])
def test_drawn_weights_cost_one_product_like_those_of_rigl(recipe):
    """The same layers, densities, steps and updates as RigL with ERK: the operations are the same to rounding."""
    (rigl,) = sorted((RESULTS / "rigl-cifar10-95-erk").glob("*/result.json"))
    expected = json.loads(rigl.read_text())
    for path in (RESULTS / recipe).glob("*/result.json"):
        result = json.loads(path.read_text())
        assert [layer["active"] for layer in result["layers"]] == [layer["active"] for layer in expected["layers"]]
        for name in ("training_macs", "training_macs_per_example"):
            assert result["cost"][name] == pytest.approx(expected["cost"][name], rel=1e-12)
