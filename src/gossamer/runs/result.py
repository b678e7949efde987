"""The result of a run: its quality, its cost, and the curves and examples of the report."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer import metrics
from gossamer.evaluate import predict_inputs, split_of, summarize
from gossamer.layers import SparseModule, sparse_weights
from gossamer.likelihoods import Gaussian
from gossamer.metrics import LayerCost
from gossamer.posterior import LocalPasses, Prediction, SingleNetwork, draw
from gossamer.posterior.in_layers import is_bayesian
from gossamer.record import Run
from gossamer.runs import curves
from gossamer.runs.settings import Settings
from gossamer.runs.tally import Tally, n_held, work_of
from gossamer.types import Posterior, Task

if TYPE_CHECKING:  # the training loop is slow to import, and reading a run does not need it
    from gossamer.train import Training


def build_result(settings: Settings, task: Task, training: Training, tally: Tally, run: Run) -> dict[str, Any]:
    """The content of ``result.json``: what training did and reached, never what an option promised."""
    posterior = training.posterior()
    prediction = predict_split(posterior, task, settings)
    layers, rows = _layers(training, task)
    result = _quality(prediction, task)
    others = _other_predictions(settings, task, posterior)
    of_weights, stds = curves.weight_curves(posterior)
    result["curves"] |= of_weights
    return {
        "method": settings.method,
        "data": task.name,
        "model": settings.model_name(task),
        "seed": settings.seed,
        "options": settings.options,
        "n_draws": settings.n_draws,
        **result,
        **_map(posterior, prediction, task, settings),
        **({"predictions": {"draws": result["metrics"], **others}} if others else {}),
        "cost": {
            **_cost(training, layers, tally, run),
            **_training_cost(_over_steps(layers, rows, tally), task.n_data * settings.epochs),
            "parameter_bytes": posterior.n_bytes,
        },
        "layers": [row | ({"std_quantiles": stds[row["name"]]} if row["name"] in stds else {}) for row in rows],
        "class_names": list(task.class_names),
    }


def _other_predictions(settings: Settings, task: Task, posterior: Posterior) -> dict[str, dict[str, float]]:
    """Metrics of the posterior's network at its means, and of passes with local noise, refreshed as its draws are."""
    model, refresh = posterior.model, posterior.refresh
    if not is_bayesian(model):
        return {}
    ways: dict[str, Posterior] = {"mean": SingleNetwork(model, refresh), "local": LocalPasses(model, refresh)}
    return {name: summarize(predict_split(way, task, settings), task, task.test[1]) for name, way in ways.items()}


def predict_split(posterior: Posterior, task: Task, settings: Settings, split: str = "test") -> Prediction:
    """Prediction of the draws for a split; the random state is left as it was."""
    return predict_seeded(posterior, task, split_of(task, split)[0], settings)


def predict_seeded(posterior: Posterior, task: Task, x: Tensor, settings: Settings) -> Prediction:
    """Prediction of the draws for ``x``, inputs as the task stores them; the draws depend on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        return predict_inputs(posterior, task, x, settings.n_draws)


def _quality(prediction: Prediction, task: Task) -> dict[str, Any]:
    """Metrics of a prediction for the test data, and the curves and examples behind them."""
    y = task.test[1]
    result: dict[str, Any] = {"metrics": summarize(prediction, task, y)}
    if isinstance(task.likelihood, Gaussian):
        return result | {"curves": curves.number_curves(prediction, task, y)}
    return result | {
        "curves": curves.class_curves(prediction, y),
        "examples": curves.examples(prediction, task.test),
    }


def _map(posterior: Posterior, prediction: Prediction, task: Task, settings: Settings) -> dict[str, Any]:
    """Inputs in a plane get a map of their uncertainty."""
    grid = curves.grid_of(task)
    if grid is None:
        return {}
    x, limits = grid
    return {"map": curves.map_of(predict_seeded(posterior, task, x, settings), limits, prediction, task)}


def _layers(training: Training, task: Task) -> tuple[list[LayerCost], list[dict[str, Any]]]:
    """What the cost of each layer depends on, and its row in the result."""
    weights = sparse_weights(training.model)
    work = work_of(weights, training)
    example = task.transform(task.test[0][:1]).to(training.fabric.device)
    plain = draw(training.model, at_mean=True) if weights else training.model
    modules = dict(plain.named_modules())
    shapes = {name.removesuffix(".weight"): list(p.shape) for name, p in training.model.named_parameters()}
    kinds = {
        id(weight): type(module.template).__name__
        for module in training.model.modules()
        if isinstance(module, SparseModule)
        for weight in module.named_weights().values()
    }
    layers, rows = [], []
    for name, macs in metrics.dense_macs(plain, example).items():
        weight = weights.get(name)
        shape = shapes.get(name, []) if weight is None else list(weight.support.shape)
        total = (math.prod(shape) if shape else 0) if weight is None else weight.support.size
        active = work[name][0] if name in work else total
        kind = type(modules.get(name, plain)).__name__ if weight is None else kinds[id(weight)]
        is_noisy = weight is not None and weight.n_products == 2
        layer = LayerCost(name, kind, macs, active / total if total else 1.0, is_noisy)
        layers.append(layer)
        size = {"shape": shape, "active": active, "total": total}
        rows.append({"name": name, "kind": layer.kind, "dense_macs": macs} | size)
    return layers, rows


def _cost(training: Training, layers: list[LayerCost], tally: Tally, run: Run) -> dict[str, float | None]:
    weights = sparse_weights(training.model)
    plain = sum(p.numel() for n, p in training.model.named_parameters() if n.endswith("weight") and p.dim() > 1)
    active = (sum(weight.support.n_active for weight in weights.values()) or plain) - n_held(training)
    total = sum(weight.support.size for weight in weights.values()) or plain
    return {
        "active_parameters": active,
        "total_parameters": total,
        "density": active / total,
        "checkpoint_bytes": (run.checkpoint_folder / f"step-{training.step}.safetensors").stat().st_size,
        "inference_macs": metrics.inference_macs(layers),
        "seconds": tally.seconds,
        "peak_memory_bytes": _peak_memory(),
    }


def _over_steps(layers: list[LayerCost], rows: list[dict[str, Any]], tally: Tally) -> list[LayerCost]:
    """The layers as they were on average over the steps of the training, not as they are at its end."""
    if not tally.steps:  # trained to its end by an earlier version, which did not count
        return layers
    entries = {row["name"]: tally.steps * row["total"] for row in rows}
    return [
        layer._replace(
            density=tally.active[layer.name] / entries[layer.name],
            formed=tally.formed[layer.name] / entries[layer.name],
        )
        if layer.name in tally.active
        else layer
        for layer in layers
    ]


def _training_cost(layers: list[LayerCost], n_examples: int) -> dict[str, float]:
    per_example = metrics.training_macs(layers)
    return {"training_macs_per_example": per_example, "training_macs": per_example * n_examples}


def _peak_memory() -> int | None:
    """Peak of the GPU if there is one, otherwise of the process; ``None`` where the system does not report it."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    with suppress(ImportError):  # Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return None
