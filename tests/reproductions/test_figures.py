"""``python -m reproductions`` of the two figures, a few epochs long; and stored results shown."""

import json

import pytest

from reproductions import StoredParts, fill, find
from reproductions.parts import Part

FIGURE1, FIGURE2 = "em-mcmc-figure1", "em-mcmc-figure2"


def rows_of(folder, number=0):
    return json.loads((folder / "results.json").read_text())["parts"][number]["rows"]


def test_figure_2_end_to_end(command, tmp_path):
    short = ("--epochs", 12, "--batch-size", 300, "--seeds", 1)
    code, out, err = command(FIGURE2, *short, "--out", tmp_path)
    assert code == 0, err
    assert "[2/2] digits, DPF, seed 0: step 48/48" in err
    for number in range(2):
        rows = rows_of(tmp_path, number)
        assert [row["epoch"] for row in rows] == list(range(1, 13))
        assert rows[0]["hard"] == rows[0]["soft"] == 0.0  # the warm-up
        assert rows[-1]["soft"] > 0.2
        assert all(0 <= row[key] <= 1 for row in rows for key in ("accuracy", "soft", "hard"))
    assert rows_of(tmp_path, 0)[2] == rows_of(tmp_path, 1)[2]  # nothing is pruned yet: the same training
    hard = [row["hard"] for row in rows_of(tmp_path, 0)]
    assert hard == sorted(hard)  # forward: what is gone is gone
    last = rows_of(tmp_path, 0)[-1]
    assert f"{100 * last['accuracy']:.1f} (" in next(line for line in out.splitlines() if line.startswith("DFP"))
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_figure_1_end_to_end(command, tmp_path):
    code, out, err = command(FIGURE1, "--epochs", 14, "--quiet", "--out", tmp_path)
    assert (code, err) == (0, "")
    rate, *rows = rows_of(tmp_path)
    assert rate["rate"][0] == pytest.approx(0.2, rel=0.01)
    assert all(len(row["share"]) == len(rate["step"]) for row in rows if row["kind"] == "share")
    channels = [row for row in rows if row["kind"] == "channel"]
    assert [row["axis"] for row in channels] == ["input", "output", "input", "output", "output"]
    smallest, largest = channels[1], channels[4]
    ends = [max(abs(path[-1]) for path in row["paths"]) for row in (smallest, largest)]
    assert ends[0] < ends[1]
    assert all(len(path) == len(rate["step"]) for row in channels for path in row["paths"])
    assert "Channels at zero" in out
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (FIGURE2, ("--network", "mpl"), "--network takes mlp, conv_net, pooled_conv_net"),
        (FIGURE2, ("--seeds", "0"), "--seeds must be at least 1; got 0"),
        (FIGURE1, ("--epochs", "0"), "--epochs and --cycles must be at least 1; got 0 and 4"),
        (FIGURE2, ("--data", "digitz"), "did you mean 'digits'?"),
        (FIGURE2, ("--data", "sun1"), "--data must be a set with classes, such as digits; sun1 has none"),
    ],
)
def test_bad_arguments(command, name, options, words, tmp_path):
    code, out, err = command(name, *options, "--out", tmp_path, "--quiet")
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


ENVIRONMENT = {
    "cpu": "a CPU", "cpu_count": 2, "threads": 1, "gossamer": "1", "torch": "2", "python": "3",
    "time": "2026-01-31T12:00:00",
}  # fmt: skip


@pytest.fixture
def stored(tmp_path):
    rows = [{"epoch": 1, "accuracy": 0.5, "soft": 0.25, "hard": 0.125}]
    results = StoredParts(FIGURE2, [Part({"method": m, "seed": 0}, ENVIRONMENT, 1.0, rows) for m in ("DFP", "DPF")])
    results.write(tmp_path / "stored.json")
    return tmp_path / "stored.json"


def test_show_fills_pages_and_draws(command, stored, tmp_path):
    page = tmp_path / "page.md"
    start, end = f"# Page\n\n<!-- reproduce:{FIGURE2}:end -->\n", "<!-- /reproduce -->\n\nWords.\n"
    page.write_text(f"{start}old\n{end}")
    picture = tmp_path / "picture.png"
    code, out, _ = command("show", stored, "--into", page, "--plot", picture)
    assert code == 0
    assert "At the end of training" in out
    text = page.read_text()
    assert text.startswith(start)
    assert text.endswith(end)
    assert "| DFP | 1 | 50.0 (50.0 to 50.0) | 25.0 (25.0 to 25.0) | 12.5 (12.5 to 12.5) |" in text
    assert picture.stat().st_size > 1000
    assert fill(text, StoredParts.read(stored), find(FIGURE2)) == text


def test_what_show_refuses(command, stored, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no place")
    assert "the page has no place for a table" in command("show", stored, "--into", page)[2]
    page.write_text(f"<!-- reproduce:{FIGURE2}:other -->\n<!-- /reproduce -->")
    assert "a place for 'other'" in command("show", stored, "--into", page)[2]
    assert "does not exist" in command("show", tmp_path / "none.json")[2]
    (tmp_path / "wrong.json").write_text('{"format": 0}')
    assert "is no result of python -m reproductions" in command("show", tmp_path / "wrong.json")[2]
    assert "must end in" in command("show", stored, "--plot", tmp_path / "x.bmp")[2]


def test_a_folder_of_another_reproduction_is_refused(command, stored, tmp_path):
    stored.rename(tmp_path / "results.json")
    code, _, err = command(FIGURE1, "--epochs", "14", "--out", tmp_path, "--quiet")
    assert code == 1
    assert f"holds {FIGURE2}, not {FIGURE1}: give another --out" in err
