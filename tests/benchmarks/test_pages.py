"""No figure of README and guides is copied by hand: each is what the renderer makes of the stored results."""

import re
from pathlib import Path

import pytest

from benchmarks.cpu import FULL
from benchmarks.gpu import FULL as GPU_PLAN
from benchmarks.measurements import Measurements, UpdateCost
from benchmarks.pages import PLACE, document, fill
from benchmarks.tables import TABLES, TRAINING_TABLES, all_tables

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "bench-cpu.json"
STORED_GPU = ROOT / "results" / "bench-gpu.json"
PAGES = [ROOT / "docs" / "guides" / "cpu.md"]


@pytest.fixture(scope="module")
def stored():
    return Measurements.read(STORED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_holds_what_the_stored_results_say(page, stored):
    text = page.read_text(encoding="utf-8")
    assert fill(text, stored) == text, f"{page.name} is out of date: make figures"
    assert PLACE.search(text)


def test_every_table_is_in_the_guide():
    places = [(found[2], found[3]) for found in PLACE.finditer(PAGES[0].read_text(encoding="utf-8"))]
    assert sorted(places) == sorted(("cpu", name) for name in [*TABLES, "environment"])


@pytest.mark.parametrize("page", [ROOT / "docs" / "guides" / "gpu.md"], ids=lambda page: page.name)
def test_a_page_holds_what_was_measured_on_a_gpu(page):
    text = page.read_text(encoding="utf-8")
    assert fill(text, Measurements.read(STORED_GPU)) == text, f"{page.name} is out of date: make figures"
    assert [found for found in PLACE.finditer(text) if found[2] == "gpu"]


def test_every_table_of_a_gpu_is_in_its_guide():
    text = (ROOT / "docs" / "guides" / "gpu.md").read_text(encoding="utf-8")
    places = [found[3] for found in PLACE.finditer(text) if found[2] == "gpu"]
    assert sorted(places) == sorted([*TRAINING_TABLES, "bars", "environment"])


def test_the_stored_results_of_a_gpu_are_those_of_a_full_run():
    results = Measurements.read(STORED_GPU)
    assert (results.device, results.rounds) == ("gpu", GPU_PLAN.rounds)
    assert [(row.way, row.batch) for row in results.training] == [(c.way, GPU_PLAN.batch) for c in GPU_PLAN.cases]


def test_the_stored_results_are_those_of_a_full_run(stored):
    assert (stored.device, stored.environment["threads"]) == ("cpu", 1)
    assert {(row.subject, row.batch, row.work) for row in stored.layers} == {(c.name, b, w) for c, b, w in FULL.layers}
    networks = {(case.subject, case.batch, case.work) for case in FULL.networks}
    assert {(row.subject, row.batch, row.work) for row in stored.networks} == networks
    later = {("ResNet-18", "gradient 0.05")}  # when the stored file was made, all sparse ways were that
    assert {(row.subject, row.way) for row in stored.memory} | later == {(c.network, c.way) for c in FULL.memory}
    assert {row.subject for row in stored.updates} == {case.subject for case in FULL.updates}
    for row in [*stored.layers, *stored.networks]:
        assert {len(samples) for samples in row.ms.values()} == {stored.rounds}
        assert {f"sparse {density:g}" for density in FULL.effort.densities} <= set(row.ms)


def test_the_picture_is_there():
    assert "<svg" in (ROOT / "docs" / "images" / "bench-cpu.svg").read_text(encoding="utf-8")


RESULTS = Measurements("cpu", 1, {}, updates=[UpdateCost("MLP", 8, 0.05, 100, [5.0], [10.0])])


def test_only_places_change_and_filling_twice_is_filling_once():
    page = "# A page\n\n<!-- bench:cpu:updates -->\nold\n<!-- /bench -->\n\nWords, and 2.0 % of them.\n"
    filled = fill(page, RESULTS)
    assert "old" not in filled
    assert "| MLP | 8 | 5 % | 5.00 ms | 10.0 ms | 2.0 % |" in filled
    assert (filled[:30], filled[-40:]) == (page[:30], page[-40:])
    assert fill(filled, RESULTS) == filled


def test_a_place_for_what_was_not_measured():
    with pytest.raises(
        ValueError, match="a place for 'layers-forward', but the results have only environment, updates"
    ):
        fill("<!-- bench:cpu:layers-forward -->\n<!-- /bench -->", RESULTS)


def test_places_of_another_device_are_left_alone():
    other = "<!-- bench:gpu:updates -->\nold\n<!-- /bench -->\n"
    assert fill(other + "<!-- bench:cpu:updates -->\n<!-- /bench -->\n", RESULTS).startswith(other)
    with pytest.raises(ValueError, match="no place for a table: write <!-- bench:cpu:networks -->"):
        fill(other, RESULTS)


def test_a_page_without_places():
    with pytest.raises(ValueError, match="no place for a table"):
        fill("# A page\n", RESULTS)


def test_a_document_has_every_table(stored):
    text = document(stored)
    titles = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert titles == [table.title for table in all_tables(stored).values()]
    assert stored.environment["cpu"] in text
