"""Choices around standard deviations that learn, on scikit-learn's digits, three seeds each.

    python -m benchmarks.studies choices results/study-choices.json
    python -m benchmarks.studies ensembles results/study-ensembles.json
    python -m benchmarks.studies pretrained results/study-pretrained.json

*choices* (the start, removal, addition) are judged on the held-out split, *ensembles* and *pretrained* (trainings that
start from a plain network, and a Laplace approximation) on the test split. An MLP and a small conv net, SSVI at 5 %
unless the label says otherwise, every other option a default; minutes on one core each. What the last study chooses (a
learning rate, a prior precision) it chooses on the held-out split.
"""

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.trials import Trial, Trials
from gossamer import active_parameters, methods
from gossamer.data import digits
from gossamer.evaluate import evaluate, summarize
from gossamer.lab.record.environment import environment
from gossamer.lab.runs.comparison import KEPT_ENVIRONMENT
from gossamer.layers import sparse_weights
from gossamer.models import conv_net, mlp
from gossamer.posterior import Mixture, Prediction
from gossamer.sparsity.criteria import random
from gossamer.train import fit
from gossamer.types import Method, Posterior, Task

EPOCHS, SHORT, BATCH, N_DRAWS, SEEDS = 60, 10, 64, 20, 3
NETWORKS = {"MLP": partial(mlp, 64), "conv net": conv_net}
CHOICES = {
    "as it is": {},
    **{f"first σ × {factor:g}": {"start": factor} for factor in (0.01, 0.1, 10)},
    **{f"removal by {name}": {"removal": name} for name in ("magnitude", "expected_abs", "snr_exp")},
    "removal at random": {"removal": random},
    **{f"addition by {name}": {"addition": name} for name in ("mean_gradient", "multi_sample_gradient")},
    "addition at random": {"addition": "random"},
    "moves until half of the training": {"until": 0.5},
    "no moves": {"replacement_rate": 0.0},
    "std=gradient": {"std": "gradient"},
}
RATES = (0.02, 0.005, 0.002)
PRECISIONS = torch.logspace(-2, 4, 25)

Reached = tuple[str, dict[str, float], int]
"""A label, metrics, and the number of active weights."""


def steps_of(task: Task, epochs: int) -> int:
    """Steps of a training."""
    return epochs * -(-task.n_data // BATCH)


def trained(
    task: Task, network: nn.Module, seed: int, method: str = "ssvi", epochs: int = EPOCHS, *,
    start: float | None = None, **options: object,
) -> Posterior:  # fmt: skip
    """The posterior of a training; ``start`` multiplies the first standard deviations."""
    built = methods.build(method, task, steps_of(task, epochs), **options)
    if start is not None:
        built = built.suited_to(network)
        built = replace(built, prepare=partial(started, built, start), adapt=None)
    return fit(built, network, task, steps_of(task, epochs), batch_size=BATCH, seed=seed)


def started(method: Method, factor: float, network: nn.Module) -> nn.Module:
    """The converted network with its first standard deviations multiplied."""
    model = method.prepare(network)
    for weight in sparse_weights(model).values():
        weight.set_std(factor * weight.std)
    return model


def reached(posterior: Posterior, task: Task, split: str, n_draws: int = N_DRAWS) -> dict[str, float]:
    """Quality, by the same random numbers for all."""
    torch.manual_seed(0)
    return evaluate(posterior, task, n_draws, split=split)


def network_of(kind: str, seed: int) -> nn.Module:
    """A fresh network."""
    torch.manual_seed(seed)
    return NETWORKS[kind]()


def n_weights(network: nn.Module) -> int:
    """Weights of a plain network, without biases."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.dim() > 1)


def choices(kind: str, task: Task, seed: int) -> Iterator[Reached]:
    """Each choice alone, on the held-out split."""
    for label, options in CHOICES.items():
        posterior = trained(task, network_of(kind, seed), seed, **options)
        yield label, reached(posterior, task, "val"), active_parameters(posterior.model)


def ensembles(kind: str, task: Task, seed: int) -> Iterator[Reached]:
    """One training, several, and a deep ensemble of plain networks."""
    seeds = [10 * seed + i for i in range(4)]
    sparse = [trained(task, network_of(kind, s), s) for s in seeds]
    n_active = active_parameters(sparse[0].model)
    yield "SSVI 5 %", reached(sparse[0], task, "test"), n_active
    for label, epochs in (("4 members of one training", EPOCHS), ("the same, 4 times as long", 4 * EPOCHS)):
        cyclical = trained(task, network_of(kind, seed), seed, epochs=epochs, cycles=4)
        yield f"SSVI 5 %, {label}", reached(cyclical, task, "test"), 4 * n_active
    yield "SSVI 5 %, 4 trainings", reached(Mixture(sparse), task, "test"), 4 * n_active
    wide = trained(task, network_of(kind, seed), seed, density=0.2)
    yield "SSVI 20 %", reached(wide, task, "test"), active_parameters(wide.model)
    plain = [trained(task, network_of(kind, s), s, "sgd") for s in seeds]
    n_plain = n_weights(plain[0].model)
    yield "SGD", reached(plain[0], task, "test"), n_plain
    yield "SGD, 4 trainings", reached(Mixture(plain), task, "test"), 4 * n_plain


def pretrained(kind: str, task: Task, seed: int) -> Iterator[Reached]:
    """From a trained plain network in a few epochs, beside trainings from nothing and a Laplace approximation."""
    plain = trained(task, network_of(kind, seed), seed, "sgd", EPOCHS - SHORT)
    n_plain = n_weights(plain.model)
    yield f"SGD, {EPOCHS - SHORT} epochs", reached(plain, task, "test"), n_plain
    metrics = summarize(laplace(plain.model, task), task, task.test[1])
    yield "the same, Laplace of its last layer", metrics, n_plain
    for density in (0.1, 0.2):
        share, candidates = f"SSVI {density:.0%}".replace("%", " %"), []
        for lr in RATES:
            built = methods.build("ssvi", task, steps_of(task, SHORT), density=density, lr=lr)
            built = built.suited_to(plain.model)
            built = replace(built, prepare=partial(built.prepare, init="pretrained"), adapt=None)
            network = copy.deepcopy(plain.model)
            candidates.append(fit(built, network, task, steps_of(task, SHORT), batch_size=BATCH, seed=seed))
        best = min(candidates, key=lambda posterior: reached(posterior, task, "val")["nll"])
        n_active = active_parameters(best.model)
        yield f"{share}, {SHORT} epochs from that network", reached(best, task, "test"), n_active
        for epochs in (SHORT, EPOCHS):
            posterior = trained(task, network_of(kind, seed), seed, epochs=epochs, density=density)
            yield f"{share}, {epochs} epochs from nothing", reached(posterior, task, "test"), n_active


@torch.no_grad()
def laplace(network: nn.Module, task: Task) -> Prediction:
    """Diagonal Gauss-Newton Laplace of the last layer; its prior precision has the best NLL on the held-out split.

    The curvature of the summed loss in the weight from feature j to class k is Σ f_j² p_k (1 - p_k).
    """
    *body, last = network.eval()
    body = nn.Sequential(*body)

    def features(x: Tensor) -> Tensor:  # with a one for the bias
        return torch.cat([body(task.transform(x)), torch.ones(len(x), 1)], 1)

    mean = torch.cat([last.weight, last.bias[:, None]], 1)
    found = features(task.train[0])
    probs = (found @ mean.T).softmax(1)
    curvature = (probs * (1 - probs)).T @ found**2

    def prediction(x: Tensor, precision: Tensor) -> Prediction:
        f = features(x)
        std = (f**2 @ (1 / (curvature + precision)).T).sqrt()
        noise = torch.randn(N_DRAWS, *std.shape, generator=torch.Generator().manual_seed(0))
        return Prediction(f @ mean.T + std * noise)

    x, y = task.val
    best = min(PRECISIONS, key=lambda precision: summarize(prediction(x, precision), task, y)["nll"])
    return prediction(task.test[0], best)


STUDIES: dict[str, tuple[Callable[[str, Task, int], Iterator[Reached]], str]] = {
    "choices": (choices, "val"),
    "ensembles": (ensembles, "test"),
    "pretrained": (pretrained, "test"),
}


def main() -> None:
    """Train, predict, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    study, split = STUDIES[args.study]
    task, trials = digits.load(), []
    for kind in NETWORKS:
        for seed in range(SEEDS):
            for label, metrics, n_active in study(kind, task, seed):
                print(f"{kind}, {label}, seed {seed}: NLL {metrics['nll']:.4f}", flush=True)
                settings = {"model": kind, "data": "digits", "split": split, "n_draws": N_DRAWS}
                trials.append(Trial(f"{kind}: {label}", seed, settings, metrics, {"active_parameters": n_active}))
    known = environment()
    where = {key: known[key] for key in KEPT_ENVIRONMENT if known.get(key) is not None}
    order = list(dict.fromkeys(trial.label for trial in trials))
    trials.sort(key=lambda trial: order.index(trial.label))
    Trials(trials, {"date": date.today().isoformat(), **where}).write(args.out)


if __name__ == "__main__":
    main()
