"""What compact makes of pruned networks: their size and speed on a CPU, and what pruning costs in accuracy.

    python -m benchmarks.compact [--densities 1 0.5 0.2 0.1] [--epochs 40] [--seeds 3]

Digits: em_mcmc prunes channels and units of a conv net and an MLP to each density; accuracy is on the test third,
the mean over seeds with its standard error. What is timed is the last snapshot as a plain network, and what compact
makes of it. ResNet-18: fresh weights are pruned to the density, since the time does not depend on their values. Both
networks of a pair are timed in turns, on one thread, in CPU time; the figure is the ratio of the medians.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gossamer
from gossamer import data, methods
from gossamer.evaluate import evaluate
from gossamer.models import conv_net, mlp, resnet18
from gossamer.sparsity import Prune
from gossamer.train import fit

TRAINED = {"conv net": conv_net, "MLP 64-256-256-10": lambda: mlp(64)}
ROUNDS = 15
COLUMNS = ("network", "density", "weights", "compact", "pruned, ms", "compact, ms", "faster", "accuracy")


def main() -> None:
    """Measure, print the table and write every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--densities", type=float, nargs="+", default=[1.0, 0.5, 0.2, 0.1])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/compact.json"))
    parser.add_argument("--plot", type=Path, default=None, help="a picture of speed and accuracy, .svg or .png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    for density in options.densities:
        for name in TRAINED:
            rows.append(trained(name, density, options.epochs, options.seeds))
            print(line(rows[-1]), flush=True)
        rows.append(pruned(density))
        print(line(rows[-1]), flush=True)
    about = {"torch": torch.__version__, "gossamer": gossamer.__version__, "machine": platform.machine()}
    told = {"epochs": options.epochs, "seeds": options.seeds, "threads": 1, "rounds": ROUNDS}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, **told, "rows": rows}, indent=1) + "\n")
    if options.plot is not None:
        plot(rows, options.plot)


def trained(name: str, density: float, epochs: int, seeds: int) -> dict[str, Any]:
    """em_mcmc on digits, and its last snapshot before and after."""
    task = data.load("digits")
    steps = epochs * (len(task.train[0]) // 64)
    accuracies = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        method = methods.build("em_mcmc", task, steps, density=density, group="channel")
        posterior = fit(method, TRAINED[name](), task, steps, seed=seed)
        accuracies.append(evaluate(posterior, task, n_draws=12)["accuracy"])
    *_, network = posterior.draws(12)
    spread = statistics.stdev(accuracies) / seeds**0.5 if seeds > 1 else None
    x = task.transform(task.test[0][:256])
    return measured(name, density, network, x) | {"accuracy": statistics.fmean(accuracies), "accuracy_error": spread}


def pruned(density: float) -> dict[str, Any]:
    """ResNet-18 for CIFAR, whose fresh weights are pruned."""
    torch.manual_seed(0)
    model, x = resnet18().eval(), torch.randn(8, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    Prune(model, optimizer, target_density=density).step()
    return measured("ResNet-18", density, model, x)


def measured(name: str, density: float, network: nn.Module, x: Tensor) -> dict[str, Any]:
    """Sizes and times of a network and its compact one, whose outputs must agree."""
    small = gossamer.compact(network).eval()
    seconds: dict[str, list[float]] = {"pruned": [], "compact": []}
    with torch.no_grad():
        torch.testing.assert_close(small(x), network(x), rtol=1e-3, atol=1e-3)
        for _ in range(ROUNDS):
            for key, module in (("pruned", network), ("compact", small)):
                start = time.process_time()
                module(x)
                seconds[key].append(time.process_time() - start)
    before, after = small.compaction.n_weights
    times = {f"{key}_ms": 1000 * statistics.median(found) for key, found in seconds.items()}
    return {"network": name, "density": density, "batch": len(x), "weights": before, "compact_weights": after, **times}


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    ratio = row["pruned_ms"] / row["compact_ms"]
    cells = [row["network"], f"{row['density']:.0%}", f"{row['weights']:,}", f"{row['compact_weights']:,}"]
    cells += [f"{row['pruned_ms']:.1f}", f"{row['compact_ms']:.1f}", f"{ratio:.1f}x"]
    error = "" if row.get("accuracy_error") is None else f" ± {100 * row['accuracy_error']:.1f}"
    cells.append(f"{100 * row['accuracy']:.1f}{error} %" if "accuracy" in row else "–")
    return "| " + " | ".join(cells) + " |"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Speed against density, and accuracy beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    speed, accuracy = figure.subplots(1, 2)
    colours = ("#0072B2", "#D55E00", "#009E73")  # Okabe and Ito's
    for name, colour in zip(dict.fromkeys(row["network"] for row in rows), colours, strict=False):
        own = sorted((row for row in rows if row["network"] == name), key=lambda row: row["density"])
        density = [row["density"] for row in own]
        speed.plot(density, [row["pruned_ms"] / row["compact_ms"] for row in own], "o-", color=colour, label=name)
        if "accuracy" in own[0]:
            errors = [100 * (row["accuracy_error"] or 0) for row in own]
            accuracy.errorbar(
                density, [100 * row["accuracy"] for row in own], errors, fmt="o-", color=colour, label=name
            )
    speed.set(xlabel="density", ylabel="times faster than the pruned network", ylim=(0, None))
    accuracy.set(xlabel="density", ylabel="accuracy on digits, %")
    for axes in (speed, accuracy):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
