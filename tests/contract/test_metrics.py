"""Every metric has one row that says everything about it, and evaluate, compare and the report read that row."""

import math
import re
from statistics import NormalDist

import numpy as np
import pytest
import torch

from gossamer._text.formats import percent
from gossamer.data import digits
from gossamer.evaluate import evaluate, summarize
from gossamer.lab.record import Run
from gossamer.lab.report import write_report
from gossamer.lab.runs.comparison import Comparison, Entry
from gossamer.likelihoods import Categorical, Gaussian
from gossamer.metrics import METRICS, Metric, add, shown
from gossamer.models import mlp
from gossamer.posterior import Prediction
from gossamer.types import Task


def entropy(p):
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def classes():
    """Eight examples, of which four are right; both draws prefer class 0, with 0.8 and 0.6: together 0.7."""
    probs = torch.tensor([[0.8, 0.2], [0.6, 0.4]], dtype=torch.float64)
    y = torch.tensor([0] * 4 + [1] * 4)
    prediction = Prediction(probs.log()[:, None].expand(2, 8, 2), Categorical())
    return prediction, task_of(y, Categorical(), 2), y


def numbers():
    """Means 0.5 and -0.5, noise 1, targets 1 and -1, all in units of 2."""
    outputs = torch.tensor([0.5, -0.5], dtype=torch.float64)[:, None, None].expand(2, 2, 1)
    y = torch.tensor([1.0, -1.0], dtype=torch.float64)
    likelihood = Gaussian(noise_std=1.0)
    return Prediction(outputs, likelihood), task_of(y, likelihood, 1)._replace(target_std=2.0), y


def task_of(y, likelihood, n_outputs):
    split = torch.zeros(len(y), 1), y
    return Task(split, split, split, likelihood, n_outputs)


def mixture(x):
    return (NormalDist(0.5).cdf(x) + NormalDist(-0.5).cdf(x)) / 2


def upper_quantile(tail):
    low, high = 0.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if mixture(middle) < 1 - tail else (low, middle)
    return low


def crps_of_one():
    """∫ F² up to the target 1, and ∫ (1 − F)² from there; both by the trapezoidal rule."""
    below, above = np.linspace(-9, 1, 10_001), np.linspace(1, 11, 10_001)
    left = np.trapezoid([mixture(x) ** 2 for x in below], below)
    return float(left + np.trapezoid([(1 - mixture(x)) ** 2 for x in above], above))


def floor_by_hand():
    """Of eight answers with 0.7 each, in one bin: mean distance between 0.7 and the share of right ones."""
    drawn = torch.rand(8, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) < 0.7
    return float((drawn.double().mean(0) - 0.7).abs().mean())


DOUBT = entropy(0.7), (entropy(0.8) + entropy(0.6)) / 2
KNOWN = {
    "classification": {
        "accuracy": 0.5,
        "nll": -(math.log(0.7) + math.log(0.3)) / 2,
        "ece": 0.2,
        "ece_floor": floor_by_hand(),
        "classwise_ece": 0.2,
        "marginal_l2_debiased": math.sqrt(0.2**2 - 0.25 / 7),
        "brier": (2 * 0.3**2 + 2 * 0.7**2) / 2,
        "aurc": 0.5,  # all are equally uncertain
        "entropy": DOUBT[0],
        "expected_entropy": DOUBT[1],
        "mutual_information": DOUBT[0] - DOUBT[1],
    },
    "regression": {
        "rmse": 2.0,
        "nll": math.log(2) - math.log((NormalDist(0.5).pdf(1) + NormalDist(-0.5).pdf(1)) / 2),
        "crps": 2 * crps_of_one(),
        "coverage90": 1.0,
        "width90": 2 * 2 * upper_quantile(0.05),
        "std": 2 * math.sqrt(1.25),
        "epistemic_std": 1.0,
    },
}
"""Values known from the definitions; a metric without its row here fails."""


@pytest.mark.parametrize(("kind", "case"), [("classification", classes), ("regression", numbers)])
def test_values(kind, case):
    found = summarize(*case())
    assert set(found) == set(KNOWN[kind]), "each metric needs a row of KNOWN, its value on the known case"
    # The integrals of the CRPS are sums over steps of 10⁻³, exact to about 10⁻⁷.
    assert found == pytest.approx(KNOWN[kind], rel=1e-6, abs=1e-9)


def test_rounding_does_not_lose_the_order_of_the_surest():
    logits = torch.tensor([[30.0, 0.0], [29.0, 0.0], [28.0, 0.0], [27.0, 0.0]])  # in float32 all are sure
    y = torch.tensor([0, 0, 1, 1])
    likelihood = Categorical()
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        found = summarize(
            Prediction(logits[order].unsqueeze(0), likelihood), task_of(y[order], likelihood, 2), y[order]
        )
        assert found["aurc"] == pytest.approx((0 + 0 + 1 / 3 + 2 / 4) / 4, rel=1e-15)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_row_says_everything(metric):
    assert METRICS[metric.name] is metric
    assert metric.label[0].isupper()
    assert metric.heading
    assert metric.meaning.endswith(".")
    assert len(metric.meaning) < 120
    assert metric.better in ("higher", "lower", None) or isinstance(metric.better, float)
    assert metric.format(0.5)
    assert metric.text(0.5).encode("latin-1")
    if metric.better is not None:
        best = {"higher": 1.0, "lower": 0.0}.get(metric.better, metric.better)
        assert metric.distance(best) < metric.distance(0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_written_all_the_same(value):
    for metric in METRICS.values():
        word = str(value).removeprefix("-")
        assert word in metric.text(value)
        assert word in metric.text(value, 0.1)
    assert "1" in METRICS["nll"].text(1.0, math.nan)


def test_labels_and_headings_are_unique():
    for names in ([metric.label for metric in METRICS.values()], [metric.heading for metric in METRICS.values()]):
        assert len(set(names)) == len(names)


def write_run(folder, metrics, method="a"):
    run = Run.create(folder, {"method": method, "data": "digits"})
    run.write_result({"method": method, "metrics": metrics, "cost": {}})
    return run.folder


def text_of(path):
    return path.read_text(encoding="utf-8").replace("&#x27;", "'")


def test_the_report_has_every_metric(tmp_path):
    values = {name: 0.25 for name in METRICS}
    page = text_of(write_report([write_run(tmp_path / "run", values)], tmp_path))
    for metric in METRICS.values():
        assert f">{metric.label}</th>" in page
        assert metric.meaning in page
    several = [write_run(tmp_path / f"{name}{seed}", values, name) for name in "ab" for seed in (0, 1)]
    page = text_of(write_report(several, tmp_path / "several.html"))
    assert all(re.search(f">{re.escape(metric.label)}(, [^<]+)?</button>", page) for metric in shown("comparison"))
    assert all(metric.winner in page for metric in METRICS.values())


@pytest.fixture
def own():
    """A metric of the user's."""

    def worst(prediction, task, y):
        return 1 - prediction.probs.amax(1).min()

    meaning = "How unsure it is of the example it is least sure of."
    yield add(Metric("worst", "Least certain", percent, "lower", meaning, worst, ("classification",)))
    del METRICS["worst"]


def test_a_metric_of_ones_own_is_one_call(own, tmp_path):
    torch.manual_seed(0)
    found = evaluate(mlp(64), digits.load(), n_draws=1)
    assert list(found)[-1] == "worst"
    assert 0 < found["worst"] < 1
    folders = [write_run(tmp_path / name, found, name) for name in "ab"]
    for page in (write_report(folders[:1], tmp_path / "one.html"), write_report(folders, tmp_path / "two.html")):
        assert "Least certain" in text_of(page)
        assert percent(found["worst"]).split("\u202f")[0] in text_of(page)
    text = Comparison([Entry("a", [{"metrics": found, "cost": {}}])], []).to_text()
    assert "worst" in text
    assert f"{100 * found['worst']:.1f}" in text


def test_a_metric_that_is_not_registered_here_is_reported_all_the_same(tmp_path):
    """It was, where the run was made."""
    page = text_of(write_report([write_run(tmp_path / "run", {"my_own": 0.25})], tmp_path))
    assert ">My own</th>" in page
    assert ">0.25</td>" in page
    several = [write_run(tmp_path / name, {"my_own": 0.25}, name) for name in "ab"]
    assert ">My own</button>" in text_of(write_report(several, tmp_path / "several.html"))
    assert "my own" in Comparison([Entry("a", [{"metrics": {"my_own": 0.25}, "cost": {}}])], []).to_text()


def test_a_name_is_taken_once(own):
    with pytest.raises(ValueError, match="there is a metric 'worst' already"):
        add(own)


def test_a_row_that_no_table_can_show_is_rejected():
    with pytest.raises(ValueError, match="needs a name, a label and a meaning"):
        Metric("x", "", percent, "lower", "X.")
    with pytest.raises(ValueError, match="better must be"):
        Metric("x", "X", percent, "max", "X.")
