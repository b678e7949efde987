"""The record of a run for TensorBoard has the numbers of its own record; TensorBoard itself may be absent."""

import sys
import types

import pytest

from gossamer import lab
from gossamer.lab.runs.progress import event_log


class Writer:
    """Stands for torch.utils.tensorboard.SummaryWriter and keeps what it is told."""

    written = []  # noqa: RUF012 (shared: the code under test makes the instance)

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step = folder, purge_step

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def add_scalar(self, name, value, step):
        self.written.append((self.folder, self.purge_step, name, value, step))


@pytest.fixture
def writer(monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    for place in ("gossamer.lab.runs.progress.needs", "gossamer.lab.runs.job.needs"):
        monkeypatch.setattr(place, lambda *modules, extra: None)
    Writer.written.clear()
    return Writer


def test_every_number_of_every_epoch_is_written(writer, tmp_path):
    settings = lab.Settings("sgd", "two_moons", epochs=2, device="cpu")
    run = lab.train(settings, tmp_path / "run", quiet=True, tensorboard=True)
    expected = [(name, value, row["step"]) for row in run.metrics() for name, value in row.items() if name != "step"]
    last = run.metrics()[-1]["step"]
    expected += [(f"test_{name}", value, last) for name, value in run.result()["metrics"].items()]
    assert [entry[2:] for entry in writer.written] == expected
    assert {entry[:2] for entry in writer.written} == {(tmp_path / "run" / "tensorboard", 1)}


def test_what_is_no_number_is_left_out(writer, tmp_path):
    with event_log(tmp_path, 7) as log:
        log({"step": 8, "loss": 0.5, "note": "none", "nothing": None, "infinite": float("inf")})
    assert writer.written == [(tmp_path / "tensorboard", 8, "loss", 0.5, 8)]


def test_without_tensorboard_nothing_is_trained_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'gossamer\[tensorboard\]'"):
        lab.train(lab.Settings("sgd", "two_moons", epochs=1), tmp_path / "run", quiet=True, tensorboard=True)
    assert not (tmp_path / "run").exists()
