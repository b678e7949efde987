"""Runs of several independent networks: how long they are, what they store, and how earlier records are read."""

import pytest
import torch

import gossamer
from gossamer.lab import Settings, evaluate_run, resume, show, train
from gossamer.lab.record import RecordError, Run
from gossamer.lab.record.run import runs_table
from gossamer.lab.runs.comparison import refuse_other_settings
from gossamer.lab.runs.progress import Interrupted
from gossamer.models import mlp
from gossamer.posterior import Mixture, SnapshotPosterior
from gossamer.train import checkpoint

TOLD = {"epochs": 2, "n_draws": 6, "device": "cpu", "n_val": 239}
PER_EPOCH = 15  # steps over the 959 examples, 64 at a time


def settings(**options) -> Settings:
    return Settings("ssvi", "digits", **TOLD, options={"density": 0.1, "update_period": 4, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train(settings(members=3), tmp_path_factory.mktemp("members") / "run", quiet=True).folder


def test_each_member_is_the_network_that_is_known(folder, tmp_path):
    """The first is that of a run without members, to the bit, and all take its epochs."""
    alone = train(settings(), tmp_path / "alone", quiet=True)
    run = Run.open(folder)
    assert [row["epoch"] for row in run.metrics()] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in run.metrics()[:2]] == [row["loss"] for row in alone.metrics()]
    assert run.metrics()[-1]["step"] == 6 * PER_EPOCH == run.environment["effective"]["steps"]
    cost, one = run.result()["cost"], alone.result()["cost"]
    assert cost["training_macs"] == 3 * one["training_macs"]
    assert cost["parameter_bytes"] == 3 * one["parameter_bytes"]
    assert "weights active in 3 networks" in show(folder)
    assert "weights active  " in show(alone.folder)


def test_a_run_with_members_stops_and_goes_on_to_the_bit(folder, tmp_path):
    with pytest.raises(Interrupted):
        train(settings(members=3), tmp_path / "run", quiet=True, stop_after=0)
    seen = []
    with pytest.raises(Interrupted):
        resume(tmp_path / "run", quiet=True, watch=lambda row: seen.append(row) or len(seen) < 3)
    assert [row["epochs"] for row in seen] == [6, 6, 6]
    assert "epoch 3 of 6" in show(tmp_path / "run")
    assert "unfinished, epoch 3 of 6" in str(runs_table([Run.open(tmp_path / "run")]))
    resumed = resume(tmp_path / "run", quiet=True)
    assert resumed.result()["metrics"] == Run.open(folder).result()["metrics"]


def test_one_call_predicts_from_the_run_and_from_its_file(folder, tmp_path):
    run = gossamer.load_run(folder, device="cpu")
    assert isinstance(run.posterior, Mixture)
    x = run.task.transform(run.task.test[0][:7])
    again = gossamer.load(run.save(tmp_path / "mixture.safetensors"), mlp(64))
    predictions = []
    for posterior in (run.posterior, again):
        torch.manual_seed(0)
        predictions.append(gossamer.predict(posterior, x, n_draws=6))
    assert torch.equal(predictions[0].outputs, predictions[1].outputs)
    assert predictions[0].outputs.shape == (6, 7, 10)
    torch.manual_seed(0)
    assert torch.equal(run.predict(run.task.test[0][:7]).outputs, predictions[0].outputs)
    assert repr(again) == repr(run.posterior)
    with pytest.raises(ValueError, match="Mixture has no mean network: take several draws"):
        run.network()
    program = run.export(tmp_path / "mixture.pt2", format="torch-export", what="draws", n_draws=3)
    assert torch.export.load(program).module()(run.task.test[0][:7])["probs"].shape == (7, 10)


def of_an_earlier_version(folder):
    """The record as it was written when the cycles of one training were its members."""
    config = folder / "config.toml"
    text = config.read_text()
    assert "cycles = 2\n" in text
    assert "members = 1\n" in text
    config.write_text(text.replace("members = 1\n", "").replace("cycles = 2", "members = 2"))
    state = checkpoint.load(folder / "checkpoint")
    options = state["files"]["config.toml"]["options"]
    options["members"] = options.pop("cycles")
    checkpoint.save(folder / "checkpoint", state, state["training"]["step"])


def test_runs_of_an_earlier_version_have_members_for_cycles(tmp_path):
    run = train(settings(cycles=2), tmp_path / "run", quiet=True)
    expected = evaluate_run(run.folder)
    of_an_earlier_version(run.folder)
    assert evaluate_run(run.folder) == expected == Run.open(run.folder).result()["metrics"]
    assert isinstance(gossamer.load_run(run.folder, device="cpu").posterior, SnapshotPosterior)
    refuse_other_settings(run.folder, settings(cycles=2))
    with pytest.raises(RecordError, match="holds a run with members 1, not 2"):
        refuse_other_settings(run.folder, settings(members=2))


def test_an_interrupted_run_of_an_earlier_version_goes_on(tmp_path):
    whole = train(settings(cycles=2), tmp_path / "whole", quiet=True)
    with pytest.raises(Interrupted):
        train(settings(cycles=2), tmp_path / "run", quiet=True, stop_after=0)
    of_an_earlier_version(tmp_path / "run")
    assert resume(tmp_path / "run", quiet=True).result()["metrics"] == whole.result()["metrics"]
