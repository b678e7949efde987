"""The picture has the lines that the results have."""

import pytest

from benchmarks.measurements import DENSE, PLAIN, Measurements, Timing
from benchmarks.plot import plot
from gossamer.lab.record import RecordError

pytest.importorskip("matplotlib")


def row(subject, family, work, gains):
    ms = {DENSE: [100.0], PLAIN: [50.0], **{f"sparse {d:g}": [100.0 / gain] for d, gain in gains.items()}}
    return Timing(subject, family, work, 32, ms)


@pytest.fixture
def results():
    gains = {0.1: 4.0, 0.05: 7.0, 0.01: 15.0}
    rows = [
        row(name, family, work, gains)
        for work in ("forward", "forward+backward")
        for name, family in (("linear 4x4", "linear"), ("linear 8x8", "linear"), ("conv 2@4x4", "conv 3x3"))
    ]
    return Measurements("cpu", 1, {}, layers=rows)


def test_an_svg_names_families_densities_and_works(results, tmp_path):
    plot(results, tmp_path / "speed.svg")
    text = (tmp_path / "speed.svg").read_text()
    for words in (
        "linear",
        "conv 3x3",
        "deterministic layers",
        "dense LRT",
        "10 %",
        "1 %",
        "forward+backward, batch 32",
    ):
        assert words in text, words
    first = text
    plot(results, tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text() == first  # the same results give the same file


def test_a_png(results, tmp_path):
    plot(results, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_without_layers_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="a plot needs layers"):
        plot(Measurements("cpu", 1, {}), tmp_path / "speed.svg")


def test_a_file_that_cannot_be_written(results, tmp_path):
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(RecordError, match="could not be written"):
        plot(results, tmp_path / "folder.svg")
