"""A ResNet-18 that knows CIFAR-100 learns CIFAR-10 from few images: changes of 1 % of its weights beside its rivals.

    python examples/moved_cifar.py DATA RUNS [--n-train 5000] [--jobs 4] [--json FILE]

DATA has cifar10.npz and cifar100.npz (x_train, y_train, x_test, y_test; bytes, (n, 32, 32, 3)); images are halved to
16 x 16. Every method chooses from four learning rates, by the NLL of 1,000 other images after a training with a seed of
its own, and has a temperature of its logits fitted on them; test images choose nothing. Test images of CIFAR-100 are
those that no class fits. Trainings are spread over processes, which share a GPU if there is one, and kept in RUNS.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from clinc150 import one_thread, scored, table, write
from torch import Tensor, nn

import gossamer
from gossamer.layers import sparse_weights

RATES = {
    "last layer": (1e-3, 3e-3, 1e-2, 3e-2),
    "BitFit": (1e-3, 3e-3, 1e-2, 3e-2),  # and batch normalisation
    "full": (3e-4, 1e-3, 3e-3, 1e-2),
    "SHiRA": (1e-3, 3e-3, 1e-2, 3e-2),  # 1 % of the entries, chosen at random, that stay where they are
    "adapt": (1e-3, 3e-3, 1e-2, 3e-2),
    "adapt, and BitFit": (1e-3, 3e-3, 1e-2, 3e-2),
}
MEMBERS = {"full": 5, "adapt": 5, "adapt, and BitFit": 5}
DENSITY, TUNING, N_DRAWS, N_HELD, N_TEST, N_OUTSIDE = 0.01, 100, 10, 1000, 5000, 2000

Split = tuple[Tensor, Tensor]


def read(file: Path, part: str, device: str) -> Split:
    """Images at 16 x 16, ``(n, 3, 16, 16)`` and about standardised, and their classes."""
    with np.load(file) as content:
        x, y = torch.from_numpy(content[f"x_{part}"]), torch.from_numpy(content[f"y_{part}"]).long()
    small = F.avg_pool2d(x.permute(0, 3, 1, 2).float() / 255, 2)
    return ((small - 0.47) / 0.25).to(device), y.to(device)


@cache
def load(folder: Path, n_train: int, device: str) -> dict[str, Split]:
    """Images for training, choices and tests, and those of other classes."""
    x, y = read(folder / "cifar10.npz", "train", device)
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[: n_train + N_HELD].to(device)
    parts = {"train": (x[rows[N_HELD:]], y[rows[N_HELD:]]), "held": (x[rows[:N_HELD]], y[rows[:N_HELD]])}
    for name, file, n in (("test", "cifar10.npz", N_TEST), ("outside", "cifar100.npz", N_OUTSIDE)):
        parts[name] = tuple(one[:n] for one in read(folder / file, "test", device))  # type: ignore[assignment]
    return parts


def network(classes: int) -> nn.Module:
    """A ResNet-18 for small images."""
    return gossamer.models.resnet18(num_classes=classes)


def fit(
    net: nn.Module, optimizer: Any, split: Split, steps: int, seed: int, subspace: Any = None, size: int = 64
) -> None:
    """Mirrored images, moved by up to 2 pixels; a tenth of warm-up, then a line to zero."""
    generator, (images, labels) = torch.Generator().manual_seed(seed), split
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / (0.1 * steps), 1 - step / steps))
    for _ in range(steps):
        rows = torch.randint(len(labels), (size,), generator=generator).to(labels.device)
        up, left, mirrored = torch.randint(5, (3,), generator=generator).tolist()
        x = F.pad(images[rows], (2, 2, 2, 2))[:, :, up : up + 16, left : left + 16]
        x = x.flip(3) if mirrored % 2 else x
        optimizer.zero_grad()
        F.cross_entropy(net(x), labels[rows]).backward()
        optimizer.step()
        rate.step()
        if subspace is not None:
            subspace.step()


def pretrained(options: Any) -> Path:
    """A network that was trained on all of CIFAR-100."""
    file = Path(options.runs) / "pretrained.pt"
    if not file.exists():
        torch.manual_seed(0)
        net = network(100).to(options.device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
        split = read(options.data / "cifar100.npz", "train", options.device)
        fit(net.train(), optimizer, split, options.before, 0, size=256)
        x, y = read(options.data / "cifar100.npz", "test", options.device)
        print(
            f"pretrained: {(logits(net.eval(), x).argmax(1) == y.cpu()).double().mean():.3f} of CIFAR-100", flush=True
        )
        torch.save(net.state_dict(), file)
    return file


def build(method: str, device: str, state: dict[str, Tensor]) -> nn.Module:
    """The pretrained network with a new last layer, and what a method may change."""
    net = network(100)
    net.load_state_dict(state)
    *_, head = (name for name, module in net.named_modules() if isinstance(module, nn.Linear))
    setattr(net, head, nn.Linear(net.get_submodule(head).in_features, 10))
    norms = [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    dense = [head, *(norms if "BitFit" in method else [])]
    net = net.to(device)
    if method in ("SHiRA", "adapt", "adapt, and BitFit"):
        net = gossamer.adapt(net, DENSITY, targets="conv", dense=dense)
    elif method != "full":
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.rpartition(".")[0] in dense)
    return net.train(method != "last layer")  # whose features stay what they are


def trained(options: Any, method: str, lr: float, seed: int) -> Path:
    """The logits of a training; what only chooses sees the held-out images alone."""
    file = Path(options.runs) / f"{method}-{lr}-{seed}-{options.n_train}-{options.steps}.pt"
    if file.exists():
        return file
    torch.manual_seed(1000 + seed)
    parts = load(options.data, options.n_train, options.device)
    net = build(method, options.device, torch.load(options.runs / "pretrained.pt", map_location="cpu"))
    started, subspace = time.perf_counter(), None
    optimizer = torch.optim.AdamW([one for one in net.parameters() if one.requires_grad], lr=lr, weight_decay=0.0)
    if method == "SHiRA":
        for weight in sparse_weights(net).values():
            weight.noisy = False
    elif sparse_weights(net):
        gossamer.Curvature(net, optimizer, n_data=options.n_train)
        subspace = gossamer.Subspace(net, optimizer, total_steps=options.steps, update_period=options.steps // 30)
    fit(net, optimizer, parts["train"], options.steps, seed, subspace)
    print(f"{file.stem}: {time.perf_counter() - started:.0f} s", flush=True)
    n_bytes = sum(one.nbytes for one in net.parameters() if one.requires_grad)
    if subspace is not None:
        n_bytes = gossamer.save(net, file.with_suffix(".safetensors")).stat().st_size
    means = gossamer.draw(net, at_mean=True) if sparse_weights(net) else net
    shown = {method: [means]}
    if subspace is not None:
        drawn = [gossamer.draw(net, torch.Generator().manual_seed(n)) for n in range(N_DRAWS)]
        shown = {method: drawn, f"{method}, at the means": [means]}
    sets = ["held"] if seed == TUNING else ["held", "test", "outside"]
    found = {
        name: [torch.stack([logits(one.eval(), parts[part][0]) for one in nets]) for part in sets]
        for name, nets in shown.items()
    }
    torch.save({"logits": found, "bytes": n_bytes}, part := file.with_suffix(".part"))
    return Path(part.replace(file))


@torch.no_grad()
def logits(net: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([net(part) for part in x.split(500)]).cpu()


def scores(options: Any, name: str, files: list[Path]) -> dict[str, float]:
    """Metrics of one training or of several together."""
    parts = load(options.data, options.n_train, options.device)
    return scored(name, files, parts["held"][1].cpu(), parts["test"][1].cpu())


def rows_of(pool: Executor, options: Any) -> dict[str, Any]:
    """Choose a rate for each method, train with it, and score."""
    tried = {m: [pool.submit(trained, options, m, lr, TUNING) for lr in rates] for m, rates in RATES.items()}
    wanted = {}
    for method, rates in RATES.items():
        nll = [scores(options, method, [one.result()])["val_nll_scaled"] for one in tried[method]]
        lr = rates[nll.index(min(nll))]
        print(method, dict(zip(rates, nll, strict=True)), flush=True)
        seeds = range(max(options.seeds, MEMBERS.get(method, 0)))
        wanted[method] = lr, nll, [pool.submit(trained, options, method, lr, seed) for seed in seeds]
    rows = {}
    for method, (lr, nll, runs) in wanted.items():
        files = [one.result() for one in runs]
        kept, n = torch.load(files[0]), MEMBERS.get(method, 0)
        for name in kept["logits"]:
            shown = {name: [[file] for file in files[: options.seeds]]} | ({f"{n} {name}": [files]} if n else {})
            for row, groups in shown.items():
                found = [scores(options, name, group) for group in groups]
                rows[row] = {"lr": lr, "tried": nll, "bytes": kept["bytes"] * len(groups[0]), "seeds": found}
                print(row, found[0], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--n-train", type=int, default=5000)
    parser.add_argument("--before", type=int, default=4000, help="steps on CIFAR-100")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    one_thread()
    pretrained(options)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), one_thread) as pool:
        rows = rows_of(pool, options)
    if options.json:
        write(options.json, {"rows": rows, "tables": {"moved-cifar": table(rows)}})


if __name__ == "__main__":
    main()
