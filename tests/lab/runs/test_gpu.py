"""Runs on a GPU: trained, looked at, interrupted, and read where there is none."""

import json

import numpy as np
import pytest
import torch

from gossamer.lab import Settings, evaluate_run, predict_run, resume, train
from gossamer.lab.record import Run
from gossamer.lab.runs import job as job_module
from gossamer.train import checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
METHODS = ("sgd", "vi", "ssvi", "rigl", "cv_adam", "cv_sghmc")


def settings(method, **changes):
    options = {"density": 0.2, "update_period": 4} if method in ("ssvi", "rigl") else {}
    told = {"epochs": 3, "n_draws": 3, "device": "cuda", "options": options} | changes
    return Settings(method, "two_moons", **told)


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run(method, precision, tmp_path):
    run = train(settings(method, precision=precision), tmp_path / "run", quiet=True)
    result = run.result()
    assert result["metrics"]["accuracy"] > 0.6
    assert result["cost"]["peak_memory_bytes"] > 0
    assert all(row["seconds"] > 0 for row in run.metrics())
    assert evaluate_run(run.folder) == pytest.approx(result["metrics"], rel=1e-4)
    np.save(tmp_path / "new.npy", Settings("sgd", "two_moons").load_task().test[0][:3].numpy())
    assert len(predict_run(run.folder, tmp_path / "new.npy")) == 3


def test_a_convolution_and_bytes(tmp_path):
    run = train(
        Settings("ssvi", "digits", model="conv_net", epochs=2, n_draws=2, device="cuda"), tmp_path / "run", quiet=True
    )
    assert run.result()["metrics"]["accuracy"] > 0.3


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_after_an_accident(method, tmp_path, monkeypatch):
    """The random stream of the device goes on too, so that the noise is that of a run without accident."""
    whole = train(settings(method), tmp_path / "whole", quiet=True)
    advance = job_module.Training.advance

    def fail(self):
        if self.step == 20:
            raise RuntimeError("power is gone")
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(job_module.Training, "advance", fail)
        with pytest.raises(RuntimeError, match="power is gone"):
            train(settings(method), tmp_path / "run", quiet=True, checkpoint_seconds=0)
    torch.rand(5, device="cuda")
    run = resume(tmp_path / "run", quiet=True)
    states = [checkpoint.load(folder / "checkpoint")["training"] for folder in (whole.folder, run.folder)]
    for name, value in states[0]["model"].items():
        torch.testing.assert_close(value, states[1]["model"][name], rtol=1e-4, atol=1e-6)
    assert torch.equal(states[0]["random"]["device"], states[1]["random"]["device"])
    assert run.result()["metrics"] == pytest.approx(whole.result()["metrics"], rel=1e-3)


def test_a_run_is_read_on_the_cpu(tmp_path, monkeypatch):
    run = train(settings("ssvi"), tmp_path / "run", quiet=True)
    on_gpu = evaluate_run(run.folder)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        on_cpu = evaluate_run(run.folder)
    assert on_cpu["accuracy"] == pytest.approx(on_gpu["accuracy"], abs=0.05)  # other draws: another generator
    assert json.loads((Run.open(run.folder).folder / "result.json").read_text())["seed"] == 0
