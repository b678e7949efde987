"""Reading a run: its posterior and network, and predictions for new inputs, which are read from a file and checked."""

import math
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gossamer.data.own import images, read
from gossamer.data.own.files import FILES, read_numbers
from gossamer.data.own.record import TrainingDataNeededError, columns_of, task_without_data
from gossamer.deploy.files import save
from gossamer.deploy.programs import Format, What, export
from gossamer.evaluate import predict_inputs
from gossamer.lab.record import RecordError, Run
from gossamer.lab.runs.folders import stored_record
from gossamer.lab.runs.job import Job, restored
from gossamer.lab.runs.progress import showing_draws
from gossamer.lab.runs.settings import Settings
from gossamer.posterior import Prediction, at_temperature
from gossamer.types import Posterior, Task

MARGIN = 0.1  # of the width of the training range: the largest of many new values exceeds it by a little


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
        return save(self.posterior, file, **options)

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


def predict_run(
    folder: Path | str,
    inputs: Path | str,
    n_draws: int | None = None,
    *,
    level: float = 0.9,
    conformal: float | None = None,
    temperature: bool = False,
    data: str | None = None,
    quiet: bool = True,
) -> list[dict[str, Any]]:
    """Predictions of a run for new inputs; a warning says if they leave the range of the training data.

    A run on data of your own needs them no more, unless its method reads them to predict.

    Args:
        folder: The run folder.
        inputs: A table in a file, found by the names of its columns if the run was trained on one, a ``.npy`` or
            ``.npz`` file, an image or a folder of images, or ``"-"`` for CSV from standard input. One example per
            row, in the units of the data set: pixels from 0 to 255 for images in files, original units for tables.
        n_draws: How many networks to draw; ``None``: as many as in the settings of the run.
        level: Probability of the intervals of numbers.
        conformal: Probability of sets of classes, or of intervals, by the threshold that ``gossamer evaluate`` found.
        temperature: Divide the logits by the temperature that ``gossamer evaluate`` found.
        data: Where the data of the run are now, if they have moved and are needed.
        quiet: Show no progress.

    Returns:
        One row per example: class, confidence, entropy, mutual information and the probability of each class, or mean,
        std and the bounds of an interval in original units.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1; got {level}")
    run = Run.open(Path(folder))
    learnt, divisor = _learnt(run, conformal, n_draws), stored_temperature(run) if temperature else 1.0
    if learnt is not None and temperature:
        raise ValueError("conformal sets hold their promise at the temperature of the training: leave temperature out")
    own = stored_record(run)
    changes = {"n_draws": n_draws if learnt is None else learnt["n_draws"], "data": data}
    job = restored(folder, **changes) if own is None else None
    task = job.task if job is not None else task_without_data(own or {})
    x, names = read_inputs(inputs, task)
    warning = outside_range(x, task)
    if warning is not None:
        warnings.warn(warning, stacklevel=2)
    try:
        prediction = _predicted(job or restored(folder, task, **changes), x, quiet, learnt)
    except TrainingDataNeededError:
        prediction = _predicted(restored(folder, **changes), x, quiet, learnt)
    if task.kind == "regression":
        columns = names | _numbers(prediction, task, level if learnt is None else conformal or level, learnt)
    else:
        prediction = at_temperature(prediction, divisor)
        columns = names | _classes(prediction, task) | _sets(prediction, task, learnt)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _predicted(job: Job, x: Tensor, quiet: bool, learnt: dict[str, Any] | None) -> Prediction:
    if learnt is not None and learnt["step"] != job.training.step:
        raise RecordError(f"{job.folder} was trained on since gossamer evaluate --conformal: evaluate it again")
    with showing_draws(f"predicting {len(x):,} examples", quiet=quiet):
        return job.predict(x)


def stored_temperature(run: Run) -> float:
    """The temperature of the logits that ``gossamer evaluate`` found."""
    entry = run.evaluation().get("temperature", {}).get("val", {})
    if "temperature" not in entry:
        raise RecordError(_ask(run, "temperature of the logits", "--temperature"))
    return float(entry["temperature"])


def _learnt(run: Run, level: float | None, n_draws: int | None) -> dict[str, Any] | None:
    """Draws and threshold of the sets or intervals of a level, as ``gossamer evaluate`` found them."""
    if level is None:
        return None
    entry: dict[str, Any] = run.evaluation().get("conformal", {}).get(f"{level:g}", {})
    found = [kind["threshold"] for kind in entry.get("kinds", {}).values() if "threshold" in kind]
    if not found:
        raise RecordError(_ask(run, f"conformal sets or intervals of {level:g}", f"--conformal {level:g}"))
    if n_draws not in (None, entry["n_draws"]):
        raise RecordError(f"the promise of {level:g} is that of {entry['n_draws']} draws: leave n_draws out")
    return entry | {"threshold": math.inf if found[0] is None else found[0]}


def _ask(run: Run, what: str, flag: str) -> str:
    folder = shlex.quote(str(run.folder))
    return f"{run.folder} has no {what}: held-out examples give them, gossamer evaluate {folder} {flag}"


def _numbers(
    prediction: Prediction, task: Task, level: float, learnt: dict[str, Any] | None = None
) -> dict[str, list[Any]]:
    low, high = prediction.interval(level)
    if learnt is not None:
        reach = learnt["threshold"] * prediction.std
        low, high = prediction.mean - reach, prediction.mean + reach
    percent = f"{100 * level:g}"
    columns = {"mean": prediction.mean, f"low{percent}": low, f"high{percent}": high}
    rows = {name: (value[:, 0] * task.target_std + task.target_mean).tolist() for name, value in columns.items()}
    spread = {"std": prediction.std, "epistemic_std": prediction.epistemic_std}
    return rows | {name: (value[:, 0] * task.target_std).tolist() for name, value in spread.items()}


def _classes(prediction: Prediction, task: Task) -> dict[str, list[Any]]:
    names = task.class_names or tuple(map(str, range(task.n_outputs)))
    probs = prediction.probs
    return {
        "class": [names[i] for i in probs.argmax(1).tolist()],
        "confidence": prediction.confidence.tolist(),
        "entropy": prediction.entropy.tolist(),
        "mutual_information": prediction.mutual_information.tolist(),
        **{f"p_{name}": probs[:, i].tolist() for i, name in enumerate(names)},
    }


def _sets(prediction: Prediction, task: Task, learnt: dict[str, Any] | None) -> dict[str, list[Any]]:
    """The conformal set of each example; the most probable class is always in it."""
    if learnt is None:
        return {}
    names = task.class_names or tuple(map(str, range(task.n_outputs)))
    probs = prediction.double().probs
    held = (1 - probs <= learnt["threshold"]).scatter(1, probs.argmax(1, keepdim=True), True)
    return {"set": [", ".join(names[k] for k in row.nonzero().flatten().tolist()) for row in held]}


class Inputs(NamedTuple):
    """Inputs as a task stores its own, and columns that name them: the files of images."""

    x: Tensor
    names: dict[str, list[str]]


def read_inputs(path: Path | str, task: Task) -> Inputs:
    """New inputs from a file, as the task stores its own, one example per row, and the names of files of images.

    Images may have their channels last, or all their pixels in one row; ``"-"`` is CSV from standard input.
    """
    path = path if str(path) == "-" else Path(path)
    if isinstance(path, Path) and not path.exists():
        raise RecordError(f"{path} does not exist: check the path of the inputs")
    kind = task.record["kind"] if task.record is not None else None
    try:
        if kind == "table" and (path == "-" or _suffix(path) in FILES):
            assert task.record is not None
            inputs = Inputs(*read(task.record, path))
        elif _suffix(path) in images.SUFFIXES or (isinstance(path, Path) and path.is_dir()):
            inputs = Inputs(*images.read(_as_images(path, task), path))
        else:
            inputs = Inputs(_shaped(path, _array(path), task), {})
    except (ValueError, FileNotFoundError) as error:
        raise RecordError(str(error)) from error
    return Inputs(_checked(path, inputs.x, task), inputs.names)


def outside_range(x: Tensor, task: Task) -> str | None:
    """A sentence about the inputs that leave the range of the training inputs by a tenth of its width; else ``None``.

    Tables are compared column by column, images by all their pixels.

    Example:
        >>> from gossamer.data import digits
        >>> outside_range(torch.full((2, 1, 8, 8), 16.0), digits.load())
        'inputs leave the range of the training data: 2 of 2 examples have 16 … 16, the training 0 … 1; the prediction \
is an extrapolation'
    """
    low, high, flat = _range(x, task)
    reach = MARGIN * (high - low)
    lost = (flat < low - reach) | (flat > high + reach)
    if not bool(lost.any()):
        return None
    parts = []
    for j in lost.any(0).nonzero().flatten().tolist():
        rows = flat[lost[:, j], j]
        examples = f"{int(lost[:, j].reshape(len(x), -1).any(1).sum())} of {len(x)} examples"
        told = f"{examples} have {float(rows.min()):.4g} … {float(rows.max()):.4g}"
        parts.append(f"{_column(task, j)}{told}, the training {float(low[j]):.4g} … {float(high[j]):.4g}")
    more = f", and {len(parts) - 3} columns more" if len(parts) > 3 else ""
    shown = "; ".join(parts[:3])
    return f"inputs leave the range of the training data: {shown}{more}; the prediction is an extrapolation"


def _range(x: Tensor, task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Lowest and highest training input by column, and the inputs in such columns; images have one."""
    is_table = x.dim() == 2
    flat = x.double() if is_table else x.double().reshape(-1, 1)
    if task.record is None:
        own = task.train[0].double()
        low, high = (own.amin(0), own.amax(0)) if is_table else (own.amin().reshape(1), own.amax().reshape(1))
        return low, high, flat
    low, high = (torch.tensor(task.record[name], dtype=torch.float64) for name in ("low", "high"))
    if task.record["kind"] == "table":  # indicators and categories are 0 and 1
        n_numbers = len(task.record["columns"]["names"]) - len(task.record["columns"]["levels"])
        return low[:n_numbers], high[:n_numbers], flat[:, :n_numbers]
    return low, high, flat


def _column(task: Task, j: int) -> str:
    if task.record is not None and task.record["kind"] == "table":
        columns = columns_of(task.record)
        return f"column {(columns.names or [])[int(columns.source[j])]!r}: "
    return f"column {j + 1}: " if task.test[0].dim() == 2 else ""


def _as_images(path: Path | str, task: Task) -> dict[str, Any]:
    if task.record is not None and task.record["kind"] == "images":
        return dict(task.record)
    stored = task.test[0]
    if stored.dim() != 4 or stored.dtype != torch.uint8:
        raise RecordError(f"{path}: {task.name} does not consist of images of bytes: give a {', '.join(FILES)} file")
    return {"shape": list(stored.shape[1:]), "resized": False}


def _shaped(path: Path | str, array: npt.NDArray[Any], task: Task) -> Tensor:
    shape = tuple(task.test[0].shape[1:])
    x = torch.from_numpy(np.ascontiguousarray(array))
    if x.shape == shape:
        x = x.unsqueeze(0)
    if x.dim() and x.shape[1:] != shape and x.shape[1:].numel() == task.test[0][0].numel():
        is_channels_last = len(shape) == 3 and tuple(x.shape[1:]) == (*shape[1:], shape[0])
        x = x.movedim(-1, 1) if is_channels_last else x.reshape(-1, *shape)
    if not x.dim() or x.shape[1:] != shape:
        raise RecordError(f"{path} has examples of shape {tuple(x.shape[1:])}, {task.name} has {shape}")
    return x


def _checked(path: Path | str, x: Tensor, task: Task) -> Tensor:
    stored = task.test[0]
    if not len(x):
        raise RecordError(f"{path} has no examples")
    finite = torch.isfinite(x if stored.dtype == torch.uint8 else x.to(stored.dtype))  # 1e300 is none in float32
    if not bool(finite.all()):
        row = int((~finite).flatten(1).any(1).nonzero()[0]) + 1
        raise RecordError(f"{path} has numbers that are not finite, the first in row {row}")
    if stored.dtype == torch.uint8 and bool(((x < 0) | (x > 255) | (x != x.round())).any()):
        raise RecordError(f"{path} must have whole numbers from 0 to 255: {task.name} stores its pixels so")
    return x.to(stored.dtype)


def _array(path: Path | str) -> npt.NDArray[Any]:
    if path != "-" and _suffix(path) not in FILES:
        raise RecordError(f"{path}: inputs are read from {', '.join(FILES)} files, folders of images, or -")
    try:
        array = read_numbers(path)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        reason = str(error).splitlines()[0].removeprefix(f"{path} is not a readable NumPy file: ")
        raise RecordError(f"{path} is not an array of numbers: {reason}") from error
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating) or array.dtype == bool):
        raise RecordError(f"{path} is not an array of numbers but of {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch reads this machine's byte order only


def _suffix(path: Path | str) -> str:
    return Path(path).suffix.lower()
