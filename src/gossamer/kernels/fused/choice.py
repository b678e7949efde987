"""Chooses the parts of a layer's noisy product to fuse: those that a measurement on the device at hand finds faster.

It happens when a training is set up, before anything is compiled or captured, once per process and shape of a layer.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

import torch

from gossamer.kernels.fused.geometry import Geometry, Plan, Tile, by_channels, tiles_to_try
from gossamer.kernels.fused.product import torch_gradient

__all__ = ["Fused", "Times", "best_plan", "check_fused", "choose", "compile_all", "measure", "why_not"]

Fused = Literal["auto", "always", "never"]
Times = dict[str, dict[Tile | None, float]]  # milliseconds of each part by tile, and by torch (None)

# Below this a layer takes a few microseconds however it is computed, and setting up would cost more than it brings.
LEAST_PRODUCTS = 2**24

_chosen: dict[tuple[Geometry, torch.dtype, str, bool], Plan] = {}


def choose(geometry: Geometry, dtype: torch.dtype, device: torch.device, *, fused: Fused = "auto") -> Plan:
    """The plan of a layer; ``"always"`` fuses every part that a kernel can compute, ``"never"`` none."""
    if fused == "never" or why_not(geometry, dtype, device) is not None:
        return Plan()
    key = (geometry, dtype, torch.cuda.get_device_name(device), fused == "always")
    if key not in _chosen:
        _chosen[key] = best_plan(measure(geometry, dtype, device), always=fused == "always")
    return _chosen[key]


def why_not(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the fused kernels do not compute a layer, if they do not."""
    g = geometry
    products = g.rows * g.n_out * g.n_in * g.kernel[0] * g.kernel[1]
    if device.type != "cuda":
        return "it is not on a GPU"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "the GPU has no tensor cores for bfloat16"
    if dtype != torch.bfloat16 or g.n_out % 8:
        return "its precision is not bfloat16, or its outputs are not a multiple of 8"
    if products < LEAST_PRODUCTS:
        return "it is too small"
    # Offsets are 32-bit numbers.
    return "it is too large" if max(g.batch * g.n_in * g.height * g.width, g.rows * g.n_out) >= 2**31 else None


def check_fused(fused: str) -> None:
    """Raise for any other word."""
    if fused not in get_args(Fused):
        raise ValueError(f"fused must be one of {', '.join(map(repr, get_args(Fused)))}; got {fused!r}")


def best_plan(times: Times, always: bool = False) -> Plan:
    """The fastest of each part; ``always`` counts no time of torch's."""
    found = {}
    for part, by_tile in times.items():
        finite = {tile: ms for tile, ms in by_tile.items() if math.isfinite(ms) and not (always and tile is None)}
        found[part] = min(finite, key=finite.__getitem__, default=None)
    return Plan() if found["forward"] is None else Plan(**found)  # what the backward pass reads is written forward


def measure(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> Times:
    """Milliseconds of each part by torch and by every tile."""
    with torch.no_grad(), torch.cuda.device(device), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        works, times = _works(geometry, dtype, device), Times()
        # After a fused forward pass, x² has to be made again for the gradient of the variances.
        extra = {"forward": milliseconds(works["square"]), "input_gradient": 0.0}
        for part, more in extra.items():
            tiles = tiles_to_try(part, geometry)
            times[part] = {None: milliseconds(works[part]) if tiles else 0.0}
            times[part] |= {tile: _time(works[part], tile) + more for tile in tiles}
    return times


def compile_all(geometries: Iterable[Geometry], dtype: torch.dtype, device: torch.device) -> None:
    """Compile everything that :func:`measure` will try, on all cores at once rather than one by one."""
    import triton

    if not hasattr(triton, "AsyncCompileMode"):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
    with (
        torch.no_grad(),
        torch.cuda.device(device),
        ThreadPoolExecutor(min(8, cores)) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),  # a failure is reported when the tile is timed
    ):
        for geometry in geometries:
            works = _works(geometry, dtype, device)
            for part in ("forward", "input_gradient"):
                for tile in tiles_to_try(part, geometry):
                    works[part](tile, only_compiles=True)


def _works(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> dict[str, Callable[..., object]]:
    """Each part on random tensors, by a tile, or by torch with the work around it that a compiled graph leaves.

    The kernel that makes the input writes its squares too, so only the write counts; one kernel reads mean, variance
    and noise and writes the output; the two terms of the input's gradient are read instead of one.
    """
    from gossamer.kernels.fused import tiles

    g, place = geometry, [geometry.stride, *geometry.padding]
    options: Any = {"dtype": dtype, "device": device}
    x = by_channels(torch.randn((g.batch, g.n_in, g.height, g.width), **options))
    mean, variance = (by_channels(torch.rand((g.n_out, g.n_in, *g.kernel), **options)) for _ in range(2))
    noise, dy, slope, out = (by_channels(torch.randn(g.output_shape, **options)) for _ in range(4))
    squares, dv, dx, seed = x * x, dy * slope, torch.empty_like(x), torch.zeros(1, dtype=torch.int64, device=device)

    def forward(tile: Tile | None = None, only_compiles: bool = False) -> None:
        if tile is not None:
            given = None if tile.draws else noise
            tiles.forward(x, mean, variance, None, given, seed, geometry=g, tile=tile, only_compiles=only_compiles)
            return
        noise.normal_()
        squares.fill_(1.0)
        m, v = (torch.conv2d(a, w, None, g.stride, g.padding) for a, w in ((x, mean), (squares, variance)))
        torch.addcmul(m, v, noise, out=out)

    def input_gradient(tile: Tile | None = None, only_compiles: bool = False) -> None:
        if tile is not None:
            tiles.input_gradient(dy, slope, x, mean, variance, geometry=g, tile=tile, only_compiles=only_compiles)
            return
        torch_gradient(dy, x, mean, place, 0)
        torch_gradient(dv, x, variance, place, 0)
        dx.copy_(x)

    square = {"square": lambda: torch.mul(x, x, out=squares)}
    return square | {"forward": forward, "input_gradient": input_gradient}


def _time(run: Callable[..., object], tile: Tile) -> float:
    try:
        return milliseconds(lambda: run(tile))
    except Exception as error:  # whatever a compiler or a device says about a tile that does not suit it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        logging.getLogger("gossamer").warning(f"a fused kernel with {tile} does not run here: {reason}")
        return math.inf


def milliseconds(run: Callable[[], object]) -> float:
    """Time of one ``run`` on the current GPU, from graphs of many, so that no launches are timed."""
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(run, rep=1, return_mode="min"))
