"""Statistics of batch normalisation for draws: those of training, or the draw's own, from data augmented or not?

    python -m benchmarks.batchnorm results/batchnorm.json [--data DIR] [--seeds 3]

A conv net with batch normalisation, 12 epochs on 6,000 images of CIFAR-10, by VI and SSVI with narrow and wide
posteriors; every way to predict is measured on 2,000 held-out images. Twenty minutes on one core.
"""

import argparse
from datetime import date
from pathlib import Path

import torch
from torch import nn

from benchmarks.trials import Trial, Trials
from gossamer import active_parameters, methods
from gossamer.data import cifar10
from gossamer.evaluate import evaluate
from gossamer.lab.record.environment import environment
from gossamer.lab.runs.comparison import KEPT_ENVIRONMENT
from gossamer.methods._parts import refresh_of
from gossamer.posterior import InLayers, LocalPasses, Refresh, SingleNetwork
from gossamer.train import fit
from gossamer.types import Posterior, Task

CASES = {
    "SSVI 20 %, KL weight 0.02": ("ssvi", {"density": 0.2, "std": "gradient", "kl_weight": 0.02}),
    "VI, KL weight 0.02": ("vi", {"std": "gradient", "kl_weight": 0.02}),
    "VI, KL weight 0.1": ("vi", {"std": "gradient", "kl_weight": 0.1}),
}
N_TRAIN, N_VAL, N_DRAWS, EPOCHS, BATCH, LR = 6000, 2000, 10, 12, 64, 0.005


def network() -> nn.Sequential:
    """Four convolutions, each with batch normalisation."""
    layers: list[nn.Module] = []
    for n_in, n_out, stride in ((3, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def small_task(root: str | None) -> Task:
    """Some images of CIFAR-10."""
    task = cifar10.load(root)
    train, val = ((x[:n], y[:n]) for (x, y), n in ((task.train, N_TRAIN), (task.val, N_VAL)))
    return task._replace(train=train, val=val)


def ways(model: nn.Module, task: Task) -> dict[str, Posterior]:
    """The ways to predict that are compared."""
    return {
        "mean weights": SingleNetwork(model),
        "local passes": LocalPasses(model),
        "draws": InLayers(model),
        "draws, refreshed": InLayers(model, refresh=refresh_of(task)),
        "draws, refreshed, not augmented": InLayers(model, refresh=Refresh(task.train[0], task.transform)),
    }


def main() -> None:
    """Train, predict, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--data", help="folder of the data files")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    task, steps, trials = small_task(args.data), EPOCHS * -(-N_TRAIN // BATCH), []
    for case, (method, options) in CASES.items():
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            told = methods.build(method, task, steps, lr=LR, **options)
            posterior = fit(told, network(), task, steps, batch_size=BATCH, seed=seed)
            assert isinstance(posterior, InLayers)
            assert posterior.model is not None
            cost = {"active_parameters": active_parameters(posterior.model)}
            for way, one in ways(posterior.model, task).items():
                torch.manual_seed(0)
                reached = evaluate(one, task, N_DRAWS, split="val")
                print(f"{case}, {way}, seed {seed}: NLL {reached['nll']:.4f}", flush=True)
                settings = {"method": method, "epochs": EPOCHS, "split": "val", "options": {"lr": LR, **options}}
                trials.append(Trial(f"{case}: {way}", seed, settings, reached, cost))
    known = environment()
    where = {key: known[key] for key in KEPT_ENVIRONMENT if known.get(key) is not None}
    Trials(trials, {"date": date.today().isoformat(), **where}).write(args.out)


if __name__ == "__main__":
    main()
