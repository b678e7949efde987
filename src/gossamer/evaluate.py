"""The quality of drawn networks on a split of a task."""

import contextlib

from torch import Tensor, nn

from gossamer.distributed import OwnNoise
from gossamer.metrics import METRICS
from gossamer.posterior import InLayers, Prediction
from gossamer.posterior.predict import Around, outputs_of
from gossamer.types import Posterior, Split, Task

__all__ = ["evaluate", "predict_inputs", "split_of", "summarize"]


def evaluate(
    posterior: nn.Module | Posterior, task: Task, n_draws: int = 5, *, split: str = "test", batch_size: int = 256
) -> dict[str, float]:
    """Quality of the joint prediction of ``n_draws`` networks on a split of the task.

    Args:
        posterior: What :func:`gossamer.fit` returned, or a converted network.
        task: The task.
        n_draws: How many networks to draw.
        split: ``"train"``, ``"val"`` (for choices) or ``"test"`` (for reports).
        batch_size: Examples in memory at a time.

    Returns:
        The numbers of :func:`summarize`.

    Example:
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> from gossamer import bayesianize
        >>> sorted(evaluate(bayesianize(mlp(64)), digits.load(), n_draws=2))[:5]
        ['accuracy', 'aurc', 'brier', 'classwise_ece', 'ece']
    """
    x, y = split_of(task, split)
    return summarize(predict_inputs(posterior, task, x, n_draws, batch_size=batch_size), task, y)


def predict_inputs(
    posterior: nn.Module | Posterior,
    task: Task,
    x: Tensor,
    n_draws: int,
    *,
    batch_size: int = 256,
    seed: int | None = None,
    around: Around | None = None,
) -> Prediction:
    """The prediction of ``n_draws`` networks for ``x``, inputs in the form that the task stores.

    They are transformed batch by batch, so ``x`` need not fit into the memory of the device. With a ``seed`` the draws
    depend on it alone, and torch's generators stay as they are. ``around`` is called for each batch, see
    :data:`gossamer.posterior.predict.Around`.

    Example:
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> task = digits.load()
        >>> predict_inputs(mlp(64), task, task.test[0][:3], n_draws=1).probs.shape
        torch.Size([3, 10])
    """
    if n_draws < 1:
        raise ValueError(f"n_draws must be at least 1; got {n_draws}")
    source = InLayers().posterior(posterior) if isinstance(posterior, nn.Module) else posterior
    noise = contextlib.nullcontext() if seed is None else OwnNoise(seed, next(source.model.parameters()).device)
    with noise:
        outputs = outputs_of(source, ([x], {}), n_draws, batch_size, task.transform, around)
    return Prediction(outputs, task.likelihood)


def summarize(prediction: Prediction, task: Task, y: Tensor) -> dict[str, float]:
    """Every metric of :data:`gossamer.metrics.METRICS` that fits the task, for a prediction of the targets ``y``.

    Returns:
        For classes ``accuracy``, ``nll``, ``ece`` (top label), ``classwise_ece``, ``marginal_l2_debiased`` (what the
        SSVI paper calls ECE), ``brier``, ``aurc``, and the means of ``entropy``, ``expected_entropy`` and
        ``mutual_information``; for numbers, in their original units, ``rmse``, ``nll``, ``crps``, ``coverage90``,
        ``width90``, ``std`` and ``epistemic_std``; and what was added to ``METRICS``.
    """
    return {
        name: float(metric.compute(prediction, task, y))
        for name, metric in METRICS.items()
        if metric.compute is not None and task.kind in metric.tasks
    }


def split_of(task: Task, name: str) -> Split:
    """The split called ``name``; one without examples is an error."""
    if name not in ("train", "val", "test"):
        raise ValueError(f"split must be train, val or test; got {name!r}")
    split: Split = getattr(task, name)
    if not len(split[1]) and name == "val":
        raise ValueError(
            f"{task.name} has no examples in its val split, for fewer than 500 are trained on unless you ask for them: "
            "train with --n_val N to hold out N"
        )
    if not len(split[1]):
        raise ValueError(f"{task.name} has no examples in its {name} split: choose another")
    return split
