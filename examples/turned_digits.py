"""How warm the changes of a pretrained network should be: digits on their side, by temperature and number of examples.

    python examples/turned_digits.py [--seeds 3] [--json FILE]

A small network that knows the ten digits learns those from 0 to 7 on their side, by changes of 2 % of its weights. The
NLL is that of 20 draws, and that of the network at its means; 8 and 9 are what it does not know. A minute of a CPU.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from clinc150 import environment
from torch import Tensor, nn

import gossamer
from gossamer import metrics
from gossamer.posterior import Prediction

TEMPERATURES = (1e-6, 1e-4, 1e-3, 1e-2, 3e-2)
EXAMPLES = (80, 400)
COLUMNS = ("NLL", "NLL at the means", "accuracy, %", "AUROC")


def lying(split: tuple[Tensor, Tensor], first: int, last: int, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Digits from ``first`` to ``last`` on their side."""
    x, y = split
    keep = (y >= first) & (y <= last)
    return x[keep][:most].rot90(1, (2, 3)), y[keep][:most]


def fit(net: nn.Module, optimizer: Any, x: Tensor, y: Tensor, steps: int, subspace: Any = None) -> nn.Module:
    """Batches of 64, and a rate that falls along a line."""
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(steps):
        rows = torch.randint(len(y), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        rate.step()
        if subspace is not None:
            subspace.step()
    return net.eval()


@torch.no_grad()
def run(temperature: float, n: int, seed: int) -> list[float]:
    """NLL, NLL at the means, accuracy and AUROC of a training."""
    torch.manual_seed(seed)
    task, net = gossamer.data.load("digits"), nn.Sequential()
    net.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    net.classifier = nn.Linear(256, 10)
    with torch.enable_grad():
        fit(net, torch.optim.Adam(net.parameters(), lr=1e-3), *task.train, 300)
        x, y = lying(task.train, 0, 7, n)
        net.classifier = nn.Linear(256, 8)
        net = gossamer.adapt(net, 0.02).train()
        optimizer = torch.optim.AdamW(gossamer.param_groups(net), lr=5e-3, weight_decay=0.0)
        gossamer.Curvature(net, optimizer, n_data=n, temperature=temperature)
        fit(net, optimizer, x, y, 400, gossamer.Subspace(net, optimizer, total_steps=400, update_period=20))
    (x, y), (other, _) = lying(task.test, 0, 7), lying(task.test, 8, 9)
    inside, beyond = (gossamer.predict(net, part, n_draws=20) for part in (x, other))
    at_means = Prediction(gossamer.draw(net, at_mean=True)(x)[None])
    nll = [metrics.nll(one.probs, y) for one in (inside, at_means)]
    return [*nll, 100 * metrics.accuracy(inside.probs, y), metrics.auroc(inside.entropy, beyond.entropy)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, cells = [], []
    for n in EXAMPLES:
        for temperature in TEMPERATURES:
            seeds = [run(temperature, n, seed) for seed in range(options.seeds)]
            rows.append({"examples": n, "temperature": temperature, "seeds": seeds})
            shown = [
                f"{statistics.mean(one):.{digits}f} ± {statistics.stdev(one) / len(one) ** 0.5:.{digits}f}"
                for one, digits in zip(zip(*seeds, strict=True), (3, 3, 1, 3), strict=True)
            ]
            cells.append([str(n), f"{temperature:g}", *shown])
            print(*cells[-1], flush=True)
    if options.json:
        shown_table = {"head": ["examples", "T", *COLUMNS], "rows": cells, "n_labels": 2}
        content = {
            "kind": "study",
            "environment": environment(),
            "rows": rows,
            "tables": {"turned-digits": shown_table},
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
