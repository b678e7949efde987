"""A run that is stopped anywhere, by anything, ends as if nothing had happened."""

import json
import os
import random
import signal
import threading

import pytest

from gossamer.lab import Interrupted, Settings, resume, train
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs import job as job_module
from gossamer.lab.runs.job import Job
from gossamer.train import Training, checkpoint
from gossamer.train.divergence import DivergenceError

STEPS = 45


class AccidentError(Exception):
    """Power is gone."""


def at_step(patch, step, act):
    """Do something just after a step is made, before anything of it is written."""
    advance = Training.advance

    def advance_and_act(self):
        values = advance(self)
        if self.step == step:
            act()
        return values

    patch.setattr(Training, "advance", advance_and_act)


def fail():
    raise AccidentError


def steps_in(folder):
    return [entry["step"] for entry in json.loads((folder / "checkpoint" / "latest.json").read_text())["checkpoints"]]


@pytest.mark.parametrize("draw", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))])
def test_an_accident_at_a_random_step(each_method, draw, settings, whole, assert_same_runs, monkeypatch, tmp_path):
    """Checkpoints are rare, so that lines of the record have to be taken back, or there is none yet."""
    generator = random.Random(f"{each_method}{draw}")
    step, every = generator.randrange(1, STEPS + 1), generator.choice([1, 7, 100])
    save = job_module._save
    with monkeypatch.context() as patch:
        at_step(patch, step, fail)
        patch.setattr(job_module, "_save", lambda job: None if job.training.step % every else save(job))
        with pytest.raises(AccidentError):
            train(settings(each_method), tmp_path / "run", quiet=True, checkpoint_seconds=0)
    assert Run.open(tmp_path / "run").result() is None
    resume(tmp_path / "run", quiet=True)
    assert_same_runs(tmp_path / "run", whole(each_method))


def test_an_accident_while_the_network_is_averaged(settings, assert_same_runs, monkeypatch, tmp_path):
    """From step 18 of 45 on, while the subspace still moves: it does until step 33."""
    told = settings("ssvi", options={"density": 0.1, "update_period": 4, "average": 0.6})
    train(told, tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        at_step(patch, 26, fail)
        with pytest.raises(AccidentError):
            train(told, tmp_path / "run", quiet=True, checkpoint_seconds=0)
    resume(tmp_path / "run", quiet=True)
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def test_the_size_that_is_told_is_that_of_the_last_checkpoint(settings, monkeypatch, tmp_path):
    """The folder keeps the one before it too, and that one is the larger: nothing had been pruned yet."""
    told = {"density": 0.05, "cycles": 1}
    with monkeypatch.context() as patch:
        at_step(patch, 10, fail)
        with pytest.raises(AccidentError):
            train(settings("em_mcmc", options=told), tmp_path / "run", quiet=True, checkpoint_seconds=0)
    resume(tmp_path / "run", quiet=True)
    first, last = ((tmp_path / "run" / "checkpoint" / f"step-{step}.safetensors").stat().st_size for step in (9, STEPS))
    assert Run.open(tmp_path / "run").result()["cost"]["checkpoint_bytes"] == last < first


def test_one_accident_after_another(settings, whole, assert_same_runs, monkeypatch, tmp_path):
    generator, folder = random.Random(0), tmp_path / "run"
    for attempt, step in enumerate(sorted(generator.sample(range(2, STEPS), 5))):
        with monkeypatch.context() as patch:
            at_step(patch, step, fail)
            with pytest.raises(AccidentError):
                (resume if attempt else lambda *args, **more: train(settings("ssvi"), *args, **more))(
                    folder, quiet=True, checkpoint_seconds=0
                )
        assert steps_in(folder)[0] == step - 1
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("ssvi"))


@pytest.mark.parametrize("place", ["half a line", "before the index", "before the result"])
def test_an_accident_while_writing(place, settings, whole, assert_same_runs, monkeypatch, tmp_path):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        if place == "half a line":

            def append(self, row, file=None):
                with (self.folder / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps(row)[:40])
                raise AccidentError

            at_step(patch, 30, lambda: patch.setattr(Run, "append", append))
        elif place == "before the index":
            at_step(patch, 20, lambda: patch.setattr(checkpoint, "_write_index", lambda *args: fail()))
        else:
            patch.setattr(Run, "write_result", lambda self, result: fail())
        with pytest.raises(AccidentError):
            train(settings("ssvi"), folder, quiet=True, checkpoint_seconds=0)
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("ssvi"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_ignored(number, settings, whole, assert_same_runs, tmp_path, monkeypatch):
    """As it is in a background job for Ctrl-C, and under nohup for a closed terminal; SIGTERM still stops the run."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        at_step(monkeypatch, 3, lambda: os.kill(os.getpid(), number))
        at_step(monkeypatch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Interrupted):
            train(settings("rigl"), tmp_path / "run", quiet=True)
        assert checkpoint.load(tmp_path / "run" / "checkpoint")["training"]["step"] == 7
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    monkeypatch.undo()
    assert_same_runs(resume(tmp_path / "run", quiet=True).folder, whole("rigl"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(
    number, settings, whole, assert_same_runs, monkeypatch, tmp_path
):
    folder, before = tmp_path / "my run", signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(patch, 17, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Interrupted, match=f"gossamer train --resume '{folder}'"):
            train(settings("ssvi"), folder, quiet=True)
    assert signal.getsignal(number) is before
    assert steps_in(folder) == [17]
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("ssvi"))


def test_a_signal_at_the_last_step_lets_the_run_end(settings, whole, assert_same_runs, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        at_step(patch, STEPS, lambda: os.kill(os.getpid(), signal.SIGINT))
        train(settings("vi"), tmp_path / "run", quiet=True)
    assert_same_runs(tmp_path / "run", whole("vi"))


def test_a_second_signal_does_not_wait(settings, whole, assert_same_runs, monkeypatch, tmp_path):
    folder = tmp_path / "run"

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        at_step(patch, 17, twice)
        with pytest.raises(Interrupted):
            train(settings("vi"), folder, quiet=True, checkpoint_seconds=0)
    assert steps_in(folder) == [16, 15]
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("vi"))


def test_a_signal_during_the_final_numbers_says_how_to_go_on(settings, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "build_result", lambda *args: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted, match="gossamer train --resume"):
            train(settings("sgd"), tmp_path / "run", quiet=True)
    assert steps_in(tmp_path / "run") == [STEPS]
    assert resume(tmp_path / "run", quiet=True).result()["metrics"]["accuracy"] > 0.5


def test_training_in_another_thread_works(settings, whole, assert_same_runs, tmp_path):
    worker = threading.Thread(target=train, args=(settings("sgd"), tmp_path / "run"), kwargs={"quiet": True})
    worker.start()
    worker.join()
    assert_same_runs(tmp_path / "run", whole("sgd"))


def test_a_run_is_trained_by_one_process_at_a_time(settings, monkeypatch, tmp_path):
    folder, heard = tmp_path / "run", []

    def also():
        with pytest.raises(RecordError, match="is being trained by another process") as caught:
            resume(folder, quiet=True)
        heard.append(caught.value)

    with monkeypatch.context() as patch:
        at_step(patch, 5, also)
        train(settings("sgd", epochs=1), folder, quiet=True)
    assert len(heard) == 1


def test_a_finished_run_is_left_alone(whole):
    folder = whole("ssvi")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert resume(folder, quiet=True).result() == Run.open(folder).result()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_without_a_checkpoint_starts_again(settings, whole, assert_same_runs, tmp_path):
    run = Run.create(tmp_path / "run", settings("rigl").to_config())
    resume(run.folder, quiet=True)
    assert_same_runs(run.folder, whole("rigl"))


def test_a_deleted_newest_checkpoint_goes_on_from_the_one_before(
    settings, whole, assert_same_runs, monkeypatch, tmp_path
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_step(patch, 33, fail)
        with pytest.raises(AccidentError):
            train(settings("ssvi"), folder, quiet=True, checkpoint_seconds=0)
    path = folder / "checkpoint" / "step-32.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(RecordError, match=r"delete it to continue from step-31\.safetensors"):
        resume(folder, quiet=True)
    path.unlink()
    resume(folder, quiet=True)
    assert_same_runs(folder, whole("ssvi"))


def test_a_checkpoint_of_another_network_is_an_error_of_one_line(settings, whole, tmp_path):
    run = Run.create(tmp_path / "run", settings("ssvi", model="conv_net").to_config())
    state = checkpoint.load(whole("ssvi") / "checkpoint")
    checkpoint.save(run.checkpoint_folder, state | {"files": run.checksums()}, 45)
    with pytest.raises(RecordError, match="does not fit") as caught:
        resume(run.folder, quiet=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_goes_on_with_the_data_it_began_with(has_checkpoint, settings, monkeypatch, tmp_path):
    folder, task = tmp_path / "run", Settings.load_task
    with monkeypatch.context() as patch:
        at_step(patch, 5, fail)
        with pytest.raises(AccidentError):
            train(settings("sgd"), folder, quiet=True, checkpoint_seconds=0 if has_checkpoint else 100)

    def others(self):
        """The same sizes, but another test example than before."""
        x, y = task(self).test
        return task(self)._replace(test=(x.roll(1, 0), y.roll(1, 0)))

    with monkeypatch.context() as patch:
        patch.setattr(Settings, "load_task", others)
        with pytest.raises(RecordError, match=r"began with other data: test of digits differ"):
            resume(folder, quiet=True)
    assert resume(folder, quiet=True).result()


def test_a_run_of_a_version_without_fingerprints_is_resumed(settings, tmp_path):
    run = Run.create(tmp_path / "run", settings("sgd", epochs=1).to_config())
    assert run.data() is None
    assert resume(run.folder, quiet=True).result()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("epochs", "3", "epochs must be a whole number or none; got '3'"),
        ("epoch", 3, "unknown key 'epoch'; did you mean 'epochs'?"),
        ("options", {"densty": 0.1}, "unknown option of ssvi 'densty'; did you mean 'density'?"),
        ("options", {"density": "x"}, "density of ssvi must be a number; got 'x'"),
    ],
)
def test_a_config_that_was_changed_by_hand_names_the_key(settings, tmp_path, key, value, message):
    run = Run.create(tmp_path / "run", settings("ssvi").to_config() | {key: value})
    with pytest.raises(RecordError) as caught:
        resume(run.folder, quiet=True)
    assert str(caught.value).startswith(f"{run.folder / 'config.toml'}: {message}")


def test_the_loss_that_is_not_finite_ends_the_run(settings, tmp_path):
    with pytest.raises(DivergenceError, match=r"training diverged at step \d+: a loss of (inf|nan)"):
        train(settings("sgd", options={"lr": 1e30}), tmp_path / "run", quiet=True)


def test_a_job_is_what_is_restored(whole):
    """The Python door of ``resume``: nothing of the run is changed by looking."""
    run = Run.open(whole("ssvi"))
    settings = job_module.settings_of(run)
    job = job_module.restore(run, settings)
    assert isinstance(job, Job)
    assert job.training.step == job.training.steps == STEPS
    assert job.run is None
