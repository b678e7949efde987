"""A comparison in one small file: what it keeps, what it leaves out, and that it can be read again."""

import json

import pytest

from benchmarks.trials import Trials
from gossamer.lab import Settings, compare
from gossamer.lab.record import RecordError

LEFT_OUT = {"argv", "git_commit", "platform", "memory_bytes"}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    told = {"data": "two_moons", "epochs": 1, "n_draws": 2, "device": "cpu"}
    entries = {"plain": Settings("sgd", **told), "sparse 50 %": Settings("ssvi", **told, options={"density": 0.5})}
    return compare(entries, 2, tmp_path_factory.mktemp("compared"), quiet=True)


def test_a_trial_has_what_its_run_has(compared):
    trials = Trials.from_dict(json.loads(compared.to_json()))
    assert [(trial.label, trial.seed) for trial in trials.trials] == [
        ("plain", 0), ("plain", 1), ("sparse 50 %", 0), ("sparse 50 %", 1)
    ]  # fmt: skip
    results = [result for entry in compared.entries for result in entry.results]
    for trial, result in zip(trials.trials, results, strict=True):
        assert trial.metrics == result["metrics"]
        assert trial.cost["active_parameters"] == result["cost"]["active_parameters"]
        assert (trial.settings["epochs"], trial.settings["model"]) == (1, "mlp")
    assert trials.trials[-1].settings["options"]["density"] == 0.5
    assert trials.trials[-1].settings["options"]["replacement_rate"] == 0.3  # a default


def test_it_can_be_read_again_and_names_no_machine(compared, tmp_path):
    (tmp_path / "compared.json").write_text(compared.to_json())
    trials = Trials.read(tmp_path / "compared.json")
    trials.write(tmp_path / "kept.json")
    assert (tmp_path / "kept.json").read_text() == compared.to_json()
    assert {"date", "python", "cpu"} <= set(trials.environment)
    assert not LEFT_OUT & set(trials.environment)
    assert str(compared.folders[0].parent) not in (tmp_path / "kept.json").read_text()


def test_a_failure_is_kept(tmp_path):
    told = {"data": "two_moons", "epochs": 1, "device": "cpu"}
    failing = Settings("sgd", **told, options={"lr": 1e30})
    trials = Trials.from_dict(json.loads(compare({"wrong": failing}, 1, tmp_path, quiet=True).to_json()))
    assert list(trials.by_label()) == ["wrong"]
    assert "diverged" in trials.failures["wrong"]
    assert Trials.from_dict(json.loads(trials.to_json())) == trials


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bytes"}, "kind must be 'trials'; got 'bytes'; give a comparison.json that gossamer compare"),
        ({"format": 2}, "format must be 1; got 2"),
        ({"trials": [{"label": "a"}]}, "trials/0/cost is missing"),
    ],
)
def test_other_files_are_refused(tmp_path, change, message):
    content = {"format": 1, "kind": "trials", "environment": {}, "failures": {}, "trials": []}
    (tmp_path / "kept.json").write_text(json.dumps(content | change))
    with pytest.raises(RecordError, match=f"kept.json is broken: {message}"):
        Trials.read(tmp_path / "kept.json")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match="does not exist: gossamer compare … makes"):
        Trials.read(tmp_path / "no.json")
