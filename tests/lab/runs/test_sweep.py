"""A sweep and its processes: which trials are whose, what is counted, what becomes of trials that fail."""

import contextlib
import statistics
from dataclasses import replace

import optuna
import pytest

from gossamer.lab import Interrupted, Settings
from gossamer.lab.record import Lock, RecordError, Run
from gossamer.lab.record.run import find_runs, runs_table
from gossamer.lab.runs import job as job_module
from gossamer.lab.runs.evaluation import evaluate_run
from gossamer_sweep.record import SweepRecord
from gossamer_sweep.space import read_space
from gossamer_sweep.study import STUDY, _Part, opened_study, sweep

SETTINGS = Settings("sgd", "two_moons", epochs=3, n_draws=1, device="cpu")
SPACE = read_space("sgd", ["lr=log:1e-4..1", "momentum=0.5,0.9"])


def run(folder, trials=2, *, settings=SETTINGS, space=SPACE, **changes):
    return sweep(settings, space, "moons", folder, **{"trials": trials, "pruner": "none", "quiet": True} | changes)


def study(folder):
    folder.mkdir(exist_ok=True)
    return opened_study(folder, "moons", "nll", "none", 3)


@pytest.fixture
def untrained(monkeypatch):
    """Trials take no time: who trains which is the question."""
    monkeypatch.setattr(_Part, "_objective", lambda self, trial, lock: trial.params["lr"])
    monkeypatch.setattr("gossamer_sweep.study._check", lambda *told: None)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """The folder of a sweep with pruning, and what it returned and said."""
    folder, said = tmp_path_factory.mktemp("sweep") / "moons", []
    return folder, run(folder, 7, pruner="median", say=said.append), said


def test_each_trial_is_a_run_judged_by_held_out_examples(searched):
    folder, found, said = searched
    assert found == SweepRecord.read(folder)
    assert [one.number for one in found.trials] == list(range(7))
    assert found.count("finished") >= 5  # the median of these prunes
    assert found.count("finished") + found.count("pruned") == 7
    assert len(find_runs(folder)) == 7
    for one in found.trials:
        opened = Run.open(folder / one.folder)
        told = opened.config["options"]
        assert {name: told[name] for name in one.values} == one.values
        assert (opened.config["seed"], opened.result() is not None) == (one.seed, one.state == "finished")
        assert [row["val_nll"] for row in opened.metrics()] == [value for _, value in one.epochs]
        (row,) = runs_table([opened]).rows
        assert row[5].startswith("finished" if one.state == "finished" else "unfinished, epoch ")
    assert found.best.objective == evaluate_run(folder / found.best.folder, split="val")["nll"]
    assert found.best.objective == min(one.objective for one in found.trials if one.state == "finished")
    assert found.importances.keys() == SPACE.keys()
    assert sum(found.importances.values()) == pytest.approx(1)
    assert said[0].startswith("trial-0000: lr ")
    assert said[1].startswith("trial-0000: nll ")


def test_pruned_trials_are_worse_than_the_median_and_can_be_continued(searched):
    folder, found, _ = searched
    pruned = [one for one in found.trials if one.state == "pruned"]
    assert pruned
    for one in pruned:
        assert len(one.epochs) < SETTINGS.epochs
        last, best = one.epochs[-1][0], min(value for _, value in one.epochs)
        finished = [other for other in found.trials[: one.number] if other.state == "finished"]
        assert best > statistics.median(dict(map(tuple, other.epochs))[last] for other in finished)
        assert (folder / one.folder / "checkpoint" / "latest.json").exists()


def test_a_sweep_that_is_given_again_trains_nothing_and_more_trials_are_added(untrained, tmp_path):
    first = run(tmp_path, 1)
    assert run(tmp_path, 1) == first
    both = run(tmp_path, 2)
    assert [one.number for one in both.trials] == [0, 1]
    assert both.trials[0] == first.trials[0]


def test_a_trial_with_a_process_is_left_to_it_and_continued_when_that_has_ended(untrained, tmp_path):
    run(tmp_path, 1)
    study(tmp_path).add_trial(optuna.create_trial(state=optuna.trial.TrialState.RUNNING))
    with Lock(tmp_path / "trial-0001"):
        assert [one.state for one in run(tmp_path, 3).trials] == ["finished", "running", "finished"]
    found = run(tmp_path, 3)  # its process has ended
    assert [(one.number, one.folder, one.state) for one in found.trials] == [
        (place, f"trial-000{place}", "finished") for place in range(3)
    ]
    assert len(study(tmp_path).trials) == 4  # the trial was tried twice


def test_a_process_that_ended_before_it_took_the_folder(untrained, tmp_path):
    for _ in range(3):
        study(tmp_path).add_trial(optuna.create_trial(state=optuna.trial.TrialState.RUNNING))
    assert [one.state for one in run(tmp_path, 3).trials] == ["finished"] * 3
    assert len(study(tmp_path).trials) == 6  # each was tried twice


def test_an_interrupted_trial_goes_on_with_its_values_in_its_folder(tmp_path, monkeypatch):
    def interrupted(*args, **told):
        train(*args, **told, stop_after=0)

    train = job_module.train
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "train", interrupted)
        with pytest.raises(Interrupted, match="give the same command again"):
            run(tmp_path / "cut", 2)
    (begun,) = study(tmp_path / "cut").trials
    cut, whole = run(tmp_path / "cut", 2), run(tmp_path / "whole", 2)
    assert cut.trials[0].values["lr"] == begun.params["lr"]
    assert [replace(one, seconds=0.0) for one in cut.trials] == [replace(one, seconds=0.0) for one in whole.trials]


def test_a_process_that_ended_between_queueing_a_trial_and_taking_it(untrained, tmp_path):
    opened = study(tmp_path)
    opened.add_trial(optuna.create_trial(state=optuna.trial.TrialState.RUNNING))
    opened.tell(0, state=optuna.trial.TrialState.FAIL)
    opened.enqueue_trial({"lr": 0.25, "momentum": "0.5"}, user_attrs={"continues": 0})
    found = run(tmp_path, 2)
    assert [(one.number, one.state) for one in found.trials] == [(0, "finished"), (1, "finished")]
    assert found.trials[0].values["lr"] == 0.25


def test_a_trial_that_diverges_is_a_failed_one_and_the_others_go_on(tmp_path):
    found = run(tmp_path, 2, space=read_space("sgd", ["lr=0.01,1e30"]))
    failed = [one for one in found.trials if one.state == "failed"]
    assert failed
    assert all(one.values["lr"] == 1e30 and one.failure for one in failed)
    assert all(one.values["lr"] == 0.01 for one in found.trials if one.state == "finished")
    assert len(found.trials) == 2


def test_processes_of_a_study_search_the_same(untrained, tmp_path):
    run(tmp_path, 1)
    with pytest.raises(RecordError, match=r"the study moons has search lr log:0.0001..1, not 0.1..1: give all its"):
        run(tmp_path, 1, space=read_space("sgd", ["lr=0.1..1", "momentum=0.5,0.9"]))
    with pytest.raises(RecordError, match=r"has metric nll, not accuracy"):
        run(tmp_path, 1, metric="accuracy")


def test_a_folder_belongs_to_one_study(tmp_path, untrained):
    run(tmp_path, 1)
    with pytest.raises(RecordError, match=r"holds the study moons, not others: give another --out"):
        sweep(SETTINGS, SPACE, "others", tmp_path, trials=1, quiet=True)


def test_a_run_of_other_values_is_not_taken_for_the_trial(tmp_path):
    """Such as that of a study of this name in another storage."""
    Run.create(tmp_path / "trial-0000", replace(SETTINGS, calibrate=False, options={"lr": 0.5}).to_config())
    with pytest.raises(RecordError, match=r"trial-0000 holds a run with lr 0.5, not"):
        run(tmp_path, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"metric": "nl"}, "unknown metric to search by 'nl'; did you mean 'nll'"),
        ({"metric": "ece", "pruner": "median"}, "with ece set the pruner to none"),
        ({"settings": replace(SETTINGS, ranks=2)}, "set ranks to 1, and start more processes"),
        ({"pruner": "mean"}, "unknown pruner 'mean'; did you mean 'median'"),
    ],
)
def test_what_no_trial_could_do_is_an_error_before_the_first(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "sweep", **changes)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense\nand more\n", b'{"op_code": 1e99}\n{}\n', b"[]\n[]\n"])
def test_a_study_that_is_broken(untrained, tmp_path, content):
    run(tmp_path, 1)
    (tmp_path / STUDY).write_bytes(content)
    if content:
        with pytest.raises(RecordError, match=r"study.journal is broken \(\w+: .*restore it, or give another --out"):
            run(tmp_path, 1)
    else:
        assert len(run(tmp_path, 1).trials) == 1


@pytest.mark.parametrize(
    "attributes", [{"seed": "none"}, {"seconds": 1e99}, {"seconds": [1]}, {"seed": -(10**30)}, {"failure": {"a": 1}}]
)
def test_a_study_with_absurd_notes(untrained, tmp_path, attributes):
    run(tmp_path, 1)
    other = optuna.create_trial(value=1.0, user_attrs={"seconds": 1.0, "seed": 0, **attributes})
    study(tmp_path).add_trial(other)
    with contextlib.suppress(RecordError):  # of one line, where it is not harmless
        run(tmp_path, 2)


def test_a_study_with_values_that_were_not_searched(untrained, tmp_path):
    run(tmp_path, 1)
    lr = optuna.distributions.FloatDistribution(1e98, 1e99)
    other = optuna.create_trial(value=1.0, params={"lr": 1e99}, distributions={"lr": lr})
    study(tmp_path).add_trial(other)
    with pytest.raises(RecordError, match=r"the study moons is broken: trials/1/values/lr is not in log:0.0001..1"):
        run(tmp_path, 2)
