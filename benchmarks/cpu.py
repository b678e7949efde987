"""What sparsity saves on a CPU: sparse layers and networks against dense local reparameterization and plain layers.

    python benchmarks/cpu.py [--quick] [--rounds 9] [--json FILE]

Everything alternates in one process, with one thread and its CPU time; medians, with the quartiles of the ratio. Dense
LRT is two dense products (the faster of two memory formats), a square root and noise that is given to it for free; the
sparse layer draws its own. In the networks dense LRT is this library at density 1.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossamer
from gossamer.kernels import library, use
from gossamer.models import mlp, resnet18

Run = Callable[[], object]
DENSITIES = (0.2, 0.1, 0.05, 0.02, 0.01)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear 784x1024": (lambda: nn.Linear(784, 1024), (784,)),
    "linear 1024x1024": (lambda: nn.Linear(1024, 1024), (1024,)),
    "conv 64@32x32": (lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), (64, 32, 32)),
    "conv 128@16x16": (lambda: nn.Conv2d(128, 128, 3, padding=1, bias=False), (128, 16, 16)),
    "conv 256@8x8": (lambda: nn.Conv2d(256, 256, 3, padding=1, bias=False), (256, 8, 8)),
    "conv 512@4x4": (lambda: nn.Conv2d(512, 512, 3, padding=1, bias=False), (512, 4, 4)),
    "conv 128@16x16 stride 2": (lambda: nn.Conv2d(128, 256, 3, 2, 1, bias=False), (128, 16, 16)),
    "conv 1x1 256@8x8": (lambda: nn.Conv2d(256, 256, 1, bias=False), (256, 8, 8)),
}


def alternate(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds of each, round by round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(rounds + 1):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            if i:
                times[name].append(1e3 * (time.thread_time() - start))
    return times


def dense_layer(layer: nn.Module, x: Tensor, lrt: bool, learns: bool) -> list[Run]:
    """One product, or two with noise; forward, or forward and backward; in both memory formats for images."""
    runs: list[Run] = []
    formats = [torch.contiguous_format] if x.dim() == 2 else [torch.contiguous_format, torch.channels_last]
    for memory in formats:
        weight = layer.weight.detach().to(memory_format=memory).requires_grad_(learns)
        variance = torch.rand_like(weight).mul_(1e-3).detach().requires_grad_(learns)
        own = x.to(memory_format=memory).detach().requires_grad_(learns)

        def product(x: Tensor, weight: Tensor) -> Tensor:
            if x.dim() == 2:
                return F.linear(x, weight)
            return F.conv2d(x, weight, None, layer.stride, layer.padding)

        noise = torch.randn_like(product(own, weight)).detach()

        def run(own: Tensor = own, weight: Tensor = weight, variance: Tensor = variance, noise: Tensor = noise) -> None:
            y = product(own, weight)
            if lrt:
                y = y + product(own * own, variance).sqrt() * noise
            if learns:
                leaves = [own, weight, variance] if lrt else [own, weight]
                torch.autograd.grad(y, leaves, noise)

        runs.append(run)
    return runs


def sparse_layer(layer: nn.Module, x: Tensor, learns: bool) -> Run:
    """A converted layer with its noise; the gradients are those of input, means and stds."""
    weight, own = layer.weight, x.clone().requires_grad_(learns)
    std = weight.std.detach().requires_grad_(learns)
    weight_map = getattr(layer, "map", None) or gossamer.kernels.LinearMap()
    where = (weight.support.position, weight.support.shape, weight_map)
    noise = torch.randn_like(layer(own)).detach()

    def run() -> None:
        y = gossamer.kernels.noisy_product(own, weight.mean, std, None, *where)
        if learns:
            torch.autograd.grad(y, [own, weight.mean, std], noise)

    return run


def measure_layer(name: str, batch: int, densities: tuple[float, ...], rounds: int) -> list[dict[str, object]]:
    build, shape = LAYERS[name]
    rows = []
    for learns in (False, True):
        torch.manual_seed(0)
        x = torch.randn(batch, *shape)
        runs: dict[str, Run] = {}
        for kind, lrt in (("dense LRT", True), ("plain", False)):
            for i, run in enumerate(dense_layer(build(), x, lrt, learns)):
                runs[f"{kind}/{i}"] = run
        for density in densities:
            layer = gossamer.bayesianize(build(), density=density, keep_dense=())
            runs[f"{density:g}"] = sparse_layer(layer, x, learns)
        with torch.set_grad_enabled(learns), use("sparse"):
            times = alternate(runs, rounds)
        what = "forward+backward" if learns else "forward"
        rows.append(summarize(f"{name}, batch {batch}, {what}", times, densities))
    return rows


def training_step(model: nn.Module, x: Tensor, y: Tensor, adam: bool) -> Run:
    bayesian = any(True for _ in gossamer.layers.sparse_weights(model))
    parameters = gossamer.param_groups(model) if bayesian else model.parameters()
    optimizer = torch.optim.Adam(parameters) if adam else torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if bayesian:
            loss = loss + gossamer.kl(model) / 50_000
        loss.backward()
        optimizer.step()

    return step


def prediction(model: nn.Module, x: Tensor) -> Run:
    model.eval()

    def predict() -> None:
        with torch.no_grad():
            model(x)

    return predict


def measure_network(
    title: str, build: Callable[[], nn.Module], x: Tensor, kind: str, densities: tuple[float, ...], rounds: int
) -> dict[str, object]:
    y = torch.randint(10, (len(x),))
    runs: dict[str, Run] = {}
    for name, density in (("plain", None), ("dense LRT", 1.0), *((f"{d:g}", d) for d in densities)):
        torch.manual_seed(0)
        model = build() if density is None else gossamer.bayesianize(build(), density=density)
        runs[f"{name}/0"] = prediction(model, x) if kind == "predict" else training_step(model, x, y, kind == "adam")
    times = alternate(runs, rounds)
    return summarize(
        title, {name.removesuffix("/0") if name[0].isdigit() else name: t for name, t in times.items()}, densities
    )


def summarize(title: str, times: dict[str, list[float]], densities: tuple[float, ...]) -> dict[str, object]:
    """Medians, and for each density the ratios to dense LRT and to the plain layer, the faster format of each."""
    best = {}
    for kind in ("dense LRT", "plain"):
        best[kind] = min((t for name, t in times.items() if name.startswith(kind)), key=statistics.median)
    row: dict[str, object] = {"what": title, **{f"{kind} ms": statistics.median(t) for kind, t in best.items()}}
    for density in densities:
        own = times[f"{density:g}"]
        ratios = sorted(dense / sparse for dense, sparse in zip(best["dense LRT"], own, strict=True))
        quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        row[f"{density:g}"] = {
            "ms": statistics.median(own),
            "vs dense LRT": quarters,
            "vs plain": statistics.median(plain / sparse for plain, sparse in zip(best["plain"], own, strict=True)),
        }
    cells = [f"{d:.0%} " + "{1:.1f}x [{0:.1f}-{2:.1f}]".format(*row[f"{d:g}"]["vs dense LRT"])
             + f" ({row[f'{d:g}']['vs plain']:.1f}x)" for d in densities]  # fmt: skip
    print(f"{title:52s} {row['dense LRT ms']:8.2f} ms | {row['plain ms']:8.2f} ms | " + "  ".join(cells), flush=True)
    return row


def bytes_of(model: nn.Module, n_moments: int) -> tuple[int, int]:
    """Bytes of parameters, gradients and optimizer state; bytes of a checkpoint."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return parameters * (2 + n_moments), sum(t.numel() * t.element_size() for t in model.state_dict().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="the rows that have bars, few rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 5 if options.quick else options.rounds
    densities = (0.1, 0.05) if options.quick else DENSITIES
    print(f"native kernels: {library.LIBRARY_NAME}; torch {torch.__version__}; one thread, CPU time, {rounds} rounds")
    print("times: dense LRT | plain; ratios to dense LRT, median [quartiles], in brackets to plain\n")
    rows: list[dict[str, object]] = []
    cells = [("linear 1024x1024", 128), *((name, 32) for name in list(LAYERS)[2:6])]
    if not options.quick:
        cells = [(name, batch) for name in LAYERS for batch in (1, 32, 128) if batch < 128 or "linear" in name]
    for name, batch in cells:
        rows += measure_layer(name, batch, densities, rounds)
    print()
    few = max(3, rounds // 3)
    images, digits = torch.randn(32, 3, 32, 32), torch.randn(128, 784)
    networks = [
        ("MLP 784-1024-1024-10 step, batch 128", lambda: mlp(784, (1024, 1024)), digits, "adam", rounds),
        ("ResNet-18 prediction, batch 1", resnet18, images[:1], "predict", rounds),
        ("ResNet-18 step, batch 32", resnet18, images, "sgd", few),
    ]
    for title, build, x, kind, n in networks:
        rows.append(measure_network(title, build, x, kind, densities, n))
    dense = bytes_of(gossamer.bayesianize(resnet18(), density=1.0), 1)
    for density in densities:
        own = bytes_of(gossamer.bayesianize(resnet18(), density=density), 1)
        shares = [o / d for o, d in zip(own, dense, strict=True)]
        what = f"parameters, gradients and momentum {shares[0]:.4f}, checkpoint {shares[1]:.4f} of dense LRT"
        print(f"ResNet-18 at {density:.0%}: {what}")
        rows.append({"what": f"bytes at {density:g}", "training": shares[0], "checkpoint": shares[1]})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
