"""Every measurement in one table, which ``evaluate``, ``gossamer compare``, the report and the benchmarks read.

The quality of predictions is a function per metric, with its sentence for readers: it takes the prediction, the task
and the targets, and the decorator adds the rest of the metric's row. To add a metric to the library, add a function
here; one of your own is a call of :func:`add`. Both are then computed, compared and reported like the rest.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor

from gossamer._text.formats import (
    Format,
    count,
    duration,
    integer,
    latency,
    macs,
    number,
    percent,
    plain,
    size,
    with_error,
)
from gossamer.metrics import measures
from gossamer.posterior import Prediction
from gossamer.types import Kind, Task

__all__ = ["METRICS", "Metric", "add", "shown", "texts"]

Better = Literal["higher", "lower"] | float | None
"""Which way is better; a number is a target to come near, and ``None`` says that neither way is."""

Place = Literal["terminal", "comparison", "headline"]
"""``"terminal"``: a column of ``gossamer compare``. ``"comparison"``: one of the report's table of several runs.
``"headline"``: a card at the top of the report of a run. Its table of all measurements has every metric."""

Compute = Callable[[Prediction, Task, Tensor], float]
"""(prediction, task, targets) -> the metric's value."""


@dataclass(frozen=True)
class Metric:
    """One measurement.

    Args:
        name: Its key in ``result.json`` and in what ``evaluate`` returns.
        label: Its name in the report.
        format: Writes a value: a function of :mod:`gossamer._text.formats`, or any other ``float -> str``.
        better: ``"higher"``, ``"lower"``, a target such as ``0.9``, or ``None``.
        meaning: One plain sentence for readers who do not know it.
        compute: The value from (prediction, task, targets); ``None`` for what is measured elsewhere, such as costs.
        tasks: The kinds of task that it is computed for.
        places: Where it is shown, besides the table of all measurements.
        winner: Title of the card that names the best method in a comparison; empty: no card.
        heading: Head of its column in plain tables; the name unless given.

    Example:
        >>> from gossamer._text.formats import percent
        >>> metric = Metric("error", "Error rate", percent, "lower", "Share of the examples it gets wrong.")
        >>> metric.text(0.0612), metric.text(0.0612, 0.002), metric.distance(0.0612)
        ('6.1 %', '6.1 ± 0.2 %', 0.0612)
    """

    name: str
    label: str
    format: Format
    better: Better
    meaning: str
    compute: Compute | None = None
    tasks: tuple[Kind, ...] = ("classification", "regression")
    places: tuple[Place, ...] = ("terminal", "comparison")
    winner: str = ""
    heading: str = ""

    def __post_init__(self) -> None:
        """Reject a row that a table could not show."""
        if not (self.name and self.label and self.meaning):
            raise ValueError(f"a metric needs a name, a label and a meaning; got {self}")
        if isinstance(self.better, str) and self.better not in ("higher", "lower"):
            raise ValueError(f"better must be 'higher', 'lower', a number or None; got {self.better!r}")
        object.__setattr__(self, "heading", self.heading or self.name.replace("_", " "))

    def text(self, value: float, error: float | None = None) -> str:
        """The value, or mean ± standard error, in plain characters."""
        return plain(with_error(value, error, self.format))

    def distance(self, value: float) -> float:
        """How far a value is from the best one: lower is better, whatever the direction of the metric."""
        if isinstance(self.better, str):
            return -value if self.better == "higher" else value
        return value if self.better is None else abs(value - self.better)


QUALITY: list[Metric] = []
"""The rows, in the order in which tables show them."""

CLASSES: tuple[Kind, ...] = ("classification",)
NUMBERS: tuple[Kind, ...] = ("regression",)
EVERYWHERE: tuple[Place, ...] = ("terminal", "comparison", "headline")


def _metric(
    label: str,
    format: Format,
    better: Better,
    tasks: tuple[Kind, ...],
    places: tuple[Place, ...] = (),
    winner: str = "",
    heading: str = "",
) -> Callable[[Compute], Compute]:
    """Make a row of a function; its docstring is the meaning."""

    def add(compute: Compute) -> Compute:
        name, meaning = compute.__name__, compute.__doc__ or ""
        QUALITY.append(Metric(name, label, format, better, meaning, compute, tasks, places, winner, heading))
        return compute

    return add


@_metric("Accuracy", percent, "higher", CLASSES, EVERYWHERE, "Highest accuracy")
def accuracy(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Share of the test examples that it gets right."""
    return measures.accuracy(prediction.probs, y)


@_metric("RMSE", number, "lower", NUMBERS, EVERYWHERE, "Lowest RMSE", "RMSE")
def rmse(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Root mean square distance between prediction and truth: the typical error."""
    return task.target_std * measures.rmse(prediction.mean, y)


@_metric("NLL", number, "lower", CLASSES + NUMBERS, EVERYWHERE, "Lowest NLL", "NLL")
def nll(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Negative log-likelihood in nats, also called log loss. Being sure and wrong costs most."""
    log_density = task.likelihood.log_predictive(prediction.outputs.double(), y)
    return math.log(task.target_std) - float(log_density.mean())  # in the original units of the targets


@_metric("ECE", percent, "lower", CLASSES, EVERYWHERE, "Lowest ECE", "ECE")
def ece(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Expected calibration error: mean gap between confidence and accuracy; zero is perfect."""
    return measures.ece(prediction.probs, y)


@_metric("ECE floor", percent, None, CLASSES, ("comparison",), heading="ECE floor")
def ece_floor(prediction: Prediction, task: Task, y: Tensor) -> float:
    """The ECE that perfect calibration would have by chance on so few examples: one near it cannot be improved."""
    return measures.ece_floor(prediction.probs)


@_metric("Class-wise ECE", percent, "lower", CLASSES, heading="class-wise ECE")
def classwise_ece(prediction: Prediction, task: Task, y: Tensor) -> float:
    """The same gap for the probability of every class, not of the chosen one only."""
    return measures.classwise_ece(prediction.probs, y)


@_metric("Marginal L2 calibration error", percent, "lower", CLASSES, heading="marginal L2")
def marginal_l2_debiased(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Root mean square gap over all classes, less what chance alone adds on a finite test set."""
    return measures.marginal_l2_debiased(prediction.probs, y)


@_metric("Brier score", number, "lower", CLASSES, ("comparison",), heading="Brier")
def brier(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Squared distance between its probabilities and the truth: 0 is perfect, 2 worst."""
    return measures.brier(prediction.probs, y)


@_metric("AURC", percent, "lower", CLASSES, ("headline",), heading="AURC")
def aurc(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Area under the risk-coverage curve: mean error when it declines the least confident examples."""
    return measures.selective_accuracy(prediction.double().probs, y).aurc


@_metric("Entropy", number, None, CLASSES)
def entropy(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Mean uncertainty of a prediction, in nats; 0 is certainty."""
    return float(prediction.entropy.mean())


@_metric("Expected entropy", number, None, CLASSES)
def expected_entropy(prediction: Prediction, task: Task, y: Tensor) -> float:
    """The part of the entropy on which drawn networks agree (aleatoric)."""
    return float(prediction.expected_entropy.mean())


@_metric("Mutual information", number, None, CLASSES)
def mutual_information(prediction: Prediction, task: Task, y: Tensor) -> float:
    """The part of the entropy on which drawn networks disagree (epistemic)."""
    return float(prediction.mutual_information.mean())


@_metric("CRPS", number, "lower", NUMBERS, EVERYWHERE, heading="CRPS")
def crps(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Continuous ranked probability score: distance of the predicted distribution from the truth."""
    return task.target_std * task.likelihood.crps(prediction.outputs, y)


@_metric("Coverage (90\u202f%)", percent, 0.9, NUMBERS, EVERYWHERE, "Coverage nearest 90\u202f%", "coverage")
def coverage90(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Share of the truths inside its 90 % intervals; 90 % is ideal."""
    return measures.coverage(*prediction.interval(0.9), y)


@_metric("Interval width (90\u202f%)", number, "lower", NUMBERS, heading="width")
def width90(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Average width of its 90 % intervals, in units of the target."""
    return task.target_std * measures.mean_width(*prediction.interval(0.9))


@_metric("Std", number, None, NUMBERS)
def std(prediction: Prediction, task: Task, y: Tensor) -> float:
    """Mean standard deviation of its predictions, from noise and from the weights."""
    return task.target_std * float(prediction.std.mean())


@_metric("Epistemic std", number, None, NUMBERS)
def epistemic_std(prediction: Prediction, task: Task, y: Tensor) -> float:
    """The part of the std that comes from drawn networks disagreeing."""
    return task.target_std * float(prediction.epistemic_std.mean())


_row = partial(Metric, places=())  # shown only in the table of all measurements, unless places are given

COST = (
    _row(
        "active_parameters",
        "Active weights",
        count,
        "lower",
        "Weights that are not held at zero, of all networks that predict: all that is stored and multiplied.",
        places=("terminal", "comparison", "headline"),
        heading="weights",
    ),
    _row("total_parameters", "All weights", count, None, "Weights of the same networks, were they dense."),
    _row("density", "Density", percent, "lower", "Share of the weights that are active."),
    _row(
        "parameter_bytes",
        "Size of the posterior",
        size,
        "lower",
        "Bytes of all that predicts: means, deviations, positions and every network that is kept.",
        places=("terminal", "comparison"),
        heading="size",
    ),
    _row(
        "checkpoint_bytes",
        "Size of the checkpoint",
        size,
        "lower",
        "The file in the run folder: everything needed to predict or to continue training.",
        places=("headline",),
    ),
    _row(
        "inference_macs",
        "Cost of a prediction",
        macs,
        "lower",
        "Multiply-adds for one example through one drawn network.",
        places=("comparison", "headline"),
    ),
    _row(
        "training_macs_per_example",
        "Training cost per example",
        macs,
        "lower",
        "Multiply-adds for one example in one training step, on average.",
    ),
    _row(
        "training_macs",
        "Training cost",
        macs,
        "lower",
        "Multiply-adds of the whole training, zeros not counted.",
        places=("terminal", "comparison", "headline"),
        heading="train",
    ),
    _row(
        "seconds",
        "Time",
        duration,
        "lower",
        "Wall-clock time of the training.",
        places=("terminal", "comparison"),
        winner="Fastest to train",
        heading="time",
    ),
    _row(
        "peak_memory_bytes",
        "Peak memory",
        size,
        "lower",
        "Most memory that training took on any rank: of tensors on a GPU, of all but code on a CPU.",
        places=("terminal", "comparison"),
        heading="memory",
    ),
    _row(
        "prediction_seconds",
        "Time of a prediction",
        latency,
        "lower",
        "Median time to predict a batch of 128 examples with all drawn networks.",
        places=("terminal", "comparison"),
        heading="predict",
    ),
)
"""What a run cost; ``gossamer.lab.runs`` measures these."""

LOG = (
    _row("step", "Steps", integer, None, "Optimizer steps so far."),
    _row("loss", "Training loss", number, "lower", "What training lowers: NLL and penalty."),
    _row("kl", "KL to the prior", number, None, "What the KL to the prior adds to the loss."),
    _row("lr", "Learning rate", number, None, "The schedule as it was followed."),
    _row("val_accuracy", "Validation accuracy", percent, "higher", "Share of the held-out examples it gets right."),
    _row("val_rmse", "Validation RMSE", number, "lower", "Typical error on held-out examples."),
    _row("val_nll", "Validation NLL", number, "lower", "Negative log-likelihood of held-out examples, in nats."),
    _row("examples_per_second", "Speed", integer, "higher", "Examples per second; dips are often other jobs."),
)
"""What is recorded while a run trains, besides measurements that have a row above."""

SHIFT = (
    _row(
        "auroc",
        "AUROC",
        percent,
        "higher",
        "Chance that an input from outside looks stranger to it than one from inside.",
        heading="AUROC",
    ),
    _row("aupr_out", "AUPR out", percent, "higher", "Average precision in finding the outside.", heading="AUPR out"),
    _row("aupr_in", "AUPR in", percent, "higher", "Average precision in finding the inside.", heading="AUPR in"),
    _row("fpr95", "FPR95", percent, "lower", "Share of the outside let in, at 95 % of the inside.", heading="FPR95"),
)
"""How well doubt tells inputs from outside; ``gossamer evaluate --ood`` measures these."""

METRICS = {metric.name: metric for metric in (*QUALITY, *COST, *LOG, *SHIFT)}
"""All measurements by name, in the order in which tables show them."""


def add(metric: Metric) -> Metric:
    """Put a metric into :data:`METRICS`; ``METRICS[name] = metric`` replaces one.

    Example:
        >>> def error_rate(prediction, task, y):
        ...     return 1 - float((prediction.probs.argmax(1) == y).double().mean())
        >>> meaning = "Share of the examples it gets wrong."
        >>> metric = add(Metric("error_rate", "Error rate", percent, "lower", meaning, error_rate, ("classification",)))
        >>> del METRICS["error_rate"]  # an example should not stay
    """
    if metric.name in METRICS:
        raise ValueError(f"there is a metric {metric.name!r} already: choose another name, or assign METRICS[name]")
    METRICS[metric.name] = metric
    return metric


def shown(place: Place, measured: Iterable[str] = ()) -> list[Metric]:
    """The metrics to show at a place, qualities before costs.

    ``measured`` names what a run has measured. What is not registered here, but was where the run was made, comes last,
    as a plain number. ``metric@set`` is a metric of this table, measured on another set.

    Example:
        >>> [metric.name for metric in shown("terminal", ["my_own"])][:3], shown("terminal", ["my_own"])[-1].label
        (['accuracy', 'rmse', 'nll'], 'My own')
        >>> shown("terminal", ["auroc@svhn"])[-1].heading
        'AUROC svhn'
    """
    known = sorted((one for one in METRICS.values() if place in one.places), key=lambda one: one.compute is None)
    return known + [_unregistered(name) for name in dict.fromkeys(measured) if name not in METRICS]


def _unregistered(name: str) -> Metric:
    base, _, where = name.partition("@")
    if where and base in METRICS:
        of = METRICS[base]
        return replace(of, name=name, label=f"{of.label}, {where}", heading=f"{of.heading} {where}")
    return Metric(name, name.replace("_", " ").capitalize(), number, None, "A metric of the run's own.")


def texts(values: Mapping[str, float]) -> dict[str, str]:
    """Measurements as text, by name."""
    return {
        name: METRICS[name].text(value) if name in METRICS else plain(number(value)) for name, value in values.items()
    }
