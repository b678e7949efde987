"""Data of the user's own: what is inferred, what is refused, and what the record of a task remembers."""

import csv
import json

import numpy as np
import pytest
import torch

from gossamer import data
from gossamer.data.own import arrays, texts
from gossamer.data.own.files import FILES, from_text, read_frame
from gossamer.data.own.record import TrainingDataNeededError, task_without_data
from gossamer.likelihoods import Categorical, Gaussian

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def table(tmp_path):
    """Writes rows of a CSV file: 40 houses, changed column by column."""

    def write(name="houses.csv", delimiter=",", **changes):
        rng = np.random.default_rng(0)
        n = 40
        columns = {
            "age": [f"{value:.1f}" for value in rng.uniform(0, 90, n)],
            "town": rng.choice(["Ulm", "Bonn"], n).tolist(),
            "price": [f"{value:.2f}" for value in rng.normal(100, 20, n)],
        } | changes
        columns = {key: [value] * n if isinstance(value, str) else value for key, value in columns.items()}
        path = tmp_path / name
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return str(path)

    return write


def test_a_table_of_numbers_and_categories(table):
    task = data.load(table(), target="price")
    assert isinstance(task.likelihood, Gaussian)
    assert task.name == "houses"
    assert (len(task.train[1]), len(task.val[1]), len(task.test[1])) == (29, 3, 8)
    assert task.input_shape == (3,)  # age, Bonn, Ulm
    x = task.transform(task.train[0])
    assert x.mean(0).abs().max() < 1e-6
    assert x.std(0, correction=0).sub(1).abs().max() < 1e-6
    assert task.train[1].mean().abs() < 1e-6
    everything = torch.cat([part[0] for part in (task.train, task.val, task.test)])
    assert len(everything.unique(dim=0)) == 40  # no row is in two splits


def test_the_split_is_always_the_same(table):
    one, other = (data.load(table(), target="price") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.test, other.test, strict=True))


@pytest.mark.parametrize(("name", "delimiter"), [("t.tsv", "\t"), ("t.csv", ";"), ("t.csv", "\t")])
def test_other_delimiters(table, name, delimiter):
    reference = data.load(table(), target="price")
    found = data.load(table(name, delimiter), target="price")
    assert torch.equal(found.train[0], reference.train[0])


def test_parquet_is_the_same_table(table, tmp_path):
    pytest.importorskip("polars")
    path = table(age=["", *map(str, range(39))])
    frame = read_frame(path)
    FILES[".parquet"].write(tmp_path / "t.parquet", {name: frame[name].tolist() for name in frame.columns})
    one, other = data.load(path, target="price"), data.load(str(tmp_path / "t.parquet"), target="price")
    assert torch.equal(one.train[0], other.train[0])
    assert one.record["columns"] == other.record["columns"]


def test_missing_numbers_get_the_median_of_the_training_rows_and_an_indicator(table):
    ages = [str(value) for value in range(40)]
    task = data.load(table(age=["NA", *ages[1:]]), target="price")
    known = task.train[0][task.train[0][:, 1] == 0, 0].sort().values
    assert task.record["columns"]["missing"] == [0]
    assert task.record["columns"]["fill"] == [float(known[(len(known) - 1) // 2])]
    x = torch.cat([part[0] for part in (task.train, task.val, task.test)])
    assert int(x[:, 1].sum()) == 1
    assert float(x[x[:, 1] == 1, 0]) == task.record["columns"]["fill"][0]


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["yes", "no"] * 20, None, ["no", "yes"]),
        (["1", "0"] * 20, None, ["0", "1"]),
        (["10", "9", "2", "2"] * 10, None, ["2", "9", "10"]),
        ([str(i) for i in range(40)], None, None),
        (["0.5", "1.5"] * 20, None, None),
        (["1", "0"] * 20, "regression", None),
        (["0.5", "1.5"] * 20, "classification", ["0.5", "1.5"]),
    ],
)
def test_classes_or_numbers(table, values, task, classes):
    found = data.load(table(price=values), target="price", task=task)
    assert found.record["target"].get("classes") == classes
    assert isinstance(found.likelihood, Gaussian if classes is None else Categorical)
    if classes is not None:
        assert found.class_names == tuple(classes)
        assert found.n_outputs == len(classes)


def test_rows_without_a_target_are_left_out_and_said(table):
    task = data.load(table(price=["", "?", *["1.5", "2.5"] * 19]), target="price", task="regression")
    assert sum(task.record["sizes"].values()) == 38
    assert "2 rows without a target" in data.describe_data(task.record)


def test_what_was_inferred_in_words(table):
    text = data.describe_data(data.load(table(age=["", *["3", "4", "5"] * 13]), target="price", drop="town").record)
    assert "numbers     age" in text
    assert "missing in  age" in text
    assert "dropped     town" in text
    assert "target      price, a number (mean" in text
    assert "examples    29 for training, 3 held out, 8 for testing" in text
    text = data.describe_data(data.load(table(), target="town").record)
    assert "target      town, 2 classes: Bonn, Ulm" in text
    assert "numbers     age, price" in text


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {}, "houses.csv: which column is to be predicted? Give its name as target (--target): age, town, price"),
        ({}, {"target": "prize"}, "houses.csv: unknown column 'prize'; did you mean 'price'?"),
        ({}, {"target": "price", "drop": "id"}, "houses.csv: unknown column 'id'"),
        ({"sold": "2024-01-31"}, {"target": "price"}, "houses.csv: column 'sold' holds dates"),
        ({"sold": "inf"}, {"target": "price"}, "houses.csv: column 'sold' holds infinity"),
        ({"price": "7"}, {"target": "price"}, "houses.csv: every example has the same target, 7"),
        ({}, {"target": "town", "task": "regression"}, "houses.csv: the target 'town' holds 'Bonn', so task cannot be"),
        ({"price": [f"a{i}" for i in range(40)]}, {"target": "price"}, "houses.csv: the target 'price' has 40 classes"),
        ({}, {"target": "price", "drop": "age,town"}, "houses.csv has no column beside the target 'price'"),
        ({}, {"target": "price", "n_val": 40}, "n_val must be from 0 to 31"),
    ],
)
def test_what_is_refused(table, changes, options, message):
    with pytest.raises(ValueError, match=r"\S") as caught:
        data.load(table(**changes), **options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t is empty"),
        ("1,2\n3,4\n", "t: the first line must have the names of the columns; it has 1, 2"),
        ("a,a\n1,2\n", "t has two columns called 'a': rename one"),
        ("a,b\n1,2\n3\n", "t, row 3 has 1 values, the first line has 2 names"),
        ('a,b\n1,"2\n', "t is not CSV: unexpected end of data"),
    ],
)
def test_texts_that_are_no_tables(text, message):
    with pytest.raises(ValueError, match=r"\S") as caught:
        from_text(text, "t")
    assert str(caught.value) == message


def test_too_few_rows_and_no_file(tmp_path):
    (tmp_path / "few.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"few.csv: at least 10 examples are needed to train and test; it has 1"):
        data.load(str(tmp_path / "few.csv"), target="y")
    with pytest.raises(data.DataNotFoundError, match=r"no.csv does not exist"):
        data.load(str(tmp_path / "no.csv"), target="y")


@pytest.mark.parametrize("form", ["x and y", "parts", "with val"])
def test_arrays(tmp_path, form):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)), rng.integers(0, 3, 50)
    parts = {
        "x and y": {"X": x, "y": y},
        "parts": {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]},
        "with val": {
            **{"x_train": x[:30], "y_train": y[:30], "x_val": x[30:40], "y_val": y[30:40]},
            **{"x_test": x[40:], "y_test": y[40:]},
        },
    }
    np.savez(tmp_path / "mine.npz", **parts[form])
    task = data.load(str(tmp_path / "mine.npz"))
    sizes = {"x and y": (36, 4, 10), "parts": (36, 4, 10), "with val": (30, 10, 10)}[form]
    assert (len(task.train[1]), len(task.val[1]), len(task.test[1])) == sizes
    assert task.class_names == ("0", "1", "2")
    if form != "x and y":
        assert np.array_equal(task.test[0].numpy(), x[40:])
    pairs = {(*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True)}
    for inputs, labels in (task.train, task.val, task.test):
        assert {(*row, label) for row, label in zip(inputs.tolist(), labels.tolist(), strict=True)} <= pairs


@pytest.mark.parametrize("shape", [(30, 8, 9), (30, 8, 9, 3), (30, 3, 8, 9), (30, 8, 9, 1)])
def test_images_in_arrays_have_their_channels_first(tmp_path, shape):
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(30) % 2)
    task = data.load(str(tmp_path / "mine.npz"))
    assert task.input_shape == (3 if 3 in shape else 1, 8, 9)
    assert task.train[0].dtype == torch.uint8
    pixels = task.transform(task.train[0])
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-5
    assert pixels.std((0, 2, 3), correction=0).sub(1).abs().max() < 1e-5


def test_arrays_that_are_refused(tmp_path):
    path = tmp_path / "mine.npz"
    for given, message in [
        ({"a": np.zeros(3)}, "must have arrays x and y, or x_train, y_train, x_test and y_test; it has a"),
        ({"x": np.zeros((20, 2)), "y": np.arange(19) % 2}, "has 20 inputs and 19 targets"),
        ({"x": np.full((20, 2), np.nan), "y": np.arange(20) % 2}, "x has numbers that are not finite"),
        ({"x": np.zeros(20), "y": np.arange(20) % 2}, "x must be .rows, columns. or images"),
        ({"x": np.zeros((20, 2)), "y": np.zeros((20, 2))}, "y must have one number or text per example"),
    ]:
        np.savez(path, **given)
        with pytest.raises(ValueError, match=message):
            data.load(str(path))
    np.savez(path, x=np.array([{}] * 20, dtype=object), y=np.zeros(20), allow_pickle=True)
    with pytest.raises(ValueError, match="holds Python objects"):  # a pickle is never opened
        data.load(str(path))


def test_a_header_that_promises_more_than_the_file_has_allocates_nothing(tmp_path):
    path = tmp_path / "mine.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<U300000000", "fortran_order": False, "shape": (100,)})
    with pytest.raises(ValueError, match=r"mine.npy is not a readable .* promises 120,000,000,000 bytes"):
        arrays.read_array(path)


@pytest.fixture
def pictures(tmp_path):
    """A folder of images, six of each class."""

    def make(size=(9, 8), mode="RGB", below="", n=6):
        rng = np.random.default_rng(0)
        for name in ("cats", "dogs"):
            folder = tmp_path / "pets" / below / name
            folder.mkdir(parents=True)
            for i in range(n):
                shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
                Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8), mode).save(folder / f"{i}.png")
        return tmp_path / "pets"

    return make


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_a_folder_of_images(pictures, mode, channels):
    folder = pictures(mode=mode)
    task = data.load(str(folder))
    assert task.class_names == ("cats", "dogs")
    assert task.input_shape == (channels, 8, 9)
    assert (len(task.train[1]), len(task.val[1]), len(task.test[1])) == (9, 1, 2)
    x = np.concatenate([part[0].numpy() for part in (task.train, task.val, task.test)])
    y = np.concatenate([part[1].numpy() for part in (task.train, task.val, task.test)])
    for path in folder.rglob("*.png"):
        pixels = np.asarray(Image.open(path))
        pixels = pixels[None] if mode == "L" else np.moveaxis(pixels, -1, 0)
        (row,) = (x == pixels).reshape(12, -1).all(1).nonzero()[0]
        assert task.class_names[y[row]] == path.parent.name


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_folders_of_training_and_test_images(pictures):
    pictures(below="train")
    task = data.load(str(pictures(below="test", n=2)))
    assert (len(task.train[1]), len(task.val[1]), len(task.test[1])) == (11, 1, 4)


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_images_of_several_sizes(pictures):
    folder = pictures()
    Image.fromarray(np.zeros((5, 4, 3), np.uint8)).save(folder / "cats" / "odd.png")
    with pytest.raises(ValueError, match=r"2 sizes: 9×8 mostly, but .*odd.png is 4×5. Give image_size"):
        data.load(str(folder))
    assert data.load(str(folder), image_size=6).input_shape == (3, 6, 6)
    (folder / "cats" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken.png is not a readable image"):
        data.load(str(folder), image_size=6)


def test_folders_without_images(tmp_path):
    with pytest.raises(data.DataNotFoundError, match="has no images in sub-folders, one per class"):
        data.load(str(tmp_path))
    with pytest.raises(data.DataNotFoundError, match=r"is neither a folder of images nor a \.csv"):
        data.load(str(tmp_path / "no"))


def test_names_come_before_folders(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert data.own_kind("digits") is None
    assert data.own_kind("./digits") == "images"


def test_the_task_without_its_data(table):
    """Everything but the training data, from JSON: a method that reads those gets an error, never other data."""
    task = data.load(table(age=["", *["3", "4.5", "5"] * 13]), target="price")
    again = task_without_data(json.loads(json.dumps(task.record)))
    assert (again.input_shape, again.n_data, again.n_outputs) == (task.input_shape, task.n_data, task.n_outputs)
    assert (again.target_mean, again.target_std) == (task.target_mean, task.target_std)
    assert torch.equal(again.transform(task.test[0]), task.transform(task.test[0]))
    x = again.train[0].to("cpu")
    for read in (
        lambda: x + 1,
        lambda: x.float(),
        lambda: x[torch.tensor([0])],
        lambda: x[0],
        lambda: x.numpy(),
        lambda: x.clone(),
        lambda: x.split(1),
        lambda: torch.cat([x, x]),
        lambda: again.transform(x),
    ):
        with pytest.raises(TrainingDataNeededError):
            read()


# ---------------------------------------------------------------------- texts


def lengths(rows):
    return [[len(word) for word in text.split()] for text in rows]


def test_a_table_of_texts_becomes_rows_of_words(tmp_path):
    path = tmp_path / "mail.csv"
    path.write_text("\n".join(["kind,text", *["spam,buy now", "mail,see you at four o clock", ",nobody knows"] * 10]))
    task = texts.load(path, text="text", target="kind", tokenize=lengths, length=4, padding=9, n_val=2)
    assert (task.class_names, task.n_outputs, task.input_shape) == (("mail", "spam"), 2, (4,))
    assert [len(y) for _, y in (task.train, task.val, task.test)] == [14, 2, 4]  # rows without a class are left out
    x, y = (torch.cat([split[i] for split in (task.train, task.val, task.test)]) for i in (0, 1))
    assert x.dtype == torch.int64
    assert torch.equal(x, torch.tensor([[3, 3, 2, 4], [3, 3, 9, 9]])[y])
    again = texts.load(path, text="text", target="kind", tokenize=lengths, length=4, padding=9, n_val=2)
    assert torch.equal(again.test[0], task.test[0])
    every = texts.load(path, text="text", target=None, tokenize=lengths)
    assert [len(split[1]) for split in (every.train, every.val, every.test)] == [0, 0, 30]


def test_texts_that_cannot_be_read(tmp_path):
    path = tmp_path / "mail.csv"
    path.write_text("\n".join(["kind,text", *["spam,buy now", "mail,see you"] * 10]))
    for words, options in {
        "did you mean 'text'": {"text": "txt", "target": "kind", "tokenize": lengths},
        "unknown column 'sort'": {"text": "text", "target": "sort", "tokenize": lengths},
        "of the 20 texts; got 3": {"text": "text", "target": "kind", "tokenize": lambda rows: [[1]] * 3},
        "a list of whole numbers for each text": {"text": "text", "target": "kind", "tokenize": lambda rows: [["a"]]},
    }.items():
        with pytest.raises(ValueError, match=words) as caught:
            texts.load(path, **options)
        assert "\n" not in str(caught.value)
