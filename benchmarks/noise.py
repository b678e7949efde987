"""What the noise of a sparse posterior is worth: on nine problems, beside the same training without it.

    python -m benchmarks.noise RUNS results/noise.json --data DIR [--workers 2] [--seeds 5]

``DIR`` has svhn.npz, cifar10.npz, cifar100.npz, mnist.npz, fashion_mnist.npz, and dna.npz with the 180 columns ``x``
and the three classes ``y`` of DNA in R's package mlbench. Each training leaves a file in ``RUNS`` with what it predicts
for the held-out and the test rows, so that the command continues where it was stopped. An hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer import data, methods, models
from gossamer.data._images import Normalize
from gossamer.evaluate import predict_inputs
from gossamer.lab.record.environment import environment
from gossamer.likelihoods import Categorical
from gossamer.metrics import ece
from gossamer.posterior.calibration import SLACK
from gossamer.train.loop import Training
from gossamer.types import Task

KIND = "study"
FIRST_SEED, BATCH, N_DRAWS = 100, 64, 10  # seeds below 100 chose the defaults
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ssvi": ("ssvi", {}),
    "ssvi without noise": ("ssvi", {"temperature": 0.0}),
    "rigl": ("rigl", {}),
    "sgd, dense": ("sgd", {}),
}
CHOICES = {
    "fashion_mlp": "T",
    "svhn": "T",
    "waveform": "T",
    "cifar20": "average",
}  # chosen on a problem, by other seeds


class Problem(NamedTuple):
    """A task, what builds its network, and for how long it is trained."""

    task: Task
    network: Callable[[], nn.Module]
    epochs: int


def problems(root: Path) -> dict[str, Callable[[], Problem]]:
    """The problems, loaded when they are needed."""

    def split(x: Tensor, y: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: sum(sizes)]
        return [(x[part], y[part].long()) for part in order.split(list(sizes))]

    def arrays(name: str) -> dict[str, Tensor]:
        with np.load(root / f"{name}.npz") as file:
            return {key: torch.from_numpy(file[key]) for key in file.files}

    def whole(name: str) -> tuple[Tensor, Tensor]:
        z = arrays(name)
        return torch.cat([z["x_train"], z["x_test"]]), torch.cat([z["y_train"], z["y_test"]])

    def small(x: Tensor, y: Tensor, sizes: Sequence[int], n_classes: int, name: str, scale: Normalize) -> Task:
        x = F.avg_pool2d(x.permute(0, 3, 1, 2).float(), 2).round().byte()  # 32 to 16 pixels
        return Task(*split(x, y, sizes), Categorical(), n_classes, name, transform=scale)

    def grey(name: str, sizes: Sequence[int], scale: Normalize) -> Task:
        x, y = whole(name)
        return Task(*split(x.reshape(-1, 1, 28, 28), y, sizes), Categorical(), 10, name, transform=scale)

    def svhn() -> Problem:
        z = arrays("svhn")
        scale = Normalize((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197))
        task = small(z["x_test"], z["y_test"], [6000, 1500, 4000], 10, "svhn (reconstructed), 16 x 16", scale)
        return Problem(task, lambda: models.pooled_conv_net(10, 3), 15)

    def cifar20() -> Problem:
        x, y = whole("cifar100")
        scale = Normalize((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
        sizes = [4000, 1000, 2500]
        task = small(x[y < 20], y[y < 20], sizes, 20, "20 classes of CIFAR-100, 16 x 16", scale)
        return Problem(task, lambda: models.wide_resnet(10, 1, 20), 15)

    def cifar10() -> Problem:
        scale = Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
        task = small(*whole("cifar10"), [6000, 1500, 4000], 10, "CIFAR-10, 16 x 16", scale)
        return Problem(task, lambda: models.pooled_conv_net(10, 3), 15)

    def fashion() -> Task:
        return grey("fashion_mnist", [8000, 2000, 4000], Normalize((0.2860,), (0.3530,)))

    def mnist() -> Problem:
        task = grey("mnist", [3000, 1000, 4000], Normalize((0.1307,), (0.3081,)))
        return Problem(task, lambda: models.mlp(784), 30)

    def dna() -> Problem:
        z = arrays("dna")
        task = Task(*split(z["x"], z["y"], [2000, 500, 686]), Categorical(), 3, "DNA (mlbench)", transform=_signs)
        return Problem(task, lambda: models.mlp(180, out_features=3), 40)

    def waveform() -> Problem:
        """Breiman et al. 1984: mixtures of two of three triangles with noise, and 19 columns of noise alone."""
        draw = np.random.default_rng(7)
        y, at = draw.integers(0, 3, 6500), np.arange(21)
        triangles = np.stack([np.clip(6 - abs(at - peak), 0, None) for peak in (6, 14, 10)])
        first, second = triangles[np.array([[0, 1], [0, 2], [1, 2]])[y]].swapaxes(0, 1)
        share = draw.random((len(y), 1))
        waves = share * first + (1 - share) * second + draw.standard_normal((len(y), 21))
        x = torch.tensor(np.concatenate([waves, draw.standard_normal((len(y), 19))], 1), dtype=torch.float32)
        rows = split((x - x.mean(0)) / x.std(0), torch.tensor(y), [2000, 500, 4000])
        return Problem(Task(*rows, Categorical(), 3, "waveform"), lambda: models.mlp(40, out_features=3), 40)

    return {
        "svhn": svhn,
        "cifar20": cifar20,
        "fashion_conv": lambda: Problem(fashion(), lambda: models.conv_net(10, 1), 8),
        "fashion_mlp": lambda: Problem(fashion(), lambda: models.mlp(784), 25),
        "digits": lambda: Problem(data.load("digits", n_val=239), lambda: models.mlp(64), 60),
        "dna": dna,
        "waveform": waveform,
        "mnist": mnist,
        "cifar10": cifar10,
    }


def _signs(x: Tensor) -> Tensor:
    return 2 * x.float() - 1


def train(name: str, label: str, seed: int, root: Path, out: Path) -> None:
    """Train once, and write down what the means and the draws predict: ``(n, classes)`` log-probabilities."""
    if out.exists():
        return
    torch.set_num_threads(1)
    task, network, epochs = problems(root)[name]()
    steps = epochs * -(-task.n_data // BATCH)
    torch.manual_seed(1000 + seed)
    method, options = METHODS[label]
    training = Training(methods.build(method, task, steps, **options), network(), task, steps, seed=seed)
    for _ in training.run():
        pass
    posterior = training.posterior()
    has_width = posterior.at_width(1.0) is not posterior
    found = {}
    for width in (0.0, 1.0) if has_width else (0.0,):
        torch.manual_seed(5)
        n = N_DRAWS if width else 1
        drawn = posterior.at_width(width)
        parts = [predict_inputs(drawn, task, split[0], n).outputs for split in (task.val, task.test)]
        found[width] = [part.double().log_softmax(2).logsumexp(0) - math.log(n) for part in parts]
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"out": {w: [p.half() for p in parts] for w, parts in found.items()}}, out.with_suffix(".part"))
    out.with_suffix(".part").rename(out)


Outputs = dict[float, list[Tensor]]


def mixed(members: list[Outputs]) -> Outputs:
    """The mixture of several trainings."""
    stacked = {w: [torch.stack([m[w][i] for m in members]) for i in (0, 1)] for w in members[0]}
    return {w: [one.logsumexp(0) - math.log(len(members)) for one in both] for w, both in stacked.items()}


class Judged(NamedTuple):
    """A prediction of the test rows after calibration on the held-out ones."""

    as_is: float
    nll: Tensor  # of each test row
    log_probs: Tensor
    width: float


def judge(outputs: Outputs, y_val: Tensor, y_test: Tensor) -> Judged:
    """Width and one temperature of the probabilities, both by the held-out rows, as ``calibrate`` chooses."""
    fits = {w: _tempered(both, y_val) for w, both in outputs.items()}
    best = min(fits, key=lambda w: float(fits[w][0].mean()))
    for width in sorted(fits, reverse=True):  # the widest that cannot be told from the best
        worse = fits[width][0] - fits[best][0]
        if float(worse.mean()) <= max(SLACK, float(worse.std()) / math.sqrt(len(worse))):
            break
    log_probs = fits[width][1]
    widest = max(outputs)
    return Judged(float(_nll(outputs[widest][1], y_test).mean()), _nll(log_probs, y_test), log_probs, width)


def _tempered(both: list[Tensor], y_val: Tensor) -> tuple[Tensor, Tensor]:
    val, test = both
    grid = torch.logspace(math.log10(0.3), math.log10(5), 120).tolist()
    t = min(grid, key=lambda t: float(_nll((val / t).log_softmax(1), y_val).mean()))
    return _nll((val / t).log_softmax(1), y_val), (test / t).log_softmax(1)


def _nll(log_probs: Tensor, y: Tensor) -> Tensor:
    return -log_probs.gather(1, y[:, None]).squeeze(1)


def floor_of_ece(probs: Tensor, n: int = 200) -> tuple[float, float]:
    """Mean and standard deviation of the ECE of a network that is right exactly as often as it says."""
    generator = torch.Generator().manual_seed(0)
    drawn = [ece(probs, torch.multinomial(probs, 1, generator=generator)[:, 0]) for _ in range(n)]
    return statistics.fmean(drawn), statistics.stdev(drawn)


def summary(runs: Path, root: Path, seeds: int) -> dict[str, Any]:
    """All numbers of the page."""
    found: dict[str, Any] = {}
    for name, load in problems(root).items():
        task = load().task
        y_val, y_test = task.val[1], task.test[1]
        outputs = {label: [_read(_file(runs, name, label, FIRST_SEED + i)) for i in range(seeds)] for label in METHODS}
        rows: dict[str, Any] = {}
        judged = {label: [judge(one, y_val, y_test) for one in several] for label, several in outputs.items()}
        for label, several in judged.items():
            nlls = [float(one.nll.mean()) for one in several]
            errors = [ece(one.log_probs.exp(), y_test) for one in several]
            floors = [floor_of_ece(one.log_probs.exp()) for one in several]
            rows[label] = {
                "as_is": _mean([one.as_is for one in several]),
                "nll": _mean(nlls),
                "accuracy": _mean([float((one.log_probs.argmax(1) == y_test).double().mean()) for one in several]),
                "ece": _mean(errors),
                "ece_floor": [statistics.fmean(column) for column in zip(*floors, strict=True)],
                "kept_width": statistics.fmean(one.width for one in several),
            }
        pairs = {}
        for other in ("ssvi without noise", "rigl"):
            gaps = zip(judged["ssvi"], judged[other], strict=True)
            pairs[f"ssvi - {other}"] = _mean([float((a.nll - b.nll).mean()) for a, b in gaps])
        five = {label: judge(mixed(several), y_val, y_test) for label, several in outputs.items()}
        for label, one in five.items():
            rows[f"five of {label}"] = {"as_is": one.as_is, "nll": float(one.nll.mean())}
            if label != "sgd, dense":
                gap = one.nll - five["sgd, dense"].nll
                pairs[f"five of {label} - five dense"] = [float(gap.mean()), float(gap.std()) / math.sqrt(len(gap))]
        sizes = {"train": len(task.train[1]), "val": len(y_val), "test": len(y_test)}
        found[name] = {"task": task.name, "sizes": sizes, "rows": rows, "pairs": pairs, "chose": CHOICES.get(name)}
    return found


def tables(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of the page: NLL, calibration, paired differences, mixtures of five."""

    def per_problem(labels: Sequence[str], cell: Callable[[dict[str, Any], str], str]) -> dict[str, Any]:
        rows = [[_name(name, one), *(cell(one, label) for label in labels)] for name, one in found.items()]
        return {"head": ["problem", *labels], "rows": rows, "n_labels": 1}

    def nll(one: dict[str, Any], label: str) -> str:
        return _plus_minus(one["rows"][label]["nll"])

    def ece(one: dict[str, Any], label: str) -> str:
        row = one["rows"][label]
        return f"{100 * row['ece'][0]:.2f} ({100 * row['ece_floor'][0]:.2f} ± {100 * row['ece_floor'][1]:.2f})"

    fives = [f"five of {label}" for label in METHODS]
    pairs = list(next(iter(found.values()))["pairs"])
    return {
        "noise-nll": per_problem(list(METHODS), nll),
        "noise-as-is": per_problem(list(METHODS), lambda one, label: _plus_minus(one["rows"][label]["as_is"])),
        "noise-ece": per_problem(list(METHODS), ece),
        "noise-pairs": per_problem(pairs, lambda one, label: _plus_minus(one["pairs"][label], "+")),
        "noise-fives": per_problem(fives, lambda one, label: f"{one['rows'][label]['nll']:.3f}"),
    }


def _name(name: str, one: Mapping[str, Any]) -> str:
    return f"{name} ({one['chose']} was chosen on it)" if one["chose"] else name


def _plus_minus(pair: Sequence[float], sign: str = "") -> str:
    return f"{pair[0]:{sign}.3f} ± {pair[1]:.3f}"


def _mean(values: list[float]) -> list[float]:
    """Mean and standard error over the seeds."""
    return [statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))]


def _read(file: Path) -> Outputs:
    out = torch.load(file, weights_only=True)["out"]
    return {float(w): [part.double().log_softmax(1) for part in parts] for w, parts in out.items()}


def _file(runs: Path, name: str, label: str, seed: int) -> Path:
    return runs / f"{name}-{label.replace(' ', '-').replace(',', '')}-{seed}.pt"


def jobs(runs: Path, root: Path, seeds: int) -> Iterator[tuple[str, str, int, Path, Path]]:
    """One training each."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for name in problems(root):
            for label in METHODS:
                yield name, label, seed, root, _file(runs, name, label, seed)


def main() -> None:
    """Train what is not there yet, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    with get_context("spawn").Pool(args.workers) as pool:
        pool.starmap(train, list(jobs(args.runs, args.data, args.seeds)), chunksize=1)
    known = environment()
    where = {"date": date.today().isoformat()} | {key: known[key] for key in ("cpu", "python", "versions")}
    found = summary(args.runs, args.data, args.seeds)
    content = {"kind": KIND, "environment": where, "tables": tables(found), "problems": found}
    args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
