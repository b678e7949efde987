"""A trained run in Python: its posterior, its network, its data."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.deploy import saving
from gossamer.deploy.exporting import Format, What, export
from gossamer.evaluate import predict_inputs
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.reader import restored
from gossamer.lab.runs.settings import Settings
from gossamer.posterior import Prediction
from gossamer.types import Posterior, Task


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """What a run has left, from :func:`load_run`.

    Attributes:
        folder: The run folder.
        settings: Its settings.
        task: Its data.
        posterior: Its posterior, for :func:`gossamer.predict`, :func:`gossamer.save` and :func:`gossamer.export`.
    """

    folder: Path
    settings: Settings
    task: Task
    posterior: Posterior

    @property
    def model(self) -> nn.Module:
        """The network as it was trained: with distributions in its layers, if the method has these."""
        return self.posterior.model

    def network(self) -> nn.Module:
        """A plain torch network at the means of the weights; ensembles have none, only draws."""
        return self.posterior.mean_network()

    def predict(self, x: Tensor, n_draws: int | None = None) -> Prediction:
        """The prediction for inputs in the form that the data set stores: bytes of images, standardised columns."""
        return predict_inputs(self.posterior, self.task, x, n_draws or self.settings.n_draws)

    def save(self, file: Path | str, **options: Any) -> Path:
        """Write the posterior to one file: :func:`gossamer.save`."""
        return saving.save(self.posterior, file, **options)

    def export(
        self, file: Path | str, *, format: Format = "onnx", what: What = "mean", n_draws: int | None = None
    ) -> Path:
        """Write a network that runs without Gossamer, in the units of the data: :func:`gossamer.export`."""
        count = n_draws or self.settings.n_draws
        return export(self.posterior, file, format=format, what=what, n_draws=count, task=self.task)


def load_run(folder: Path | str, *, device: str | torch.device = "auto", unfinished: bool = False) -> TrainedRun:
    """The posterior and the network of a run, for every method.

    The data are read again from where the run read them: posteriors that refresh batch normalisation need them.

    Args:
        folder: The run folder.
        device: Where the network is to be: ``"cpu"``, ``"cuda"``, or ``"auto"``, a GPU if there is one.
        unfinished: Take a run that is not finished as of its newest checkpoint.

    Example:
        >>> import tempfile
        >>> from gossamer.lab import Settings, train
        >>> settings = Settings("ssvi", "digits", epochs=1, n_draws=2, options={"density": 0.1})
        >>> run = load_run(train(settings, Path(tempfile.mkdtemp()) / "run", quiet=True).folder)
        >>> run.predict(run.task.test[0][:3]).probs.shape, run.network()[1]
        (torch.Size([3, 10]), Linear(in_features=64, out_features=256, bias=True))
    """
    run = Run.open(Path(folder))
    if run.result() is None and not unfinished:
        way_on = f"gossamer train --resume {shlex.quote(str(run.folder))}"
        raise RecordError(
            f"{run.folder} is not finished: continue it with {way_on}, or take its newest checkpoint with "
            "load_run(folder, unfinished=True)"
        )
    job = restored(run.folder, device=str(device))
    return TrainedRun(run.folder, job.settings, job.task, job.training.posterior())
