"""``python -m reproductions em-mcmc-table4``: end to end on little data, resumed after a stop."""

import json
import math
import re

import numpy as np
import pytest

import reproductions
from gossamer.posterior.in_layers import Last
from reproductions import em_mcmc_table4
from reproductions.baselines import BASELINES
from reproductions.parts import Part, StoredParts
from reproductions.selection import EXAMPLES

NAME = "em-mcmc-table4"
SHORT = ("--repetitions", 2, "--epochs", 12, "--starts", 2, "--quiet")


def parts_in(folder):
    return json.loads((folder / "results.json").read_text())["parts"]


@pytest.mark.usefixtures("few_examples")
def test_end_to_end(command, tmp_path):
    code, out, err = command(NAME, "--examples", "3", *SHORT, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "Example 3\n" in out
    assert "best of 2 starts" in out
    parts = parts_in(tmp_path)
    found = [(p["settings"]["example"], p["settings"]["method"], len(p["rows"])) for p in parts]
    assert found == [(3, method, rows) for rows in (4, 2) for method in ("DFP", "DPF")]
    assert {part["environment"]["threads"] for part in parts}
    assert all(part["seconds"] > 0 for part in parts)
    assert all(0 <= row["score"] <= 1 for part in parts for row in part["rows"])
    assert "| SVBNN |  | published | 86.0 % | 39.9 % | 0 | 8.2 |  |  |" in (tmp_path / "table.md").read_text()
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.usefixtures("few_examples")
def test_rivals_are_trained_on_the_same_data(command, tmp_path):
    options = ("--settings", "rivals", "--repetitions", 1, "--epochs", 9, "--quiet", "--out", tmp_path)
    code, _, err = command(NAME, "--examples", "1", *options)
    assert (code, err) == (0, "")
    parts = parts_in(tmp_path)
    assert [(part["settings"]["method"], len(part["rows"])) for part in parts] == [("SPLBNN", 1), ("SVBNN", 1)]
    assert "best of 3 starts by evidence" in (tmp_path / "table.md").read_text()
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.usefixtures("few_examples")
def test_repetitions_have_data_of_their_own_and_do_not_depend_on_how_many_there_are(monkeypatch):
    seen = []
    load = em_mcmc_table4.data.load
    monkeypatch.setattr(em_mcmc_table4.data, "load", lambda name, **own: seen.append(own["seed"]) or load(name, **own))
    (part,) = em_mcmc_table4.plan(examples="1", networks="wide", repetitions=3, epochs=12, seed=40)[:1]
    rows = em_mcmc_table4.measure(part, lambda *_: None)
    assert seen == [40, 41, 42]
    assert [row["repetition"] for row in rows] == [0, 1, 2]
    assert len({row["score"] for row in rows}) == 3


@pytest.mark.usefixtures("few_examples")
def test_after_a_stop_only_what_is_missing_is_measured(command, tmp_path, monkeypatch):
    given = (NAME, "--examples", "1", *SHORT, "--out", tmp_path)
    measure, done = em_mcmc_table4.measure, []

    def stopped_at_the_third(settings, tick):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(settings)
        return measure(settings, tick)

    monkeypatch.setattr(em_mcmc_table4, "measure", stopped_at_the_third)
    code, out, err = command(*given)
    assert (code, out) == (130, "")
    assert "the same command goes on from what is finished" in err
    before = parts_in(tmp_path)
    assert [part["settings"] for part in before] == done
    done.clear()
    assert command(*given)[0] == 0
    after = parts_in(tmp_path)
    assert after[:2] == before
    assert len(after) == 4
    assert [part["settings"] for part in after[2:]] == done
    done.clear()
    written = (tmp_path / "results.json").read_bytes()
    assert command(*given)[0] == 0  # nothing left to measure, so the third measurement never comes
    assert (tmp_path / "results.json").read_bytes() == written
    assert not done


@pytest.mark.usefixtures("few_examples")
def test_other_settings_are_measured_anew_and_both_are_kept(command, tmp_path):
    given = (NAME, "--examples", "1", "--networks", "wide", *SHORT, "--out", tmp_path)
    assert command(*given)[0] == 0
    assert command(*given, "--seed", "5")[0] == 0
    assert [part["settings"]["seed"] for part in parts_in(tmp_path)] == [0, 0, 5, 5]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--examples", "4"), "--examples takes 1, 2, 3, with commas between them; got '4'"),
        (("--examples", ","), "--examples takes 1, 2, 3, with commas between them; got nothing"),
        (("--variants", "kee"), "--variants takes ke, ke_code, sun, with commas between them; got 'kee'"),
        (("--networks", "deep"), "--networks takes paper, wide, with commas between them; got 'deep'"),
        (("--repetitions", "0"), "--repetitions must be at least 1; got 0"),
        (("--epochs", "0"), "--epochs must be at least 1; got 0"),
        (("--seed", "-1"), "--seed must be at least 0; got -1"),
        (("--repetitions", "2.5"), "argument --repetitions: invalid int value: '2.5'"),
    ],
)
def test_bad_arguments(command, options, words):
    code, out, err = command(NAME, *options)
    assert (code, out) == (2, "")
    assert words in err


RELEVANT = {"example1": 5, "example3": 4}


def random_part(example, starts, rng):
    """Rows as a training might leave them: some variables too many, some missed."""
    n_relevant = RELEVANT[f"example{example}"]
    rows = []
    for repetition in range(6):
        for start in range(starts):
            kept = [column for column in range(n_relevant) if rng.random() < 0.8]
            extra = sorted(rng.choice(np.arange(n_relevant, 1000), rng.integers(0, 3), replace=False).tolist())
            score = float(rng.uniform(0.9, 1.0))
            nll = float(rng.random())
            row = {"repetition": repetition, "start": start, "train_nll": nll, "score": score}
            rows.append({**row, "selected": kept + extra})
    settings = em_mcmc_table4.plan(examples=str(example), networks="paper", repetitions=6, starts=starts)[0]
    return Part(settings, {}, 90.0, rows)


@pytest.mark.parametrize("example", [1, 3])
def test_numbers_of_the_table_equal_an_independent_computation(example):
    part = random_part(example, 3, np.random.default_rng(example))
    (table,) = em_mcmc_table4.tables(StoredParts(NAME, [part])).values()
    first, best = table.rows[-2:]
    assert (first[2], best[2]) == ("one start", "best of 3 starts")
    groups = np.array(part.rows, dtype=object).reshape(6, 3)
    for cells, chosen in (
        (first, [rows[0] for rows in groups]),
        (best, [rows[int(np.argmin([row["train_nll"] for row in rows]))] for rows in groups]),
    ):
        scale = 100 if example == 3 else 1
        relevant = set(range(RELEVANT[f"example{example}"]))
        sets = [set(row["selected"]) for row in chosen]
        fdr = [100 * len(s - relevant) / max(1, len(s)) for s in sets]
        fndr = [100 * len(relevant - s) / (1000 - len(s)) for s in sets]
        columns = ([scale * row["score"] for row in chosen], fdr, fndr, [len(s) for s in sets])
        half_a_digit = (0.05 if example == 3 else 0.005, 0.0, 0.0, 0.05)  # rates have two digits, wherever they begin
        for text, values, slack in zip(cells[3:7], columns, half_a_digit, strict=True):
            printed = [float(number) for number in re.findall(r"[\d.]+(?:e-\d+)?", text)]
            expected = [np.mean(values), np.std(values, ddof=1) / math.sqrt(6)]
            assert printed == pytest.approx(expected, rel=0 if slack else 0.05, abs=slack + 1e-9)
        assert cells[7] == f"{sum(s == relevant for s in sets)} of 6"
        assert cells[8] == "1.5 min"


def test_published_rows_stand_beside_ours_and_only_where_they_belong():
    parts = [Part(s, {}, 1.0, _perfect(s)) for s in em_mcmc_table4.plan(variants="ke,sun", networks="wide")]
    tables = em_mcmc_table4.tables(StoredParts(NAME, parts))
    assert list(tables) == ["example1-ke", "example1-sun", "example2", "example3"]
    published = {name: [row[0] for row in table.rows if row[2] == "published"] for name, table in tables.items()}
    assert published.pop("example1-sun") == []
    assert all(found == ["SPLBNN", "SVBNN", "DFP", "DPF"] for found in published.values())
    assert [row[4:8] for row in tables["example2"].rows[-2:]] == [["0", "0", "5.0 ± 0.0", "10 of 10"]] * 2


def _perfect(settings):
    relevant = list(range(4 if settings["example"] == 3 else 5))
    row = {"start": 0, "train_nll": 1.0, "score": 1.0, "selected": relevant}
    return [{"repetition": number, **row} for number in range(settings["repetitions"])]


def test_published_figures_cover_the_examples():
    assert EXAMPLES[1].published["DFP"]["score"] == 1.32
    assert EXAMPLES[3].published["DPF"]["score"] == 0.945


def test_a_name_that_does_not_exist():
    with pytest.raises(ValueError, match=r"did you mean 'em-mcmc-table4'\?"):
        reproductions.find("em-mcmc-tabel4")


@pytest.mark.usefixtures("few_examples")
def test_released_settings_are_the_papers(command, tmp_path):
    options = ("--settings", "released", "--examples", 1, "--repetitions", 2, "--epochs", 60, "--quiet")
    code, out, err = command(NAME, *options, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "released settings" in out
    (part,) = parts_in(tmp_path)
    settings = part["settings"]
    assert (settings["method"], settings["preset"], settings["mode"]) == ("DFP", "paper_example1", "reference")
    assert (settings["hidden"], settings["batch_size"]) == ([5, 3], 1000)
    assert [row["start"] for row in part["rows"]] == [0, 0]


def test_dead_networks_are_marked():
    (settings,) = em_mcmc_table4.plan(examples="2", networks="wide", repetitions=5)[:1]
    rows = _perfect(settings)
    rows[2] |= {"dead": True, "score": 28.1, "selected": list(range(2000))}
    (table,) = em_mcmc_table4.tables(StoredParts(NAME, [Part(settings, {}, 1.0, rows)])).values()
    assert table.rows[-1][table.head.index("exact")] == "4 of 5, 1 dead"


@pytest.mark.usefixtures("few_examples")
def test_a_network_that_predicts_a_constant_is_dead(monkeypatch):
    train = em_mcmc_table4._train

    def cut_off(*given):
        training = train(*given)
        for parameter in training.model.parameters():
            parameter.data.zero_()
        training.collector = Last()
        return training

    monkeypatch.setattr(em_mcmc_table4, "_train", cut_off)
    (settings,) = em_mcmc_table4.plan(examples="1", networks="wide", repetitions=2, epochs=12)[:1]
    assert all(row["dead"] for row in em_mcmc_table4.measure(settings, lambda *_: None))


@pytest.mark.usefixtures("few_examples")
@pytest.mark.parametrize(("example", "rival"), [(3, "HistGB"), (1, "Lasso")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a Lasso of few examples
def test_baselines_are_rows_of_the_same_table(example, rival):
    plan = em_mcmc_table4.plan(examples=str(example), settings="baselines", repetitions=1)
    settings = next(part for part in plan if part["method"] == rival)
    rows = em_mcmc_table4.measure(settings, lambda *_: None)
    assert len(rows) == 1
    assert set(rows[0]) == {"repetition", "start", "score", "selected"}
    (table,) = em_mcmc_table4.tables(StoredParts(NAME, [Part(settings, {}, 1.0, rows)])).values()
    assert table.rows[-1][:3] == [rival, "", BASELINES[rival]]
