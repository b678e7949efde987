"""Every measurement in one table, which ``evaluate``, ``gossamer compare``, the report and the benchmarks read.

A metric of your own is one call of :func:`add`; it is then computed, compared and reported like the rest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from gossamer._text.formats import count, duration, integer, latency, macs, number, percent, plain, size
from gossamer.metrics.quality import QUALITY, Metric, Place

__all__ = ["METRICS", "Metric", "add", "shown", "texts"]


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
