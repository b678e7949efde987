"""What a run really used where its settings left the choice open: learning rate, weight of the KL, device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gossamer.layers import sparse_weights
from gossamer.runs.settings import Settings

if TYPE_CHECKING:
    from gossamer.train import Training


def effective(settings: Settings, training: Training) -> dict[str, Any]:
    """The values that a training uses, read from its parts: always the same few, and options that were ``None``.

    Example:
        >>> from gossamer.runs.job import start
        >>> from gossamer.runs.processes import launch
        >>> settings = Settings("ssvi", "digits", epochs=1, device="cpu")
        >>> task = settings.load_task()
        >>> found = effective(settings, start(settings, task, launch(settings)))
        >>> [found[name] for name in ("model", "device", "lr", "optimizer", "allocation", "update_period")]
        ['mlp', 'cpu', 0.02, 'Adam', 'erk', 1]
    """
    members = training.method.members
    found = {
        "model": settings.model_name(training.task),
        "device": str(training.fabric.device),
        "precision": "bf16" if settings.is_bf16() else "32",
        "steps": training.steps,
        "epochs": training.epochs,
        "members": members,
        "lr": training.optimizer.defaults.get("lr"),
        "optimizer": type(training.inner_optimizer).__name__,
        "kl_weight": _kl_weight(training, training.steps // members),
    }
    open_ones = [name for name, value in settings.options.items() if value is None and name not in found]
    for name in open_ones:
        value = next(_values(name, training), None)
        if value is not None:
            found[name] = value
    return {name: value for name, value in found.items() if value is not None}


def _kl_weight(training: Training, steps: int) -> float | None:
    """The weight of the KL in the ELBO at the end of training; ``None`` where the loss has no KL."""
    scale = training.penalty.scale(steps)
    if scale:
        return scale * training.task.n_data
    of_model = getattr(training.penalty, "kl_weight", None)
    return float(of_model(training.model)) if callable(of_model) else None


def _values(name: str, training: Training) -> Iterator[Any]:
    """What the parts of a training have under the name of an option."""
    conversion: Mapping[str, Any] = getattr(training.method.prepare, "keywords", {})
    yield from _plain(conversion.get(name))
    yield from _plain(training.optimizer.defaults.get(name))
    for part in (*training.rules, training.collector, *sparse_weights(training.model).values()):
        yield from _plain(getattr(part, name, None))


def _plain(value: Any) -> Iterator[Any]:
    if isinstance(value, bool | int | float | str):
        yield value
