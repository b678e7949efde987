"""The frame of all tables and figures: plans, runs that continue, verdicts, tables, costs and errors in a line."""

import functools
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from gossamer import methods
from gossamer.data import sun1
from gossamer.metrics import LayerCost, dense_macs, training_macs
from gossamer.models import resnet8, resnet50
from gossamer.train import Training
from reproductions import __main__ as command
from reproductions import cost, em_mcmc_table4, frame, imagenet, ssvi_fig5
from reproductions.frame import Claim, Kept, Result, Row, Run, find, names, reproduce
from reproductions.pages import table_of

TINY = """
import torch
from gossamer.likelihoods import Categorical
from gossamer.types import Task

def images(n_classes):
    def draw(n, seed):
        x = torch.randint(256, (n, 3, 8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        return x, torch.arange(n) % n_classes
    names = tuple(map(str, range(n_classes)))
    empty = draw(0, 0)
    to_float = lambda x: x.float() / 255
    return Task(draw(208, 0), empty, draw(40, 1), Categorical(), n_classes, "tiny", to_float, class_names=names)

def cifar10(root=None): return images(10)
def cifar100(root=None): return images(20)
def svhn(root=None): return images(10)
"""


@pytest.fixture
def tiny(own_modules, monkeypatch):
    """Small runs of an epoch on 208 images of noise, and of twelve on other data."""
    monkeypatch.syspath_prepend(own_modules)
    (own_modules / "tiny_images.py").write_text(TINY)
    monkeypatch.setattr(frame, "SMALL_DATA", "tiny_images")
    monkeypatch.setattr(frame, "SMALL", {"model": "resnet8", "epochs": 1, "batch_size": 4, "n_draws": 2})
    whole = Row.settings
    short = lambda row, *, small: (told := whole(row, small=small)) | {"epochs": min(told["epochs"], 12)}  # noqa: E731
    monkeypatch.setattr(Row, "settings", short)


@pytest.fixture
def few_examples(monkeypatch):
    """200 training points instead of 10,000, and next to none held out."""
    monkeypatch.setattr(sun1, "N_VAL", 10)
    for source in em_mcmc_table4.SOURCES.values():
        monkeypatch.setattr(source, "load", functools.partial(source.load, n_train=200, n_test=50))


def of(name, **told):
    return Row(name, {"data": "cifar10", "model": "resnet18", "epochs": 200, "method": "sgd", **told})


RESULT = Result("A table", "a is better.", [of("a"), of("b", options={"lr": 0.2})], ["accuracy", "training_macs"])


@pytest.mark.usefixtures("tiny")
def test_what_was_measured_is_not_measured_again_and_a_killed_run_continues(tmp_path, monkeypatch):
    done = []

    def stops_at_the_third(told, folder, lock):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(told)
        return frame.trained(told, folder, lock)

    stopping = replace(RESULT, measure=stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        reproduce("name", stopping, tmp_path, small=True, seeds=2, say=lambda line: None)
    assert not (tmp_path / "name-small.json").exists()
    before = list(done)
    done.clear()
    kept = reproduce("name", stopping, tmp_path, small=True, seeds=2, say=lambda line: None)
    assert [told["seed"] for told in before + done] == [0, 0, 1, 1]  # the first seeds of all rows come first
    assert [run.row for run in kept.runs] == ["a", "b", "a", "b"]
    assert Kept.read(tmp_path / "name-small.json") == kept
    done.clear()
    assert reproduce("name", stopping, tmp_path, small=True, seeds=2, say=lambda line: None) == kept
    assert not done


@pytest.mark.usefixtures("tiny")
def test_results_share_the_runs_of_the_same_settings(tmp_path):
    reproduce("one", RESULT, tmp_path, small=True, seeds=1, say=lambda line: None)
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/result.json"))]
    other = replace(RESULT, rows=[replace(row, label=f"{row.label}'") for row in RESULT.rows])
    kept = reproduce("other", other, tmp_path, small=True, seeds=1, say=lambda line: None)
    assert [run.row for run in kept.runs] == ["a'", "b'"]
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/result.json"))] == times


@pytest.mark.usefixtures("tiny")
def test_a_run_of_which_something_else_was_measured_can_still_be_trained(tmp_path):
    def looked_at(told, folder, lock):
        return {"accuracy": 0.5}

    for result in (replace(RESULT, measure=looked_at), RESULT):
        kept = reproduce("one", result, tmp_path, small=True, seeds=1, say=lambda line: None)
        assert [run.row for run in kept.runs] == ["a", "b"]


@pytest.mark.usefixtures("tiny")
def test_a_run_of_another_process_is_left_to_it(tmp_path):
    told = next(RESULT.plan(small=True))[1]
    said = []
    with frame.Lock(frame.folder_of(tmp_path, told)):
        kept = reproduce("one", RESULT, tmp_path, small=True, seeds=1, say=said.append)
    assert [run.row for run in kept.runs] == ["b"]
    assert "another process has it" in said[0]


def test_the_last_of_several_processes_finds_what_the_others_have_finished(tmp_path):
    def measured(told, folder, lock):
        if told["options"]:  # of the second row: by now the other process has finished the first
            other.__exit__(None, None, None)
            reproduce("one", replace(own, rows=own.rows[:1]), tmp_path, small=True, seeds=1, say=lambda line: None)
        return {"accuracy": 0.5}

    own = replace(RESULT, measure=measured)
    other = frame.Lock(frame.folder_of(tmp_path, next(own.plan(small=True))[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "_check_data", lambda sets, root: None)
        other.__enter__()
        kept = reproduce("one", own, tmp_path, small=True, seeds=1, say=lambda line: None)
    assert [run.row for run in kept.runs] == ["a", "b"]


KILLED = """
import sys
from reproductions import __main__, frame
frame.SMALL_DATA, frame.SMALL = "tiny_images", {"model": "resnet8", "epochs": 2, "batch_size": 4, "n_draws": 2}
__main__.main(["ssvi-fig3-mc", "--small", "--seeds", "1", "--out", sys.argv[1]])
"""


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path, own_modules, monkeypatch):
    places = [str(own_modules), str(frame.Path(frame.__file__).parents[1]), *sys.path]
    begun = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "out")], env={"PYTHONPATH": ":".join(places)}
    )
    while not (done := list(tmp_path.glob("out/runs/*.trained.json"))):
        time.sleep(0.1)
    begun.kill()
    begun.wait()
    before = {path: path.stat().st_mtime_ns for path in done}
    monkeypatch.setattr(frame, "SMALL", {"model": "resnet8", "epochs": 2, "batch_size": 4, "n_draws": 2})
    assert command.main(["ssvi-fig3-mc", "--small", "--seeds", "1", "--out", str(tmp_path / "out")]) == 0
    assert {path: path.stat().st_mtime_ns for path in done} == before
    assert len(Kept.read(tmp_path / "out" / "ssvi-fig3-mc-small.json").runs) == 3


@pytest.mark.usefixtures("tiny")
def test_a_training_that_diverges_leaves_the_others_alone(tmp_path):
    said = []
    wild = replace(RESULT, rows=[of("wild", options={"lr": 1e9}), RESULT.rows[0]])
    kept = reproduce("one", wild, tmp_path, small=True, seeds=1, say=said.append)
    assert [run.row for run in kept.runs] == ["a"]
    assert "wild, seed 0: failed: " in said[0]


SMALLEST = [
    pytest.param(name, marks=[] if name in ("ssvi-fig5", "ssvi-fig3-mc") else [pytest.mark.slow])
    for name in names()
    if any(row.small is not None for row in find(name).rows)
]


@pytest.mark.usefixtures("tiny", "few_examples")
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_form_of_every_name(name, tmp_path, capsys):
    assert command.main([name, "--small", "--seeds", "1", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    result, kept = find(name), Kept.read(tmp_path / f"{name}-small.json")
    assert result.title in out
    assert kept is not None
    assert {run.row for run in kept.runs} == {row.label for row in result.rows if row.small is not None}
    table = table_of(result, [kept])
    assert not [row for row in table.rows if row[1] == "ours, *small*" and set(row[3:]) == {"–"}]
    assert (tmp_path / f"{name}-small.svg").exists() == (result.plot is not None)
    assert result.judge(kept).word != "not run"


@pytest.mark.slow
def test_a_step_of_the_network_for_imagenet_on_files_in_the_usual_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "val"):
        for i in range(4):
            folder = tmp_path / "imagenet" / part / f"n{i % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(256, (70 + i, 90, 3), dtype=torch.uint8).numpy()
            image.fromarray(pixels).save(folder / f"{i}.JPEG")
    row = next(row for row in find("cv-adam-table3").rows if "DFP" in row.label)
    task = imagenet.load(str(tmp_path))
    assert task.input_shape == (3, 224, 224)
    assert (task.class_names, task.train[1].tolist()) == (("n0", "n1"), [0, 0, 1, 1])
    method = methods.build("em_mcmc", task, 100, **row.told["options"])
    training = Training(method, resnet50(2), task, 100, batch_size=4)
    assert training.advance()["loss"].isfinite()
    middle = task.transform(task.test[0][:1])
    torch.testing.assert_close(middle, task.transform(task.test[0][:1]))
    assert not torch.equal(task.transform(task.augment(task.test[0][:1])), middle)
    with pytest.raises(frame.DataNotFoundError, match="with a folder for each class"):
        imagenet.load(str(tmp_path / "none"))


def test_a_dry_run_of_all_is_a_matter_of_seconds_and_trains_nothing(tmp_path, capsys):
    assert command.main(["all", "--dry-run", "--out", str(tmp_path / "none")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[4:]] == [*names(), "all"]
    assert not (tmp_path / "none").exists()


def test_rows_have_names_of_their_own_and_claims_name_rows():
    for name in names():
        result = find(name)
        labels = [row.label for row in result.rows]
        assert len(set(labels)) == len(labels)
        assert {row for claim in result.claims for row in claim.weights} <= set(labels)
        known = {metric.name for metric in result.metrics}
        assert all(not row.printed or set(row.printed) & known for row in result.rows)


def kept_of(**values):
    return Kept("x", True, [Run(row, {}, {}, 1.0, {"accuracy": v}) for row, vs in values.items() for v in vs])


@pytest.mark.parametrize(
    ("a", "b", "by", "word"),
    [
        ([0.90, 0.91, 0.92], [0.80, 0.81, 0.82], 0.0, "confirmed"),
        ([0.80, 0.81, 0.82], [0.90, 0.91, 0.92], 0.0, "contradicted"),
        ([0.80, 0.81, 0.82], [0.90, 0.91, 0.92], -0.2, "confirmed"),
        ([0.80, 0.81, 0.82], [0.805, 0.815, 0.825], 0.0, "not confirmed"),
        ([0.9], [0.8], 0.0, "not confirmed"),
        ([0.9], [], 0.0, "not run"),
    ],
)
def test_verdicts(a, b, by, word):
    assert kept_of(a=a, b=b).judge([Claim.better("a", "b", "accuracy", by)]).word == word


def test_paired_runs_are_compared_seed_by_seed():
    kept = kept_of(a=[0.60, 0.71, 0.83], b=[0.59, 0.70, 0.81])
    assert kept.judge([Claim("", "accuracy", {"a": 1.0, "b": -1.0})]).word == "not confirmed"
    word, why = kept.judge([Claim("more", "accuracy", {"a": 1.0, "b": -1.0}, paired=True)])
    assert (word, why) == ("confirmed", "more: +0.0133 ± 0.0033")  # 0.01, 0.01, 0.02


def test_a_verdict_says_its_weakest_comparison():
    kept = kept_of(a=[0.90, 0.91, 0.92], b=[0.80, 0.81, 0.82], c=[0.95, 0.96, 0.97])
    word, why = kept.judge([Claim.better("a", "b", "accuracy"), Claim.better("a", "c", "accuracy")])
    assert word == "contradicted"
    # both standard deviations are 0.01, so that the error of a difference of means of three is 0.01 √(2/3)
    assert why == "1 of 2 comparisons hold; the weakest is accuracy, a against c: -0.05 ± 0.0082"


def test_a_table_has_the_paper_above_ours():
    result = replace(RESULT, rows=[replace(RESULT.rows[0], printed={"accuracy": "91 %"}), RESULT.rows[1]])
    rows = table_of(result, [kept_of(a=[0.90, 0.92])]).rows
    assert rows == [
        ["a", "paper", "", "91 %", "–"],
        ["", "ours, *small*", "2", "91.0 ± 1.0 %", "–"],
        ["b", "ours: not run", "", "–", "–"],
    ]


def test_operations_of_one_layer_by_hand():
    """Dense VI computes two products, forward and twice back: 6 for each of a deterministic forward pass."""
    layer = {"data": "reproductions.small:cifar10", "model": "resnet8", "epochs": 2, "options": {}}
    forward = sum(dense_macs(resnet8(), torch.zeros(1, 3, 16, 16)).values())
    dense = cost.cost_of(layer | {"method": "sgd"})
    assert dense.macs == dense.dense == 3 * forward * 2 * 5000
    noisy = cost.cost_of(layer | {"method": "vi", "options": {"mode": "reference"}})
    assert noisy.macs == 6 * forward * 2 * 5000
    # A 3×3 convolution of 3 to 16 channels on 16×16 pixels: 16·16 outputs of 16 channels, 27 products each.
    stem = dense_macs(resnet8(), torch.zeros(1, 3, 16, 16))["stem"]
    assert stem == 16 * 16 * 16 * 27
    assert training_macs([LayerCost("stem", "", stem, 0.05, True, 0.01)]) == pytest.approx((6 * 0.05 + 0.01) * stem)


def test_iou_of_disjoint_equal_and_overlapping_sets():
    first, second = torch.tensor([True, True, False, False]), torch.tensor([False, False, True, True])
    assert ssvi_fig5.iou(first, first) == 1.0
    assert ssvi_fig5.iou(first, second) == 0.0
    assert ssvi_fig5.iou(first, torch.tensor([True, False, True, False])) == pytest.approx(1 / 3)


def test_snr_of_the_absolute_value_takes_what_the_ratio_takes_in_exact_arithmetic_only():
    generator = torch.Generator().manual_seed(0)
    std = torch.full((2000,), 1e-3)
    mean = 2e-6 * torch.randn(2000, generator=generator)  # far below σ: SNR(|θ|) is constant in float32
    exact = ssvi_fig5.removed(ssvi_fig5.EXACT, mean, std, 600)
    assert ssvi_fig5.iou(exact["SNR(θ)"], exact["SNR(|θ|)"]) == 1.0
    published = ssvi_fig5.removed(ssvi_fig5.PUBLISHED, mean, std, 600)
    assert ssvi_fig5.iou(published["SNR(θ)"], published["SNR(|θ|)"]) < 0.5


def table4(label, **changes):
    row = next(row for row in find("em-mcmc-table4").rows if row.label == label)
    return em_mcmc_table4.selection({**row.settings(small=False), "seed": 0, **changes}, None, None)


@pytest.mark.usefixtures("few_examples")
def test_of_several_starts_the_one_with_the_lowest_training_loss_is_taken():
    one, best = (
        table4(f"Example 3: DFP, {way}", epochs=12, starts=n) for way, n in (("one start", 1), ("best of 5", 3))
    )
    assert best["train_nll"] <= one["train_nll"]
    assert set(best) == {"train_nll", "accuracy", "dead", "fdr", "fndr", "n_selected", "exact"}


@pytest.mark.usefixtures("few_examples")
def test_a_network_that_predicts_a_constant_is_dead(monkeypatch):
    monkeypatch.setattr(em_mcmc_table4, "CONSTANT", 1e6)
    assert table4("Example 1: DFP, one start", epochs=12)["dead"] == 1.0


@pytest.mark.usefixtures("few_examples")
@pytest.mark.parametrize("label", ["Example 3: Boosting", "Example 1: Lasso", "Example 1: SVBNN"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # a lasso of few examples
def test_selections_are_scored_alike(label):
    found = table4(label, epochs=9)
    assert {"fdr", "fndr", "n_selected", "exact"} < set(found)
    assert 0 <= found["fdr"] <= 1


def test_errors_in_a_line(tmp_path, monkeypatch, capsys):
    def has(free):
        monkeypatch.setattr(frame.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))

    def error_of(*given):
        code = command.main([*given, "--out", str(tmp_path)])
        return code, capsys.readouterr().err

    has(free=10**12)
    code, err = error_of("ssvi-tabel1")
    assert (code, err.count("\n")) == (2, 1)
    assert "did you mean 'ssvi-table1'?" in err
    code, err = error_of("ssvi-table1", "--data-dir", str(tmp_path / "none"))
    assert (code, err.count("\n")) == (1, 1)
    assert "cifar10 is not in" in err
    assert "curl -L https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz | tar xz -C" in err
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "set"))
    code, err = error_of("cv-adam-table1")
    assert (code, err.count("\n")) == (1, 1)
    assert f"cifar10 is not in {tmp_path / 'set'}: " in err
    code, err = error_of("cv-adam-table3")
    assert (code, err.count("\n")) == (1, 1)
    assert f"no folder {tmp_path / 'set' / 'imagenet' / 'train'}" in err
    code, err = error_of("cv-adam-table3", "--small")
    assert (code, err) == (1, "reproductions: cv-adam-table3 has no small runs: leave out --small\n")
    has(free=1000)
    code, err = error_of("ssvi-table1")
    assert (code, err.count("\n")) == (1, 1)
    assert "has 1 kB: free some, or give another --out" in err.replace("\u202f", " ")


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"name": "x", "runs": [{}]}))
    with pytest.raises(frame.RecordError, match=r"x\.json holds no runs of a reproduction"):
        Kept.read(tmp_path / "x.json")
