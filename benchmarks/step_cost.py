"""What a Bayesian step and a Bayesian prediction cost, against the plain network in the same process.

    python benchmarks/step_cost.py [--rounds 15] [--json FILE]

Plain and Bayesian work alternate, one thread, process CPU time; medians of the ratios with quartiles. No claim about
speed from sparsity is made here: the reference kernel scatters into a temporary dense weight.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossamer
from gossamer.models import mlp

BATCH, N_DATA, N_DRAWS, N_INPUTS = 128, 50_000, 20, 1000


def conv_net() -> nn.Module:
    """Four 3×3 convolutions with BatchNorm, 32 to 64 channels, for 3×32×32 images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP 784-1024-1024-10": (lambda: mlp(784, (1024, 1024)), (784,)),
    "conv net": (conv_net, (3, 32, 32)),
}


def training_step(model: nn.Module, x: Tensor, y: Tensor, bayesian: bool) -> Callable[[], None]:
    """One step of the user's loop with SGD and momentum."""
    parameters = gossamer.param_groups(model) if bayesian else model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        if bayesian:
            loss = loss + gossamer.kl(model) / N_DATA
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def prediction(model: nn.Module, x: Tensor, n_draws: int) -> Callable[[], None]:
    """Several draws over all inputs; the plain network for ``n_draws = 0``."""

    @torch.no_grad()
    def plain() -> None:
        model.eval()
        for part in x.split(256):
            model(part)

    return (lambda: gossamer.predict(model, x, n_draws) and None) if n_draws else plain


def compare(plain: Callable[[], None], other: Callable[[], None], rounds: int) -> list[float]:
    """Ratios of CPU time, the two taking turns."""

    def seconds(work: Callable[[], None]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    for work in (plain, other):
        work()
    return [seconds(other) / seconds(plain) for _ in range(rounds)]


def measure(rounds: int) -> list[dict[str, object]]:
    """A row for each network, density and kind of work."""
    rows = []
    for name, (make, shape) in NETWORKS.items():
        x, y = torch.randn(BATCH, *shape), torch.randint(10, (BATCH,))
        many = torch.randn(N_INPUTS, *shape)
        for density in (1.0, 0.05):
            bayesian = gossamer.bayesianize(make(), density)
            jobs = {
                "training step": (training_step(make(), x, y, False), training_step(bayesian, x, y, True)),
                f"{N_DRAWS} draws": (prediction(make(), many, 0), prediction(bayesian, many, N_DRAWS)),
            }
            for job, (plain, other) in jobs.items():
                low, middle, high = statistics.quantiles(compare(plain, other, rounds), n=4)
                row = {"network": name, "density": density, "work": job, "ratio": middle, "quartiles": [low, high]}
                rows.append(row)
                print(f"{name:22s} density {density:4.2f}  {job:14s} {middle:6.2f} x plain  [{low:.2f}-{high:.2f}]")
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    print(f"{versions}, one thread, batch {BATCH}, {options.rounds} rounds")
    rows = measure(options.rounds)
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "rounds": options.rounds, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
