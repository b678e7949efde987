"""Fused local reparameterization on a GPU: is it right, what does each layer take, what does a training step take?

    python -m benchmarks.fused --out runs/fused [--batch 128] [--sections errors times steps]

For every layer of ResNet-18 on CIFAR images: errors of each tile against float64, milliseconds of each tile and of
cuDNN with the work around it, and the plan that follows. Then the captured training step of SSVI with and without the
fused kernels: median and quartiles. Everything is printed and written to ``fused.json``, section by section; what fails
is reported there, and the rest goes on. ``--dry`` runs it all on a CPU, on tiny shapes, in Triton's interpreter: its
times mean nothing.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch
import torch.nn.functional as F

from benchmarks.kept import FUSED
from gossamer import methods
from gossamer.kernels.fused import Geometry, Tile, choice, compile_all, load
from gossamer.kernels.fused.geometry import by_channels, tiles_to_try
from gossamer.likelihoods import Categorical
from gossamer.models.resnet import resnet18
from gossamer.train.capture import CapturedSteps
from gossamer.types import Task

SECTIONS = ("errors", "times", "steps")
# Relative errors that rounding inputs and outputs to bfloat16 explains: 2⁻⁹ each, a few of them in a row.
TOLERANCE = 0.02
STANDARD_ERRORS = 5  # that mean and variance of the noise may be off
N_SAMPLES, N_STEPS = 30, 10


def layers(batch: int) -> dict[str, tuple[int, Geometry]]:
    """The convolutions of ResNet-18 by name: how many there are, and their sizes."""
    found = {
        "stem 3-64": (1, Geometry(batch, 3, 32, 32, 64, (3, 3), 1, (1, 1))),
        "3x3 64": (4, Geometry(batch, 64, 32, 32, 64, (3, 3), 1, (1, 1))),
    }
    for n_in, size in ((64, 32), (128, 16), (256, 8)):
        n_out, small = 2 * n_in, size // 2
        found[f"3x3/2 {n_in}-{n_out}"] = (1, Geometry(batch, n_in, size, size, n_out, (3, 3), 2, (1, 1)))
        found[f"1x1/2 {n_in}-{n_out}"] = (1, Geometry(batch, n_in, size, size, n_out, (1, 1), 2, (0, 0)))
        found[f"3x3 {n_out}"] = (3, Geometry(batch, n_out, small, small, n_out, (3, 3), 1, (1, 1)))
    return found


def tiny(batch: int) -> dict[str, tuple[int, Geometry]]:
    """Layers that the interpreter can compute."""
    return {
        "stem": (1, Geometry(batch, 3, 4, 4, 8, (3, 3), 1, (1, 1))),
        "3x3/2": (1, Geometry(batch, 24, 4, 4, 8, (3, 3), 2, (1, 1))),
    }


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """‖actual - expected‖ / ‖expected‖."""
    return float((actual.double() - expected).norm() / expected.norm())


def errors_of(geometry: Geometry, dtype: torch.dtype, device: str) -> Iterator[tuple[str, Tile, float]]:
    """Error of each tile of each part, on fresh random numbers."""
    from gossamer.kernels.fused.tiles import forward, input_gradient

    options = {"dtype": dtype, "device": device}
    x = by_channels(torch.randn((geometry.batch, geometry.n_in, geometry.height, geometry.width), **options).relu())
    shape = (geometry.n_out, geometry.n_in, *geometry.kernel)
    mean = by_channels(torch.randn(shape, **options) * 0.05)
    variance = by_channels(torch.rand(shape, **options) * 1e-3)
    noise, dy = (by_channels(torch.randn(geometry.output_shape, **options)) for _ in range(2))
    seed = torch.full((1,), 7, dtype=torch.int64, device=device)
    leaves = [tensor.double().requires_grad_() for tensor in (x, mean, variance)]
    place = {"stride": geometry.stride, "padding": geometry.padding}
    m, v = F.conv2d(leaves[0], leaves[1], **place), F.conv2d(leaves[0] ** 2, leaves[2], **place)
    y = m + v.sqrt() * noise.double()
    (dx,) = torch.autograd.grad(y, leaves[:1], dy.double())
    slope = (noise.double() / (2 * v.sqrt())).detach()

    def drawn(tile: Tile) -> float:
        """How far mean and variance of the noise are from 0 and 1, in standard errors."""
        out = forward(x, mean, variance, None, None, seed, geometry=geometry, tile=tile)[0]
        eps = (out.double() - m) / v.sqrt()
        n = eps.numel()
        return float(max(eps.mean().abs() * n**0.5, (eps.var() - 1).abs() * (n / 2) ** 0.5))

    def both(tile: Tile) -> float:
        ours = forward(x, mean, variance, None, noise, None, geometry=geometry, tile=tile)
        return max(relative(ours[0], y), relative(ours[1], slope))

    low = by_channels(slope.to(dtype))

    def of_input(tile: Tile) -> float:
        return relative(input_gradient(dy, low, x, mean, variance, geometry=geometry, tile=tile), dx)

    tiles = tiles_to_try("forward", geometry)
    todo: list[tuple[str, Callable[[Tile], float], list[Tile]]] = [
        ("forward", both, tiles),
        ("noise", drawn, tiles),
        ("input gradient", of_input, tiles_to_try("input_gradient", geometry)),
    ]
    for part, error, candidates in todo:
        for tile in candidates:
            try:
                yield part, tile, error(tile)
            except Exception:
                print(f"  {part} {tuple(tile)} fails\n{traceback.format_exc(limit=3)}")
                yield part, tile, math.inf


def check_errors(found: dict[str, tuple[int, Geometry]], dtype: torch.dtype, device: str, batch: int) -> dict[str, Any]:
    """The worst error of each part of each layer."""
    report: dict[str, Any] = {}
    for name, (_, geometry) in found.items():
        small = Geometry(**vars(geometry) | {"batch": min(batch, geometry.batch)})
        rows = list(errors_of(small, dtype, device))
        report[name] = [{"part": part, "tile": list(tile), "error": error} for part, tile, error in rows]
        worst = {part: max(error for other, _, error in rows if other == part) for part, _, _ in rows}
        most = {part: STANDARD_ERRORS if part == "noise" else TOLERANCE for part in worst}
        bad = [part for part, error in worst.items() if not error < most[part]]
        print(f"  {name:16}", *(f"{part} {error:.1e}" for part, error in worst.items()), "WRONG: " if bad else "", *bad)
    return report


def time_layers(found: dict[str, tuple[int, Geometry]], dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Milliseconds of everything that is tried, and what is chosen."""
    report: dict[str, Any] = {}
    sums = {"cudnn": 0.0, "chosen": 0.0}
    for name, (count, geometry) in found.items():
        try:
            times = choice.measure(geometry, dtype, torch.device(device))
        except Exception:
            print(f"  {name} fails\n{traceback.format_exc(limit=3)}")
            report[name] = {"error": traceback.format_exc()}
            continue
        plan = choice.best_plan(times)
        if device != "cpu":
            choice._chosen[(geometry, dtype, torch.cuda.get_device_name(device), False)] = plan
        alone = {part: by_tile[None] for part, by_tile in times.items()}
        report[name] = {"count": count, "cudnn": alone, "plan": plan.name} | {
            part: [{"tile": list(tile), "ms": ms} for tile, ms in by_tile.items() if tile]
            for part, by_tile in times.items()
        }
        both = sum(alone.values()), sum(times[part][tile] for part, tile in vars(plan).items())
        report[name] |= {"ms_cudnn": both[0], "ms_chosen": both[1]}
        sums["cudnn"] += count * both[0]
        sums["chosen"] += count * both[1]
        print(f"  {name} (x {count}): cudnn {both[0]:.3f} ms, {plan.name} {both[1]:.3f} ms")
        for part, by_tile in times.items():
            best = sorted((ms, _short(tile)) for tile, ms in by_tile.items() if tile)
            print(f"    {part:16} cudnn {alone[part]:.4f} |", *(f"{tile} {ms:.4f}" for ms, tile in best))
    print(f"  sum over all layers: cudnn {sums['cudnn']:.3f} ms, chosen {sums['chosen']:.3f} ms")
    return report | {"sums": sums}


def _short(tile: Tile) -> str:
    return (
        f"{tile.rows}x{tile.columns}x{tile.depth}w{tile.warps}s{tile.stages}" + "t" * tile.turned + "+rng" * tile.draws
    )


def time_steps(batch: int, device: str, dry: bool) -> dict[str, Any]:
    """Milliseconds of a captured training step of SSVI, with and without the fused kernels."""
    torch.manual_seed(0)
    x = torch.randint(0, 256, (4 * batch, 3, 32, 32), dtype=torch.uint8)
    split = (x, torch.randint(0, 10, (4 * batch,)))
    task = Task(split, split, split, Categorical(), 10, transform=_scale)
    report: dict[str, Any] = {}
    for fused in ("auto", "never"):
        try:
            report[fused] = _time_steps(task, batch, device, fused, dry)
            print(f"  fused {fused}:", {key: value for key, value in report[fused].items() if key != "losses"})
            print("    losses", [round(loss, 3) for loss in report[fused]["losses"]])
        except Exception:
            print(f"  fused {fused} fails\n{traceback.format_exc()}")
            report[fused] = {"error": traceback.format_exc()}
    return report


def _scale(x: torch.Tensor) -> torch.Tensor:
    return x.float() / 128 - 1


def _time_steps(task: Task, batch: int, device: str, fused: Any, dry: bool) -> dict[str, Any]:
    torch.manual_seed(1)
    network = resnet18()
    method = methods.build("ssvi", task, 10_000, density=0.05, noise="local").suited_to(network)
    model = method.prepare(network).to(device).train()
    optimizer = method.optimizer(model)
    method.rules(model, optimizer)  # before the graphs, which keep T and δ
    dtype = torch.float32 if dry else torch.bfloat16
    steps = CapturedSteps(
        model, optimizer, task, method.penalty, dtype, captures=not dry, compiles=not dry, fused=fused
    )
    batches = [(x.to(device), y.to(device)) for x, y in zip(*(part.split(batch) for part in task.train), strict=True)]
    rates = [group["lr"] for group in steps.on_device.options]

    def advance(i: int) -> None:
        steps.set_rates(rates)
        steps.gradients(*batches[i % len(batches)], i + 1)
        steps.apply()

    start = time.perf_counter()
    losses = []
    for i in range(1 if dry else 20):
        advance(i)
        losses.append(float(steps.values[0]))
    seconds = time.perf_counter() - start
    samples = [_clock(advance, dry) for _ in range(1 if dry else N_SAMPLES)]
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    plans = [weight.dense_copy.plan.name for weight in steps.working.weights]
    memory = 0.0 if dry else torch.cuda.max_memory_allocated() / 2**30
    steps.close()
    counts = {name: plans.count(name) for name in dict.fromkeys(plans)}
    return {
        "ms": quartiles[1],
        "quartiles": [quartiles[0], quartiles[2]],
        "setup_seconds": seconds,
        "peak_gib": memory,
        "plans": counts,
        "losses": losses,
    }


def _clock(advance: Callable[[int], None], dry: bool) -> float:
    if dry:
        start = time.perf_counter()
        advance(0)
        return 1000 * (time.perf_counter() - start)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(N_STEPS):
        advance(i)
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / N_STEPS


def main() -> None:
    """Run the sections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for fused.json")
    parser.add_argument("--batch", type=int, default=128, help="examples per step")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--dry", action="store_true", help="on a CPU, on tiny shapes, in Triton's interpreter")
    given = parser.parse_args()
    device, dtype = ("cpu", torch.float32) if given.dry else ("cuda", torch.bfloat16)
    found = tiny(2) if given.dry else layers(given.batch)
    if given.dry:
        choice.milliseconds = _milliseconds_of_one
        torch.cuda.device = lambda device: torch.no_grad()  # a context that does nothing here
    given.out.mkdir(parents=True, exist_ok=True)
    load()
    import triton

    torch.manual_seed(0)
    name = "cpu" if given.dry else torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    environment = {"gpu": name, "python": platform.python_version(), "versions": versions, "date": str(date.today())}
    report: dict[str, Any] = {"kind": FUSED, "environment": environment, "batch": given.batch, "seconds": {}}

    def section(key: str, run: Callable[[], Any]) -> None:
        start = time.perf_counter()
        print(f"{key}:", flush=True)
        try:
            report[key] = run()
        except Exception:
            report[key] = {"error": traceback.format_exc()}
            print(report[key]["error"])
        report["seconds"][key] = time.perf_counter() - start
        print(f"  {report['seconds'][key]:.1f} s", flush=True)
        (given.out / "fused.json").write_text(json.dumps(report, indent=1))

    if not given.dry:
        shapes = [geometry for _, geometry in found.values()]
        section("compiling", lambda: compile_all(shapes, dtype, torch.device(device)))
    if "times" in given.sections:
        section("times", lambda: time_layers(found, dtype, device))
    if "errors" in given.sections:
        section("errors", lambda: check_errors(found, dtype, device, 16))
    if "steps" in given.sections:
        section("steps", lambda: time_steps(2 if given.dry else given.batch, device, given.dry))


def _milliseconds_of_one(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
