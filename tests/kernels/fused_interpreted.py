"""What the fused kernels compute in Triton's interpreter, which has to be chosen before Triton is imported.

Run as a script by ``test_fused.py``: prints one JSON object.
"""

import json
import math
import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from torch import nn

import gossamer
from gossamer.kernels import ConvMap, LinearMap, fused, perturb
from gossamer.kernels.fused import choice
from gossamer.kernels.fused.geometry import by_channels
from gossamer.kernels.fused.tiles import forward
from gossamer.train.capture import FlatWeights, flat_weights

TILE = fused.Tile(32, 16, 16, 4, 2)
WIDE = fused.Tile(16, 32, 32, 4, 2)
TALL = fused.Tile(128, 32, 16, 4, 2)
OWN = fused.Plan(TILE, TILE)
TURNED = fused.Plan(*(TILE._replace(turned=True),) * 2)
CASES = {  # x, outputs, kernel, stride, padding, floor, plan
    "3x3": ((1, 20, 7, 6), 24, 3, 1, 1, None, OWN),
    "3x3 strided": ((2, 20, 7, 6), 24, 3, 2, 1, None, OWN),
    "3x3 strided, even": ((1, 16, 8, 8), 16, 3, 2, 1, 1e-2, fused.Plan(WIDE, WIDE)),
    "turned tiles": ((1, 20, 5, 6), 24, 3, 2, 1, None, TURNED),
    "images, turned": ((1, 3, 4, 4), 8, 3, 1, 1, None, TURNED),
    "images": ((2, 3, 6, 6), 16, 3, 1, 1, None, OWN),
    "1x1 strided": ((2, 17, 5, 4), 8, 1, 2, 0, None, OWN),
    "5x5, stride 3": ((1, 8, 11, 9), 8, 5, 3, 2, None, OWN),
    "no padding": ((1, 8, 5, 5), 8, 3, 1, 0, 1e-3, OWN),
    "left to torch": ((2, 8, 4, 4), 8, 3, 1, 1, None, fused.Plan(TILE)),
    "linear": ((3, 5, 20), 12, 0, 1, 0, None, OWN),
}


@triton.jit
def _count(out, n):
    total = 0
    for i in range(n):
        total += i
    tl.store(out, total)


def works() -> str | None:
    """Why the interpreter cannot run a loop here, if it cannot."""
    try:
        _count[(1,)](torch.zeros(1, dtype=torch.int64), 3)
    except Exception as error:
        return f"Triton's interpreter does not work with the NumPy that is installed: {error}"
    return None


def errors(shape, n_out, size, stride, padding, floor, plan, compiles=False) -> list[float]:
    """Largest errors of output and gradients (x, mean, variance, bias) over the largest entry, against float64."""
    torch.manual_seed(sum(shape))
    if size:
        weight_map, weight = ConvMap((stride,) * 2, (padding,) * 2, (1, 1)), (n_out, shape[1], size, size)
    else:
        weight_map, weight = LinearMap(), (n_out, shape[-1])
    leaves = [torch.randn(shape), torch.randn(weight), torch.rand(weight), torch.randn(n_out)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    noise = torch.randn(weight_map(leaves[0], leaves[1]).shape)

    def run(*leaves):
        return fused.noisy_product(*leaves, weight_map, plan=plan, noise=noise, floor=floor)

    y = torch.compile(run, backend="aot_eager", fullgraph=True)(*leaves) if compiles else run(*leaves)
    dy = torch.randn_like(y)
    ours = (y, *torch.autograd.grad(y, leaves, dy))
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    x, mean, variance, bias = exact
    expected = perturb(weight_map(x, mean, bias), weight_map(x * x, variance), noise.double(), floor)
    theirs = (expected, *torch.autograd.grad(expected, exact, dy.double()))
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True)]


def draw(seed: int, layer: int = 0, tile: fused.Tile = TALL) -> torch.Tensor:
    """Standard normals ``(rows, 30)``: x of ones, variances that sum to one; 30 is no multiple of 4."""
    geometry = fused.Geometry(1, 16, 32, 32, 30, (1, 1), 1, (0, 0))
    x, weight = by_channels(torch.ones(1, 16, 32, 32)), torch.full((30, 16, 1, 1), 1 / 16)
    numbers = torch.full((1,), seed, dtype=torch.int64)
    arguments = (x, torch.zeros_like(weight), weight, None, None, numbers)
    y, slope = forward(*arguments, geometry=geometry, tile=tile, layer=layer)
    assert torch.allclose(slope, y / 2)
    return y.permute(0, 2, 3, 1).reshape(-1, 30).double()


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """In standard errors."""
    return float((a * b).mean() * a.numel() ** 0.5)


def noise() -> dict:
    """Deviations from independent standard normals, each in standard errors; and what must be the same or differ."""
    eps, n = draw(2**40 + 5), 32 * 32 * 30
    other, layer = draw(2**41 + 5), draw(2**40 + 5, layer=1)
    # Moments E εᵏ of a standard normal, and the variance of εᵏ.
    known = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10170)}
    scores = {f"moment {k}": float(((eps**k).mean() - e) / (v / n) ** 0.5) for k, (e, v) in known.items()}
    tail = 0.0026997960632601866  # beyond 3
    scores["tail"] = float(((eps.abs() > 3).double().mean() - tail) / (tail / n) ** 0.5)
    for lag in (1, 2, 3, 4):
        scores[f"columns {lag} apart"] = correlation(eps[:, lag:], eps[:, :-lag])
        scores[f"squares of columns {lag} apart"] = correlation(eps[:, lag:] ** 2 - 1, eps[:, :-lag] ** 2 - 1) / 2
        scores[f"rows {lag} apart"] = correlation(eps[lag:], eps[:-lag])
    scores["seeds"], scores["layers"] = correlation(eps, other), correlation(eps, layer)
    same = torch.equal(eps, draw(2**40 + 5, tile=fused.Tile(64, 16, 16, 4, 2)))
    return {"scores": scores, "same in other tiles": same, "other seed": not torch.equal(eps, other)}


def zero_variance() -> dict:
    """Output and slope where the input is zero: the mean and 0, nothing infinite."""
    geometry = fused.Geometry(1, 8, 4, 4, 8, (1, 1), 1, (0, 0))
    x = torch.zeros(1, 8, 4, 4)
    x[..., 0] = 1e-16  # variances below the floor count as zero, too
    x[..., 1] = 1.0
    weight, eps = torch.ones(8, 8, 1, 1), by_channels(torch.ones(1, 8, 4, 4))
    y, slope = forward(by_channels(x), weight, weight, None, eps, None, geometry=geometry, tile=TILE)
    expected = perturb(x.sum(1, keepdim=True).expand_as(y), (x * x).sum(1, keepdim=True).expand_as(y), eps)
    return {
        "error": float((y - expected).abs().max()),
        "slopes": slope[0, 0, 0].tolist(),
        "expected": [0, 0.5 / 8**0.5, 0, 0],
    }


def measured() -> dict:
    """Names of the chosen plans, and which tiles were timed, with the interpreter's times in place of a GPU's."""

    def seconds(run) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    choice.milliseconds = seconds
    torch.cuda.device = lambda _: torch.no_grad()  # a context that does nothing here
    found = {}
    for name, geometry in (
        ("image", fused.Geometry(1, 3, 4, 4, 8, (3, 3), 1, (1, 1))),
        ("layer", fused.Geometry(1, 16, 4, 4, 8, (3, 3), 2, (1, 1))),
    ):
        times = choice.measure(geometry, torch.float32, torch.device("cpu"))
        tried = {part: len(by_tile) - 1 for part, by_tile in times.items()}
        found[name] = {"tried": tried, "always": choice.best_plan(times, always=True).name}
        found[name]["failed"] = any(math.isinf(ms) for by_tile in times.values() for ms in by_tile.values())
    return found


def network() -> dict:
    """A working copy whose products are all fused, against the same one without: outputs, gradients of the leaves."""
    flat_weights.why_not = lambda *_: None
    flat_weights.compile_all = lambda *_: None
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 4))
    working = FlatWeights(gossamer.bayesianize(model, density=0.5), torch.float32)
    x = torch.randn(3, 3, 4, 4)

    def gradients() -> list[torch.Tensor]:
        for leaf in working.leaves:
            leaf.grad = None
        y = model(x)
        y.pow(2).sum().backward()
        return [y.detach(), *(leaf.grad for leaf in working.leaves)]

    flat_weights.choose = lambda *_, **__: OWN
    working.prepare_noise(lambda: model(x), "auto").normal_()
    names = [weight.dense_copy.plan.name for weight in working.weights]
    ours = gradients()
    for weight in working.weights:
        weight.dense_copy.plan = fused.Plan()
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, gradients(), strict=True))
    flat_weights.choose = lambda *_, **__: fused.Plan(TILE._replace(draws=True))
    working._plans.clear()
    buffer = working.prepare_noise(lambda: model(x), "always")
    draws = []
    for _ in range(3):
        draws.append(gradients()[0].tolist())
        if len(draws) == 2:
            working.seed.random_()
    return {
        "plans": names,
        "error": error,
        "needs a buffer": buffer is not None,
        "same seed, same noise": draws[0] == draws[1],
        "other seed, other noise": draws[1] != draws[2],
    }


if __name__ == "__main__":
    fused.load()
    reason = works()
    if reason is not None:
        print(json.dumps({"skip": reason}))
        sys.exit()
    result = {"errors": {name: errors(*case) for name, case in CASES.items()}}
    result["compiled"] = {name: errors(*CASES[name], compiles=True) for name in ("3x3 strided, even", "left to torch")}
    result |= {"noise": noise(), "zero_variance": zero_variance(), "network": network(), "measured": measured()}
    print(json.dumps(result))
