"""Own data on the command line: train, resume, evaluate, predict, compare and report."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gossamer.data import load
from gossamer.data.own.files import FILES, read_frame
from gossamer.lab import predict_run
from gossamer.lab.cli import main
from gossamer.lab.record import Run
from gossamer.lab.runs.evaluation import is_file, outside
from gossamer.train import Training

QUICK = ["--epochs", "3", "--n-draws", "3", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """A table with numbers, gaps, a category, and two targets."""
    path = tmp_path_factory.mktemp("tables") / "houses.csv"
    rng = np.random.default_rng(0)
    rows = []
    for i in range(120):
        age, rooms, town = rng.uniform(0, 90), rng.integers(1, 7), rng.choice(["Ulm", "Bonn"])
        price = 50 * rooms - age + rng.normal(0, 5)
        kind = "dear" if price > 120 else "cheap"
        rows.append([i, "" if i % 20 == 3 else f"{age:.1f}", rooms, town, f"{price:.2f}", kind])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "age", "rooms", "town", "price", "kind"], *rows])
    return path


@pytest.fixture(scope="module")
def trained(houses, tmp_path_factory):
    """Folders of a finished regression and a finished classification."""
    root = tmp_path_factory.mktemp("runs")
    for name, target, drop in (("price", "price", "id,kind"), ("kind", "kind", "id,price")):
        given = ["train", "ssvi", str(houses), "--target", target, "--drop", drop, "--density", "0.2", *QUICK]
        assert main([*given, "--out", str(root / name)]) == 0
    return root


@pytest.fixture
def alone(trained, houses, tmp_path, monkeypatch):
    """A copy of the regression, without its data."""
    monkeypatch.setattr("gossamer.lab.runs.settings.Settings.load_task", lambda self: pytest.fail("the data were read"))
    return Path(shutil.copytree(trained / "price", tmp_path / "alone"))


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_what_is_inferred_is_printed(gossamer, houses, tmp_path):
    given = ["train", "sgd", houses, "--target", "price", "--drop", "id,kind", "--epochs", "1", "--n-draws", "1"]
    code, _, err = gossamer(*given, "--out", tmp_path / "run")
    assert code == 0
    assert "numbers     age, rooms\n  categories  town (2)\n  missing in  age" in err
    assert "target      price, a number" in err
    assert "numbers     age, rooms" in gossamer("show", tmp_path / "run")[1]


def test_the_default_name_is_that_of_the_file(gossamer, houses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["train", "sgd", houses, "--target", "kind", "--epochs", "1", "--n-draws", "1", "--quiet"]
    assert gossamer(*given)[0] == gossamer(*given)[0] == 0
    assert sorted(path.name[10:] for path in (tmp_path / "runs").iterdir()) == ["-sgd-houses-0", "-sgd-houses-0-2"]
    lines = gossamer("runs")[1].splitlines()
    assert lines[0].split() == ["run", "method", "data", "seed", "started", "state", "result"]
    assert [line.split()[1:4] for line in lines[1:]] == [["sgd", "houses", "0"]] * 2
    assert all("finished  accuracy" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["digits", "--target", "y"], "digits takes no target; leave it out"),
        (["sun1", "--n-val", "3"], "sun1 takes no n_val: it has a validation split of its own; leave it out"),
        (["houses.npz", "--target", "y"], "houses takes no target; leave it out"),
        (["houses.csv", "--target", "y", "--task", "ranking"], "--task must be 'classification' or 'regression'"),
    ],
)
def test_usage(refused, given, message):
    assert refused(2, "train", "sgd", *given).startswith(message)


def test_all_columns_that_cannot_be_read_are_in_one_message(refused, tmp_path):
    rows = [f"2024-01-{1 + i % 28:02},note {i},{'inf' if i == 3 else i},{i % 2}" for i in range(50)]
    (tmp_path / "t.csv").write_text("\n".join(["sold,note,size,y", *rows]))
    message = refused(1, "train", "sgd", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "run")
    assert message.startswith("t.csv: column 'sold' holds dates")
    assert "; column 'note' has 50 different texts in 50 rows, more than 25 categories: drop it" in message
    assert "; column 'size' holds infinity" in message
    assert message.endswith("(--drop NAME,NAME leaves columns out)")
    assert not (tmp_path / "run").exists()


def test_the_columns_to_choose_a_target_from(refused, houses):
    message = refused(1, "train", "sgd", houses)
    assert message.startswith(
        "houses.csv: which column is to be predicted? Give its name as target (--target): id, age"
    )


@pytest.mark.filterwarnings("default:column 'rooms' has missing values")
def test_a_number_that_is_missing_for_the_first_time(gossamer, alone, houses, tmp_path):
    table = rows_of(houses.read_text())
    mean = Run.open(alone).data()["own"]["transform"]["mean"][1]  # after that of the ages
    for name, value in (("gap", ""), ("mean", mean)):
        lines = [",".join(table[0]), ",".join(str(v) for v in ({**table[0], "rooms": value}).values())]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    code, out, err = gossamer("predict", alone, tmp_path / "gap.csv", "--quiet")
    assert code == 0
    assert "column 'rooms' has missing values (NaN), but had none in training: the mean of the training rows" in err
    like = rows_of(gossamer("predict", alone, tmp_path / "mean.csv", "--quiet")[1])[0]
    assert rows_of(out)[0] == like


def test_a_run_predicts_without_its_data(gossamer, alone, houses, tmp_path):
    code, out, err = gossamer("predict", alone, houses, "--quiet")
    assert (code, err) == (0, "")
    rows = rows_of(out)
    assert list(rows[0]) == ["mean", "low90", "high90", "std", "epistemic_std"]
    assert len(rows) == 120
    assert all(float(row["low90"]) < float(row["mean"]) < float(row["high90"]) for row in rows)
    wider = rows_of(gossamer("predict", alone, houses, "--level", "0.99", "--quiet")[1])
    assert all(float(a["high99"]) > float(b["high90"]) for a, b in zip(wider, rows, strict=True))


def test_columns_are_found_by_their_names(gossamer, refused, alone, houses, tmp_path):
    expected = rows_of(gossamer("predict", alone, houses, "--quiet")[1])
    with houses.open() as file:
        table = list(csv.DictReader(file))
    other = tmp_path / "other.tsv"
    with other.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["town", "colour", "age", "rooms"], delimiter="\t", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row | {"colour": "red"} for row in table)
    assert rows_of(gossamer("predict", alone, other, "--quiet")[1]) == expected
    other.write_text("town\trooms\nUlm\t3\n")
    assert refused(1, "predict", alone, other).endswith("has no column 'age'; the training had age, rooms, town")


def test_standard_input_and_files(gossamer, refused, alone, houses, tmp_path, monkeypatch):
    expected = gossamer("predict", alone, houses, "--quiet")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(houses.read_text()))
    assert gossamer("predict", alone, "-", "--quiet")[1] == expected
    for name in ("p.csv", "p.jsonl", "p.parquet"):
        out = tmp_path / name
        assert gossamer("predict", alone, houses, "--quiet", "--out", out)[1] == f"predictions: {out} (120 rows)\n"
    assert (tmp_path / "p.csv").read_text() == expected
    means = [float(row["mean"]) for row in rows_of(expected)]
    lines = (tmp_path / "p.jsonl").read_text().splitlines()
    assert [json.loads(line)["mean"] for line in lines] == pytest.approx(means, rel=1e-5)
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(tmp_path / "p.parquet")["mean"].to_list() == pytest.approx(means, rel=1e-5)
    assert "predictions are written to .csv" in refused(2, "predict", alone, houses, "--out", tmp_path / "p.txt")


@pytest.mark.parametrize("ending", [ending for ending, kind in FILES.items() if kind.holds == "table"])
def test_every_kind_of_table_is_trained_on_predicted_written_and_another_set(ending, gossamer, alone, trained, houses):
    if ending == ".parquet":
        pytest.importorskip("polars")
    frame, copy = read_frame(houses), alone.parent / f"copy{ending}"
    FILES[ending].write(copy, {name: frame[name].tolist() for name in frame.columns})
    one, other = (load(str(path), target="price", drop="id,kind") for path in (houses, copy))
    assert all(torch.equal(a, b) for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True))
    expected = rows_of(gossamer("predict", alone, houses, "--quiet")[1])
    assert rows_of(gossamer("predict", alone, copy, "--quiet")[1]) == expected
    out = alone.parent / f"out{ending}"
    assert gossamer("predict", alone, copy, "--quiet", "--out", out)[0] == 0
    assert read_frame(out)["mean"].tolist() == pytest.approx([float(row["mean"]) for row in expected], rel=1e-5)
    scores = [is_file(str(path)) and outside(str(path), one).x for path in (houses, copy)]
    assert torch.equal(*scores)


def test_what_is_no_table_of_objects_is_refused(tmp_path):
    path = tmp_path / "houses.jsonl"
    for text, message in (
        ('{"age": 1}\nage 2\n', "is not JSON Lines, one object per line: Expecting value"),
        ("[1, 2]\n", "must have one JSON object per line"),
        ('{"age": [1]}\n', "of numbers, texts and null"),
        ("", "must have one JSON object per line"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_frame(path)
    path.write_text('{"age": 1.5, "town": "Ulm"}\n\n{"age": null}\n')
    frame = read_frame(path)
    assert frame["age"].tolist()[0] == 1.5
    assert np.isnan(frame["age"][1])
    assert frame["town"].tolist() == ["Ulm", None]


def test_probabilities_of_classes(gossamer, trained, houses):
    rows = rows_of(gossamer("predict", trained / "kind", houses, "--quiet")[1])
    assert list(rows[0])[-2:] == ["p_cheap", "p_dear"]
    assert all(abs(float(row["p_cheap"]) + float(row["p_dear"]) - 1) < 1e-5 for row in rows)
    with houses.open() as file:
        truth = [row["kind"] for row in csv.DictReader(file)]
    assert sum(row["class"] == kind for row, kind in zip(rows, truth, strict=True)) > 80


def test_inputs_that_leave_the_range_of_the_training(alone, tmp_path):
    (tmp_path / "far.csv").write_text("age,rooms,town\n900,3,Ulm\n30,3,Ulm\n")
    with pytest.warns(UserWarning, match=r"column 'age': 1 of 2 examples have 900 … 900, the training .* … 8\d"):
        predict_run(alone, tmp_path / "far.csv")
    (tmp_path / "new.csv").write_text("age,rooms,town\n30,3,Rome\n")
    with pytest.warns(UserWarning, match="column 'town' has categories that the training rows do not have: 'Rome'"):
        predict_run(alone, tmp_path / "new.csv")


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_line(gossamer, alone, tmp_path):
    (tmp_path / "far.csv").write_text("age,rooms,town\n900,3,Ulm\n")
    code, _, err = gossamer("predict", alone, tmp_path / "far.csv", "--quiet")
    assert code == 0
    assert err.startswith("gossamer: warning: inputs leave the range of the training data")
    assert err.count("\n") == 1


@pytest.mark.filterwarnings("always")
def test_inputs_of_another_scale(gossamer, finished, tmp_path):
    np.save(tmp_path / "new.npy", np.full((2, 64), 16.0))
    err = gossamer("predict", finished, tmp_path / "new.npy", "--quiet")[2]
    assert "2 of 2 examples have 16 … 16, the training 0 … 1" in err


def test_evaluate_and_report_with_own_data(gossamer, trained, tmp_path):
    metrics = Run.open(trained / "price").result()["metrics"]
    assert json.loads(gossamer("evaluate", trained / "price", "--json", "--quiet")[1]) == metrics
    assert gossamer("report", trained / "price", "--out", tmp_path / "page.html")[0] == 0


def test_a_file_that_moved_and_one_that_changed(gossamer, refused, trained, houses, tmp_path):
    run = Path(shutil.copytree(trained / "price", tmp_path / "run"))
    there, here = tmp_path / "there.csv", tmp_path / "here.csv"
    shutil.copy(houses, there)
    config = json.loads((run / "data.json").read_text())["own"]["source"]
    assert config["bytes"] == houses.stat().st_size
    metrics = Run.open(run).result()["metrics"]
    assert json.loads(gossamer("evaluate", run, "--data", there, "--json", "--quiet")[1]) == metrics
    assert refused(1, "evaluate", run, "--data", here, "--quiet") == (
        f"{here} does not exist: check the path. If the data have moved, name where they are with --data"
    )
    here.write_text(houses.read_text() + "999,1,2,Ulm,3,cheap\n")
    message = refused(1, "evaluate", run, "--data", here, "--quiet")
    assert message.startswith(f"{here} is not what {run} was trained on: {houses.stat().st_size:,} bytes, SHA-256 ")
    assert f"then, {here.stat().st_size:,} bytes" in message


def test_a_resumed_run_is_that_of_one_go(gossamer, refused, houses, trained, tmp_path):
    given = ["train", "ssvi", houses, "--target", "price", "--drop", "id,kind", "--density", "0.2", *QUICK]
    folder = tmp_path / "stopped"
    assert gossamer(*given, "--out", folder, "--stop_after", "0", "--checkpoint_seconds", "0")[0] == 130
    moved = tmp_path / "moved.csv"
    shutil.copy(houses, moved)
    assert gossamer("train", "--resume", folder, "--data", moved, "--quiet")[0] == 0
    assert Run.open(folder).result()["metrics"] == Run.open(trained / "price").result()["metrics"]


def test_compare_with_own_data(gossamer, houses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["compare", "sgd,ssvi", "--data", houses, "--target", "kind", "--drop", "id,price", "--seeds", "1", *QUICK]
    code, out, _ = gossamer(*given)
    assert code == 0
    assert (tmp_path / "runs" / "compare-houses" / "comparison.md").exists()
    monkeypatch.setattr(Training, "advance", lambda self: pytest.fail("trained"))
    assert gossamer(*given)[1] == out


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_images_and_their_names(gossamer, refused, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(level - 40, level + 40, (8, 8)).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    assert gossamer("train", "sgd", "pictures", *QUICK, "--out", "run")[0] == 0
    assert Run.open(Path("run")).environment["effective"]["model"] == "pooled_conv_net"
    rows = rows_of(gossamer("predict", "run", "pictures", "--quiet")[1])
    assert len(rows) == 40
    assert sum(Path(row["file"]).parent.name == row["class"] for row in rows) >= 36
    (row,) = rows_of(gossamer("predict", "run", "pictures/dark/3.png", "--quiet")[1])
    assert row["file"] == "pictures/dark/3.png"
    for name in ("pictures/dark/33.png", "elsewhere"):
        assert refused(1, "predict", "run", name) == f"{name} does not exist: check the path of the inputs"
    message = refused(1, "predict", "pictures/dark/3.png", "run")
    assert message.startswith("pictures/dark/3.png is a file, not the folder of a run")


@pytest.mark.filterwarnings("ignore:inputs leave the range")
def test_arrays_of_own_data(gossamer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez("mine.npz", x=x, y=x[:, 0] * 3 + 1)
    assert gossamer("train", "vi", "mine.npz", *QUICK, "--out", "run")[0] == 0
    Path("mine.npz").rename("moved.npz")
    rows = rows_of(gossamer("predict", "run", "moved.npz", "--quiet")[1])
    assert len(rows) == 60
    np.save("new.npy", x)
    assert rows_of(gossamer("predict", "run", "new.npy", "--quiet")[1]) == rows


def test_a_method_that_reads_its_training_data_to_predict(gossamer, refused, houses, tmp_path):
    """Batch statistics of drawn networks are those of the training data, so the file is needed, and the same one."""
    data = tmp_path / "pictures.npz"
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3)).astype(np.uint8)
    np.savez(data, x=x, y=np.arange(40) % 2)
    options = ["--refresh_batchnorm", "true", "--epochs", "1", "--n-draws", "2", "--device", "cpu", "--quiet"]
    (tmp_path / "norm.py").write_text(
        "from torch import nn\n\n\ndef net(shape, n):\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), "
        "nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n))\n"
    )
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        assert gossamer("train", "ssvi", data, "--model", "norm:net", *options, "--out", tmp_path / "run")[0] == 0
        trust = ["--trust", "norm:net", "--quiet"]
        assert len(rows_of(gossamer("predict", tmp_path / "run", data, *trust)[1])) == 40
        assert "names code that is not part of Gossamer: norm:net" in refused(1, "predict", tmp_path / "run", data)
        np.save(tmp_path / "new.npy", x)
        data.rename(tmp_path / "moved.npz")
        assert "does not exist" in refused(1, "predict", tmp_path / "run", tmp_path / "new.npy", *trust)
        given = ["--data", tmp_path / "moved.npz", *trust]
        assert len(rows_of(gossamer("predict", tmp_path / "run", tmp_path / "new.npy", *given)[1])) == 40
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("norm", None)
