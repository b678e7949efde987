import csv
import functools
import json
import math
import re
import struct
import zlib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from gossamer.lab.record import RecordError, Run
from gossamer.lab.record.contents import UPDATES
from gossamer.lab.report import write_report
from gossamer.lab.report.charts import Mark, scatter
from gossamer.lab.report.compare import costs
from gossamer.lab.report.parts import Axis, png
from gossamer.lab.report.runs import group, read
from gossamer.lab.report.table import leaders
from gossamer.metrics import METRICS
from gossamer_sweep import SweepRecord, write_sweep

VOID = {"meta", "link", "img", "br"}
LEARNING = {"loss", "val-accuracy", "kl"}
CURVES = ("reliability", "selective", "entropy", "mutual_information", "confusion")
CLASSES = {name.replace("_", "-") for name in CURVES}
NUMBERS = {"predicted", "coverage", "residual", "std"}
WEIGHTS = {"layers", "layer-std", "updates", "snr"}
IMAGES = {"surest-mistakes", "least-certain"}
ALL = LEARNING | CLASSES | WEIGHTS | IMAGES


class Page(HTMLParser):
    """Elements, their attributes and texts; fails on tags that do not close as they opened."""

    def __init__(self, path):
        super().__init__()
        self.open, self.elements, self.texts, self.ids = [], [], [], []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not set(self.open) & {"style", "script"}:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).replace("\u202f", " ").split())

    @property
    def figures(self):
        return {name.removeprefix("figure-") for name in self.ids if name.startswith("figure-")}

    def all(self, tag, class_=None):
        return [a for t, a in self.elements if t == tag and (class_ is None or class_ in a.get("class", "").split())]


def change_result(folder, change):
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result.pop("checksums", None)  # as in the runs of earlier versions
    change(result)
    path.write_text(json.dumps(result))


def test_a_finished_run_shows_everything(pages):
    page = Page(pages["single"])
    assert page.figures == ALL
    assert len(page.all("div", "card")) == 8
    assert len(page.all("img")) == 12
    for words in ("ssvi on digits32", "resnet18", "78,000 steps", "94.1 %", "8.82 MB", "NVIDIA L40S", "Reproduce"):
        assert words in page.text
    assert "gossamer train --method ssvi --seed 0" in page.text
    assert "unfinished" not in page.text


@pytest.mark.parametrize("kind", ["single", "coloured", "unfinished", "regression", "rows", "several", "sweep"])
def test_every_page_is_well_formed_and_self_contained(pages, kind):
    page = Page(pages[kind])
    assert not [name for name, n in Counter(page.ids).items() if n > 1]
    for tag, attributes in page.elements:
        assert tag not in ("iframe", "object", "embed")
        assert not (tag == "script" and "src" in attributes)
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            address = attributes.get(name, "data:")
            assert address.startswith("data:") or (
                tag == "a" and re.fullmatch(r"(several|sweep)/\w+-\d+/report.html", address)
            )
    assert "url(http" not in page.source
    assert "@import" not in page.source
    assert "nan" not in page.text.lower().split()


@pytest.mark.parametrize("kind", ["single", "regression", "several", "sweep"])
def test_every_chart_has_a_title_and_a_description(pages, kind):
    page = Page(pages[kind])
    charts = page.all("svg", "chart")
    assert charts
    for chart in charts:
        assert chart["role"] == "img"
        for name in chart["aria-labelledby"].split():
            assert name in page.ids


def test_every_headline_number_is_explained(pages):
    for kind in ("single", "unfinished", "regression", "several", "sweep"):
        page = Page(pages[kind])
        assert len(page.all("p", "meaning")) == len(page.all("div", "card")) > 3


@pytest.mark.parametrize("name", [*CURVES, "snr"])
@pytest.mark.parametrize("broken", [False, True])
def test_a_curve_that_is_absent_or_broken_is_left_out(fake, tmp_path, name, broken):
    folder = fake.fake_run(tmp_path / "run", steps=3900)

    def change(result):
        curve = result["curves"].pop(name)
        if broken:
            result["curves"][name] = {key: values[:-2] if key != "edges" else values for key, values in curve.items()}
            for key in ("accuracy", "label"):
                result["curves"][name].pop(key, None)

    change_result(folder, change)
    figures = Page(write_report([folder], tmp_path / "report.html")).figures
    assert figures == ALL - {name.replace("_", "-")}


@pytest.mark.parametrize(
    ("part", "missing"),
    [
        ("layers", {"layers", "layer-std"}),
        ("examples", IMAGES),
        ("curves", CLASSES | {"snr"}),
        ("class_names", set()),
        ("metrics", set()),
        ("cost", set()),
    ],
)
def test_a_part_of_the_result_may_be_absent_or_of_another_kind(fake, tmp_path, part, missing):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    for change in (lambda result: result.pop(part), lambda result: result.update({part: 3})):
        change_result(folder, change)
        figures = Page(write_report([folder], tmp_path / "report.html")).figures
        assert figures == ALL - missing


@pytest.mark.parametrize(
    ("keys", "figure"),
    [({"loss", "nll", "val_nll"}, "loss"), ({"kl"}, "kl"), ({"val_accuracy"}, "val-accuracy")],
)
def test_a_metric_that_is_absent_is_left_out(fake, tmp_path, keys, figure):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    rows = Run.open(folder).metrics()
    kept = ({name: value for name, value in row.items() if name not in keys} for row in rows)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    change_result(folder, lambda result: None)
    assert Page(write_report([folder], tmp_path / "report.html")).figures & LEARNING == LEARNING - {figure}


def test_without_updates_there_is_no_figure_of_them(fake, tmp_path):
    folder = fake.fake_run(tmp_path / "run", "sgd", steps=3900)
    assert "updates" not in Page(write_report([folder], tmp_path / "report.html")).figures


def test_an_unfinished_run_shows_its_curves_and_how_to_resume(pages):
    page = Page(pages["unfinished"])
    assert page.figures == LEARNING | {"updates"}
    assert "is unfinished" in page.text
    assert f"gossamer train --resume '{pages['unfinished'].parent / 'un finished'}'" in page.text
    assert "All measurements" not in page.text


def test_a_run_that_has_only_begun_makes_a_page(tmp_path):
    run = Run.create(tmp_path / "run", {})
    page = Page(write_report([run.folder], tmp_path / "report.html"))
    assert "no step is recorded yet" in page.text
    assert page.figures == set()


def test_one_recorded_step_is_enough_for_cards_but_not_for_curves(tmp_path):
    run = Run.create(tmp_path / "run", {"method": "ssvi"})
    run.append({"step": 1, "loss": 2.0})
    page = Page(write_report([run.folder], tmp_path / "report.html"))
    assert page.figures == set()
    assert len(page.all("div", "card")) == 2


def test_a_regression_shows_its_own_measurements(pages):
    page = Page(pages["regression"])
    assert page.figures == NUMBERS | {"val-rmse", "loss", "kl", "layers", "layer-std"}
    for words in ("RMSE 0.312", "CRPS 0.168", "Coverage (90 %) 91.3 %", "Epistemic std", "3.1 GMAC", "Linear 0"):
        assert words in page.text
    assert "Accuracy" not in page.text


def test_a_loss_that_is_no_number_is_reported(tmp_path):
    run = Run.create(tmp_path / "run", {"method": "ssvi"})
    for step, loss in enumerate((2.0, 1.0, math.nan, math.inf), start=1):
        run.append({"step": step, "loss": loss})
    page = Page(write_report([run.folder], tmp_path / "report.html"))
    assert "diverged: its loss is not a finite number from step 3 on" in page.text
    assert "loss" in page.figures


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-300, 1e300])
def test_constant_and_extreme_metrics_are_drawn(tmp_path, value):
    run = Run.create(tmp_path / "run", {"method": "ssvi"})
    for step in (1, 2, 3):
        run.append({"step": step, "loss": value, "val_accuracy": value, "kl": value})
    page = Page(write_report([run.folder], tmp_path / "report.html"))
    assert page.figures == {"loss", "val-accuracy"}


NASTY = "<script>alert(1)</script>\"'&amp;</title></style>]]>"


def test_names_are_text_and_never_markup(fake, tmp_path):
    folder = fake.fake_run(tmp_path / "<b> & 'run'", steps=3900, nasty=NASTY)
    run = Run.open(folder)
    (folder / "environment.json").write_text(json.dumps({"argv": ["train.py", NASTY], "cpu": NASTY, NASTY: NASTY}))

    def change(result):
        result |= {"method": NASTY, "data": NASTY, "model": NASTY, "class_names": [NASTY] * 10}
        for layer in result["layers"]:
            layer |= {"name": NASTY, "kind": NASTY, "shape": [NASTY]}

    change_result(folder, change)
    run.append({"step": 10**6, "postponed": NASTY}, UPDATES)
    other = fake.fake_run(tmp_path / "other", steps=3900)
    for folders in ([folder], [folder, other]):
        page = Page(write_report(folders, tmp_path / "report.html"))
        assert len(page.all("script")) == len(page.all("style")) == 1
        assert "<script>alert" not in page.source
        assert NASTY in "".join(page.texts)


def test_several_runs_are_compared(pages):
    page = Page(pages["several"])
    dots = {f"dots-{name}" for name in ("accuracy", "nll", "ece", "brier")}
    costs = {"cost", "cost-size", "cost-prediction"}
    assert page.figures == dots | costs | {"reliability", "selective", "loss", "val-accuracy"}
    assert len(page.all("table", "sortable")) == 1
    assert len(page.all("tbody")) == 4
    assert len(page.all("tr", "single")) == 12
    assert len(page.all("button", "fold")) == 4
    assert len(page.all("details")) == 12
    for words in ("4 methods · 12 runs", "×3", "Highest accuracy", "Fastest to train", "±"):
        assert words in page.text


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ({"ssvi": [0.90, 0.92], "vi": [0.93, 0.95]}, ["ssvi", "vi"]),  # t = 0.03 / hypot(0.01, 0.01) = 2.1 < 4.30
        ({"ssvi": [0.90, 0.902], "vi": [0.93, 0.932]}, ["vi"]),  # t = 21
        ({"ssvi": [0.90], "vi": [0.93, 0.932]}, ["ssvi", "vi"]),  # of a single run the noise is unknown
    ],
)
def test_a_winner_is_named_where_a_t_test_can_tell_it_from_the_next(fake, tmp_path, values, best):
    folders = []
    for method, all_values in values.items():
        for seed, value in enumerate(all_values):
            folders.append(fake.fake_run(tmp_path / f"{method}-{seed}", method, seed, steps=3900))
            change_result(folders[-1], lambda result, value=value: result["metrics"].update(accuracy=value))
    groups = group([read(folder) for folder in folders])
    assert [one.label for one in leaders(groups, METRICS["accuracy"])] == best
    page = Page(write_report(folders, tmp_path / "report.html"))
    card = page.text.partition("Highest accuracy ")[2]
    assert card.startswith(
        "vi 93.1 ± 0.1 %" if best == ["vi"] else "No clear winner 2 of 2 cannot be told from the best."
    )


def test_single_runs_name_no_winner(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / method, method, steps=3900) for method in ("ssvi", "vi")]
    page = Page(write_report(folders, tmp_path / "report.html"))
    assert "Highest accuracy" not in page.text
    assert "only several seeds can tell" in page.text


def test_what_evaluate_measured_is_shown_once(fake, tmp_path):
    page = Page(write_report([fake.fake_evaluated(tmp_path / "run")], tmp_path / "report.html"))
    assert page.figures == ALL | {"calibration", "temperature", "conformal", "selection", "corrupted-0", "corrupted-1"}
    for words in (
        "Variances of the weights times 0.5",
        "temperature of the logits accuracy NLL 1 94.1 % 0.21 1.37 94.1 % 0.2 ",
        "aps: adaptive sets.",
        "90.0 %, aps 90.7 % 1.34",
        "mutual information – – – – – 2.1 % 1.4 % 81.0 % 4.6 %",
        "NLL 0.2 0.3 0.4 0.5 0.6 0.7",
    ):
        assert words in page.text, words
        assert page.text.count(words) == 1


def test_of_numbers_conformal_intervals_are_shown(fake, tmp_path):
    folder = fake.fake_regression(tmp_path / "run")
    kinds = {"predicted": {"coverage": 0.82, "mean_width": 1.1}, "scaled": {"coverage": 0.9, "mean_width": None}}
    Run.open(folder).add_evaluation("conformal", {"0.9": {"n_val": 100, "n_test": 100, "kinds": kinds}})
    text = Page(write_report([folder], tmp_path / "report.html")).text
    assert "Conformal intervals" in text
    assert "90.0 %, predicted 82.0 % 1.1 90.0 %, scaled 90.0 % –" in text


def test_decimals_are_the_same_in_every_row_of_a_column(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / f"{m}-{s}", m, s, steps=3900) for m in ("ssvi", "vi") for s in (0, 1)]
    values = {"ssvi-0": 0.9723, "ssvi-1": 0.9743, "vi-0": 0.98, "vi-1": 0.988}
    for folder in folders:
        change_result(folder, lambda result, name=folder.name: result["metrics"].update(accuracy=values[name]))
    text = Page(write_report(folders, tmp_path / "report.html")).text
    assert "Accuracy, %" in text
    assert "97.3 ± 0.1" in text
    assert "98.4 ± 0.4" in text


def test_runs_on_different_data_are_compared_apart_and_nothing_is_crowned_over_both(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / method, method, steps=3900) for method in ("ssvi", "vi")]
    folders += [fake.fake_regression(tmp_path / f"regression {seed}", seed) for seed in (0, 1)]
    page = Page(write_report(folders, tmp_path / "report.html"))
    assert len(page.all("table", "sortable")) == 2
    assert "2-dots-accuracy" in page.figures
    assert "2 data sets" in page.text
    assert len([name for name in page.figures if name.endswith("dots-nll")]) == 1


def test_rows_of_numbers_get_a_table_of_mistakes(pages):
    page = Page(pages["rows"])
    assert page.figures == {"surest-mistakes"}
    assert "17 upper lower 90.0 %" in page.text


def test_what_was_measured_on_inputs_from_outside_is_shown(fake, tmp_path):
    folders = [fake.fake_ood(tmp_path / str(seed), seed) for seed in (0, 1)]
    folders.append(fake.fake_run(tmp_path / "vi", "vi", steps=3900))
    page = Page(write_report(folders[:1], tmp_path / "one.html"))
    assert {"ood-0", "ood-1", "ood-scores"} == {name for name in page.figures if name.startswith("ood")}
    for words in ("AUROC 91.2 %, FPR95 31.0 %", "svhn, max probability", "Entropy: test data and svhn"):
        assert words in page.text
    assert not [name for name in Page(write_report(folders, tmp_path / "two.html")).figures if "ood" in name]
    Run.open(folders[2]).add_evaluation("ood", Run.open(folders[0]).evaluation()["ood"])
    page = Page(write_report(folders, tmp_path / "three.html"))
    assert "AUROC by entropy, svhn" in page.text
    assert "91.7 ± 0.5 %" in page.source.replace("\u202f", " ")


@pytest.mark.parametrize("content", [3, {"svhn": 3}, {"svhn": {"scores": {"entropy": {"edges": [1], "auroc": "x"}}}}])
def test_an_evaluation_that_is_broken_makes_no_figure(fake, tmp_path, content):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    (folder / "evaluation.json").write_text(json.dumps({"format": 1, "ood": content}))
    assert Page(write_report([folder], tmp_path / "report.html")).figures == ALL


@pytest.mark.parametrize(
    ("file", "place", "value", "problem"),
    [
        ("result.json", ("curves", "entropy", "right"), [10**400], "a whole number of 401 digits"),
        ("evaluation.json", ("conformal",), {"0.9": {"kinds": {"lac": 3}}}, "kinds/lac must be a table; got 3"),
        ("evaluation.json", ("conformal",), {"0.9": 3}, "conformal/0.9 must be a table; got 3"),
    ],
)
def test_absurd_values_are_refused_in_a_line(fake, tmp_path, file, place, value, problem):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {"format": 1}
    content.pop("checksums", None)
    *inner, last = place
    functools.reduce(dict.__getitem__, inner, content)[last] = value
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=rf"{file} is broken: .*{problem}"):
        write_report([folder], tmp_path / "report.html")


@pytest.mark.parametrize("value", [1e-320, 0.0, -1.0, 1e308, math.nan])
def test_extreme_numbers_of_a_curve_are_drawn_or_left_out(fake, tmp_path, value):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    for name, key in [
        ("entropy", "right"),
        ("confusion", "count"),
        ("snr", "count"),
        ("reliability", "count"),
    ]:
        change_result(folder, lambda result, at=name, of=key: result["curves"][at][of].__setitem__(0, value))
    rows = [json.loads(line) | {"loss": value} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Page(write_report([folder], tmp_path / "report.html")).figures


def test_many_classes_show_their_most_frequent_confusions(fake, tmp_path):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    pairs = {"label": [0, 5, 7], "predicted": [0, 6, 8], "count": [90, 4, 9]}
    names = [f"class {k}" for k in range(40)]
    change_result(folder, lambda result: result["curves"].update(confusion=pairs))
    change_result(folder, lambda result: result.update(class_names=names))
    text = Page(write_report([folder], tmp_path / "report.html")).text
    assert "Most frequent: 9 × class 7 taken for class 8" in text
    assert "class 5 → class 6" in text


@pytest.mark.parametrize("kind", ["single", "regression", "several", "sweep"])
def test_every_figure_has_its_numbers_as_csv(pages, kind):
    tables = [attributes["data-csv"] for _, attributes in Page(pages[kind]).elements if "data-csv" in attributes]
    assert len(tables) == len([one for one in Page(pages[kind]).all("svg", "chart")])
    for text in tables:
        head, *rows = csv.reader(text.splitlines())
        assert len(rows) > 0
        assert all(len(row) == len(head) for row in rows)


def test_numbers_of_a_figure_are_those_of_the_run(fake, tmp_path):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    page = Page(write_report([folder], tmp_path / "report.html"))
    (text,) = [a["data-csv"] for _, a in page.elements if a.get("data-csv", "").startswith('series,"Entropy')]
    rows = list(csv.DictReader(text.splitlines()))
    curve = Run.open(folder).result()["curves"]["entropy"]
    wrong = [c - r for c, r in zip(curve["count"], curve["right"], strict=True)]
    assert [float(row["Examples"]) for row in rows] == [*curve["right"], *wrong]


def test_the_cost_of_training_is_that_of_the_whole_training_not_of_its_end(fake, tmp_path):
    """A method that is pruned on the way ends as sparse as one that was sparse from the start, but cost more."""
    folders = [fake.fake_run(tmp_path / name, name, steps=3900) for name in ("ssvi", "em_mcmc")]
    for folder, training in zip(folders, (1e12, 6e12), strict=True):
        cost = {"density": 0.05, "inference_macs": 1e6, "training_macs": training}
        change_result(folder, lambda result, cost=cost: result["cost"].update(cost))
    text = Page(write_report(folders, tmp_path / "report.html")).text
    assert "1 TMAC" in text
    assert "6 TMAC" in text


def test_the_front_has_what_no_other_beats_in_both(fake, tmp_path):
    """Cheap and bad, dear and good, and one that is dearer and worse than the second."""
    found = {"cheap": (1e9, 0.9), "good": (4e9, 0.2), "beaten": (5e9, 0.3)}
    folders = [fake.fake_run(tmp_path / name, "ssvi", steps=3900) for name in found]
    for folder, (name, (training, nll)) in zip(folders, found.items(), strict=True):
        change_result(folder, lambda result, name=name: result.update(method=name))
        change_result(folder, lambda result, nll=nll: result["metrics"].update(nll=nll))
        change_result(folder, lambda result, cost=training: result["cost"].update(training_macs=cost))
    (figure,) = [one for one in costs(group([read(folder) for folder in folders])) if one and one.slug == "cost"]
    assert "On the front: cheap, good." in figure.html()
    assert [row[:3] for row in figure.chart.rows] == [(name, *point) for name, point in found.items()]
    assert figure.html().count("line reference") == 1


def test_a_loss_below_zero_and_an_unknown_cost_do_no_harm(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / name, name, steps=3900) for name in ("ssvi", "rigl")]
    change_result(folders[0], lambda result: result["metrics"].update(nll=-1.0))
    for folder in folders:
        change_result(folder, lambda result: result["cost"].pop("prediction_seconds"))
    figures = costs(group([read(folder) for folder in folders]))
    assert [figure.slug for figure in figures if figure] == ["cost", "cost-size"]


def test_means_and_standard_errors_are_those_of_the_runs(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / str(seed), seed=seed, steps=3900) for seed in range(3)]
    for folder, accuracy in zip(folders, (0.90, 0.92, 0.94), strict=True):
        change_result(folder, lambda result, value=accuracy: result["metrics"].update(accuracy=value))
    (only,) = group([read(folder) for folder in folders])
    assert only.mean("accuracy") == pytest.approx(0.92)
    assert only.error("accuracy") == pytest.approx(0.02 / math.sqrt(3))
    assert "92.0 ± 1.2" in Page(write_report(folders, tmp_path / "report.html")).text


def test_groups_are_told_apart_by_what_differs(fake, tmp_path):
    folders = [
        fake.fake_run(tmp_path / f"{density} {seed}", seed=seed, steps=3900, density=density)
        for density in (0.05, 0.1)
        for seed in (0, 1)
    ]
    folders.append(fake.fake_run(tmp_path / "rigl", "rigl", steps=3900))
    groups = group([read(folder) for folder in folders])
    assert [one.label for one in groups] == ["ssvi, density 0.05", "ssvi, density 0.1", "rigl"]
    assert [len(one.runs) for one in groups] == [2, 2, 1]


def test_many_settings_and_unfinished_runs_are_compared_too(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / str(k), steps=3900, update_period=k) for k in range(1, 11)]
    folders.append(fake.fake_run(tmp_path / "unfinished", steps=3900, finished=False))
    folders.append(fake.fake_regression(tmp_path / "regression"))
    page = Page(write_report(folders, tmp_path / "report.html"))
    assert "unfinished is unfinished" in page.text
    assert len(page.all("h2", "part")) == 2
    assert len(page.all("tbody")) == 12


def test_unfinished_runs_alone_are_compared_by_their_curves(fake, tmp_path):
    folders = [fake.fake_run(tmp_path / m, m, steps=3900, finished=False) for m in ("ssvi", "vi")]
    page = Page(write_report(folders, tmp_path / "report.html"))
    assert page.figures == {"val-accuracy", "loss"}


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RecordError, match="at least one"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(RecordError, match="is missing"):
        write_report([tmp_path], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_report_goes_into_a_folder_or_replaces_a_file(tmp_path):
    run = Run.create(tmp_path / "run", {"method": "ssvi"})
    assert write_report([run.folder], run.folder) == run.folder / "report.html"
    assert write_report([run.folder], run.folder / "report.html").exists()
    with pytest.raises(RecordError, match="could not be written"):
        write_report([run.folder], tmp_path / "none" / "report.html")


def test_the_same_folders_give_the_same_page(fake, tmp_path):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    first = write_report([folder], tmp_path / "first.html").read_bytes()
    assert write_report([folder], tmp_path / "second.html").read_bytes() == first


def test_a_long_run_makes_a_small_page(tmp_path):
    run = Run.create(tmp_path / "run", {"method": "ssvi"})
    rows = (json.dumps({"step": step, "loss": 1 / step, "kl": step, "lr": 0.1}) for step in range(1, 30_001))
    (run.folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    assert write_report([run.folder], tmp_path / "report.html").stat().st_size < 150_000


@pytest.mark.parametrize("coloured", [False, True])
def test_an_image_comes_back_from_its_png(coloured):
    image = [[[10 * y, x, 255] if coloured else 50 * y + x for x in range(5)] for y in range(3)]
    data = png(image)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(kind + body)
        chunks[kind], place = body, place + 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (width, height, depth, colour) == (5, 3, 8, 2 if coloured else 0)
    flat = [[v for pixel in row for v in pixel] if coloured else row for row in image]
    assert zlib.decompress(chunks[b"IDAT"]) == b"".join(b"\0" + bytes(row) for row in flat)


@pytest.mark.parametrize("image", [[], [[]], [[1, 2], [3]], 3, None, [[None]], [[[1, 2]]]])
def test_an_image_that_is_none_is_left_out(fake, tmp_path, image):
    folder = fake.fake_run(tmp_path / "run", steps=3900)
    change_result(folder, lambda result: result["examples"]["surest_mistakes"][0].update(image=image))
    assert len(Page(write_report([folder], tmp_path / "report.html")).all("img")) == 11


def test_a_sweep_shows_its_search_and_its_trials(pages):
    page = Page(pages["sweep"])
    found = SweepRecord.read(pages["sweep"].parent / "sweep")
    assert page.figures == {"history", "curves", "importances", "by-lr", "by-members", "by-weight-decay"}
    rows = page.all("th")
    assert len([one for one in rows if one.get("scope") == "row"]) == len(found.trials) == 20
    for words in (
        "Sweep of ssvi on digits",
        "12 finished",
        "6 pruned",
        "1 failed",
        "gossamer train ssvi digits --lr 0.01",
    ):
        assert words in page.text
    assert "<b>a loss" not in page.source  # a failure is text
    assert [a["href"] for a in page.all("a")] == [f"sweep/{found.best.folder}/report.html"]
    (text,) = [a["data-csv"] for _, a in page.elements if a.get("data-csv", "").startswith("name,Trial")]
    written = {int(row["Trial"]): float(row["NLL, held out"]) for row in csv.DictReader(text.splitlines())}
    assert written == pytest.approx({one.number: one.objective for one in found.trials if one.objective}, rel=1e-5)


@pytest.mark.parametrize(("height", "below"), [(0.9, 15), (0.0, -13)])
def test_the_end_of_a_stair_is_named_below_it_or_above_where_there_is_no_room(height, below):
    marks = [Mark(0, 1.0, "", ""), Mark(1, 0.0, "", ""), Mark(2, height, "best", "", area=0.1)]
    chart = scatter(marks, Axis("x"), Axis("y"), [(0, 1.0), (2, height)])
    root = ElementTree.fromstring(f"<svg>{chart.drawing}</svg>")
    (label,) = [one for one in root.iter("text") if one.text == "best"]
    (dot,) = [one for one in root.iter("circle") if "point" in one.get("class")]
    assert float(label.get("y")) - 4 - float(dot.get("cy")) == below


def test_a_sweep_says_where_it_searched_in_words(pages):
    text = Page(pages["sweep"]).text
    for words in (
        "Searched: from 0.0001 to 0.1, on a log scale.",
        "Searched: from 1 to 4.",
        "Searched: snr or magnitude.",
        "Lower is better.",
    ):
        assert words in text


def test_a_sweep_without_ended_trials_has_a_page(fake, tmp_path):
    folder = fake.fake_sweep(tmp_path / "sweep")
    record = SweepRecord.read(folder)
    replace(record, trials=record.trials[-1:], importances={}, command="").write(folder)
    page = Page(write_sweep(folder))
    assert page.figures == set()
    assert "1 running" in page.text


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"values": {}}, "values/.* is missing"), ({"folder": "../other"}, "folder is no name of a folder")],
)
def test_a_sweep_whose_fields_do_not_fit_is_refused(fake, tmp_path, change, problem):
    folder = fake.fake_sweep(tmp_path / "sweep")
    record = SweepRecord.read(folder)
    replace(record, trials=[replace(record.trials[0], **change), *record.trials[1:]]).write(folder)
    with pytest.raises(RecordError, match=f"sweep.json is broken: trials/0/{problem}"):
        write_sweep(folder)
