"""The control without noise for a network of the paper's size: ResNet-18 on CIFAR-10 and CIFAR-100, 50 epochs.

    python -m benchmarks.noise_resnet DATA RUNS DATASET LABEL SEED    # one training on a GPU, written to RUNS

5 % density on CIFAR-10, 10 % on CIFAR-100; 5,000 training images are held out. A file keeps the joint log-probabilities
of the held-out and the test images, at the means (width 0) and with ten draws (width 1), and of images from outside.
``judge`` and ``mixed`` of ``benchmarks/noise.py`` (commit 8ed969f92) calibrate them: width and one temperature of the
probabilities, both by the held-out images.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gossamer import data, methods, models
from gossamer.distributed.devices import OneProcess
from gossamer.evaluate import predict_inputs
from gossamer.train import Training

EPOCHS, BATCH, N_DRAWS = 50, 128, 10
DENSITY = {"cifar10": 0.05, "cifar100": 0.1}
OUTSIDE = {"cifar10": "cifar100", "cifar100": "cifar10"}


def main(root: str, runs: str, dataset: str, label: str, seed: str) -> None:
    """Train once and write down what is predicted."""
    logging.basicConfig(level=logging.INFO)
    torch.backends.cudnn.benchmark = True
    begin = time.time()
    task = data.load(dataset, root, verify=False)
    sparse = {"density": DENSITY[dataset]}
    method, options = {
        "ssvi": ("ssvi", sparse),
        "plain": ("ssvi", sparse | {"temperature": 0.0}),
        "sgd": ("sgd", {}),
    }[label]
    steps = EPOCHS * -(-task.n_data // BATCH)
    torch.manual_seed(1000 + int(seed))
    network = models.build("resnet18", (3, 32, 32), task.n_outputs)
    chosen = methods.build(method, task, steps, **options)
    place = OneProcess("cuda", bf16=True)
    training = Training(chosen, network, task, steps, place, seed=int(seed), batch_size=BATCH, captures=True)
    for _ in training.run():
        pass
    seconds, posterior = time.time() - begin, training.posterior()
    with np.load(Path(root, f"{OUTSIDE[dataset]}.npz")) as file:
        outside = torch.from_numpy(file["x_test"]).permute(0, 3, 1, 2).contiguous()
    found: dict[float, list[tuple[Tensor, Tensor]]] = {}
    for width in (0.0, 1.0) if posterior.at_width(1.0) is not posterior else (0.0,):
        torch.manual_seed(5)
        drawn, n = posterior.at_width(width), N_DRAWS if width else 1
        found[width] = []
        for x in (task.val[0], task.test[0], outside):
            log_probs = predict_inputs(drawn, task, x, n, batch_size=1000).outputs.float().cpu().log_softmax(2)
            entropy = -(log_probs.exp() * log_probs).sum(2).mean(0)  # of one draw, on average
            found[width].append(((log_probs.logsumexp(0) - math.log(n)).half(), entropy))
    y = {"y_val": task.val[1].cpu(), "y_test": task.test[1].cpu()}
    torch.save({"out": found, "seconds": seconds, "epochs": EPOCHS} | y, Path(runs, f"{dataset}-{label}-{seed}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
