"""Mixtures of five sparse networks in files: how large they are, and whether bfloat16 changes what they predict.

    python -m benchmarks.mixtures results/mixtures.json [--data DIR] [--seeds 3]

An MLP on scikit-learn's digits and on 8,000 images of Fashion-MNIST; five networks of 5 % by SSVI, and by RigL, whose
weights have no noise, beside one dense network by SGD. Each is saved, loaded again and measured on the test images; the
draws of both precisions have the same random numbers. Ten minutes on one core.
"""

import argparse
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

import gossamer
from benchmarks.trials import Trial, Trials
from gossamer.evaluate import evaluate
from gossamer.lab import Settings
from gossamer.lab.record.environment import environment
from gossamer.lab.runs.comparison import KEPT_ENVIRONMENT
from gossamer.layers.summary import weights_of
from gossamer.models import mlp
from gossamer.posterior import Mixture
from gossamer.train import fit
from gossamer.types import Posterior, Task

EPOCHS, BATCH, N_DRAWS, MEMBERS = {"digits": 40, "fashion_mnist": 8}, 64, 20, 5
N_TRAIN = {"digits": None, "fashion_mnist": 8000}
PRECISIONS = {"float32": None, "bfloat16": "bf16"}
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {  # label -> method, options, how many times the steps
    "5 of SSVI": ("ssvi", {"density": 0.05, "members": MEMBERS}, 1),
    "5 of RigL": ("ensemble", {"member": "rigl", "members": MEMBERS, "member_options": {"density": 0.05}}, MEMBERS),
    "1 dense by SGD": ("sgd", {}, 1),
}


def trained(task: Task, method: str, options: dict[str, Any], steps: int, seed: int) -> Posterior:
    """The posterior of a training; each network of it takes as many steps."""
    torch.manual_seed(seed)
    network = mlp(task.train[0][0].numel())
    return fit(
        gossamer.methods.build(method, task, steps, **options), network, task, steps, batch_size=BATCH, seed=seed
    )


def measured(name: str, root: str | None, seed: int) -> Iterator[Trial]:
    """Each kind of posterior in each precision, from its file."""
    task = Settings("sgd", name, data_dir=root, n_train=N_TRAIN[name]).load_task()
    for label, (method, options, times) in KINDS.items():
        steps = times * EPOCHS[name] * -(-task.n_data // BATCH)
        posterior = trained(task, method, options, steps, seed)
        members = posterior.posteriors if isinstance(posterior, Mixture) else [posterior]
        n_active = sum(weights_of(member.model)[0] for member in members)
        for precision, dtype in PRECISIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                file = gossamer.save(posterior, Path(folder) / "net.safetensors", dtype=dtype)
                again = gossamer.load(file, mlp(task.train[0][0].numel()))
                cost = {"active_parameters": n_active, "file_bytes": file.stat().st_size}
            torch.manual_seed(0)
            reached = evaluate(again, task, N_DRAWS)
            settings = {"model": "mlp", "data": name, "split": "test", "n_draws": N_DRAWS}
            yield Trial(f"{name}: {label}, {precision}", seed, settings, reached, cost)


def main() -> None:
    """Train, save, load, predict, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--data", help="folder of the data files")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    trials = []
    for name in EPOCHS:
        for seed in range(args.seeds):
            for trial in measured(name, args.data, seed):
                bytes_, nll = trial.cost["file_bytes"], trial.metrics["nll"]
                print(f"{trial.label}, seed {seed}: {bytes_:,} bytes, NLL {nll:.6f}", flush=True)
                trials.append(trial)
    known = environment()
    where = {key: known[key] for key in KEPT_ENVIRONMENT if known.get(key) is not None}
    order = list(dict.fromkeys(trial.label for trial in trials))
    trials.sort(key=lambda trial: order.index(trial.label))
    Trials(trials, {"date": date.today().isoformat(), **where}).write(args.out)


if __name__ == "__main__":
    main()
