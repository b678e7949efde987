"""Which parts of a layer's noisy product are fused: those that a measurement on the device at hand finds faster.

It happens when a training is set up, before anything is compiled or captured, once for each shape of a layer in a
process. What the alternatives are is in ``plans``, what exactly is timed in ``works``.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from gossamer.kernels.fused.candidates import Works
from gossamer.kernels.fused.geometry import Geometry
from gossamer.kernels.fused.plans import Plan, Tile, forward_tiles, input_gradient_tiles, weight_gradient_tiles
from gossamer.kernels.fused.timing import milliseconds

__all__ = ["Fused", "Times", "check_fused", "choose", "compile_all", "measure", "why_not"]

Fused = Literal["auto", "always", "never"]

# Below this a layer takes a few microseconds however it is computed, and setting up would cost more than it brings.
LEAST_PRODUCTS = 2**24
TRIES = 2  # of the fastest forward tiles: they are timed once more, drawing the noise themselves

_chosen: dict[tuple[Geometry, torch.dtype, str, bool], Plan] = {}


@dataclass
class Times:
    """Milliseconds of the parts of a layer: of torch's, and of the fused ones by tile; infinite for one that fails."""

    torch: dict[str, float] = field(default_factory=dict)
    forward: dict[Tile, float] = field(default_factory=dict)
    input_gradient: dict[Tile, float] = field(default_factory=dict)
    weight_gradients: dict[Tile, float] = field(default_factory=dict)

    def plan(self, always: bool = False) -> Plan:
        """The fastest whole: forward and both gradients together, since some work is shared by them.

        Example:
            >>> tile, alone = Tile(128, 64, 64, 4, 3), {"forward": 3.0, "input": 2.0, "weights": 2.0, "dv": 1.0}
            >>> times = Times(alone | {"square": 0.5}, {tile: 2.0}, {tile: 1.0}, {tile: 9.0})
            >>> times.plan().name
            'triton forward, input gradient'
        """
        forward = _best(self.forward)
        if forward is None:
            return Plan()
        inputs, weights = _best(self.input_gradient), _best(self.weight_gradients)
        mixed = [Plan(forward, i, w) for i in (inputs, None) for w in (weights, None)]
        plans = [Plan(forward, inputs, weights)] if always else [*mixed, Plan()]
        return min(plans, key=self.total)

    def total(self, plan: Plan) -> float:
        """Milliseconds of a plan; a layer without an input gradient of ours counts none."""
        given = self.torch
        if plan.forward is None:
            return given["forward"] + given["dv"] + given["input"] + given["weights"]
        total = self.forward[plan.forward]
        total += given["input"] if plan.input_gradient is None else self.input_gradient[plan.input_gradient]
        if plan.weight_gradients is None:
            total += given["weights"] + given["square"]
        else:
            total += self.weight_gradients[plan.weight_gradients]
        is_left = plan.weight_gradients is None or (plan.input_gradient is None and given["input"] > 0)
        return total + given["dv"] * is_left


def choose(geometry: Geometry, dtype: torch.dtype, device: torch.device, *, fused: Fused = "auto") -> Plan:
    """The plan of a layer; ``"never"`` and what :func:`why_not` refuses are torch's.

    Args:
        geometry: Of the layer.
        dtype: Of activations and weights.
        device: A GPU.
        fused: ``"always"`` leaves nothing to torch that a kernel can compute.
    """
    if fused == "never" or why_not(geometry, dtype, device) is not None:
        return Plan()
    key = (geometry, dtype, torch.cuda.get_device_name(device), fused == "always")
    if key not in _chosen:
        _chosen[key] = measure(geometry, dtype, device).plan(always=fused == "always")
    return _chosen[key]


def why_not(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the fused kernels do not compute a layer, if they do not.

    Example:
        >>> why_not(Geometry(128, 64, 32, 32, 64, (3, 3), 1, (1, 1)), torch.bfloat16, torch.device("cpu"))
        'it is not on a GPU'
    """
    if device.type != "cuda":
        return "it is not on a GPU"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if torch.cuda.get_device_capability(device)[0] < 8:
        return "the GPU has no tensor cores for bfloat16"
    if dtype != torch.bfloat16:
        return "its precision is not bfloat16"
    if geometry.n_out % 8:
        return "its outputs are not a multiple of 8"
    if geometry.products < LEAST_PRODUCTS:
        return "it is too small"
    return None if geometry.fits else "it is too large"


def check_fused(fused: str) -> None:
    """An error for anything but the three words."""
    if fused not in get_args(Fused):
        raise ValueError(f"fused must be one of {', '.join(map(repr, get_args(Fused)))}; got {fused!r}")


def measure(geometry: Geometry, dtype: torch.dtype, device: torch.device) -> Times:
    """Times of all that is tried for a layer."""
    works, times = Works(geometry, dtype, device), Times()
    alone: dict[str, Callable[[], None]] = {
        "forward": works.torch_forward,
        "input": works.torch_input_gradient,
        "weights": works.torch_weight_gradients,
        "dv": works.variance_gradient,
        "square": works.square,
    }
    with torch.no_grad(), torch.cuda.device(device), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        inputs = input_gradient_tiles(geometry)
        times.torch = {name: milliseconds(run) if name != "input" or inputs else 0.0 for name, run in alone.items()}
        times.forward = _time_all(works.forward, forward_tiles(geometry))
        fastest = sorted(times.forward, key=times.forward.__getitem__)[:TRIES]
        times.forward |= _time_all(works.forward, [tile._replace(draws=True) for tile in fastest])
        times.input_gradient = _time_all(works.input_gradient, inputs)
        times.weight_gradients = _time_all(works.weight_gradients, weight_gradient_tiles(geometry))
    return times


def compile_all(geometries: Iterable[Geometry], dtype: torch.dtype, device: torch.device) -> None:
    """Compile all that :func:`measure` will try, on all cores at once; without this it is compiled one by one."""
    import triton

    if not hasattr(triton, "AsyncCompileMode"):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
    with (
        torch.no_grad(),
        torch.cuda.device(device),
        ThreadPoolExecutor(min(8, cores)) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),  # what fails does so again when it is timed, and is told
    ):
        for geometry in geometries:
            works = Works(geometry, dtype, device)
            for tile in forward_tiles(geometry):
                works.forward(tile, only_compiles=True)
                works.forward(tile._replace(draws=True), only_compiles=True)
            for tile in input_gradient_tiles(geometry):
                works.input_gradient(tile, only_compiles=True)
            for tile in weight_gradient_tiles(geometry):
                works.weight_gradients(tile, only_compiles=True)


def _best(times: dict[Tile, float]) -> Tile | None:
    return min((tile for tile in times if math.isfinite(times[tile])), key=times.__getitem__, default=None)


def _time_all(run: Callable[[Tile], None], tiles: Iterable[Tile]) -> dict[Tile, float]:
    return {tile: _time(run, tile) for tile in tiles}


def _time(run: Callable[[Tile], None], tile: Tile) -> float:
    try:
        return milliseconds(lambda: run(tile))
    except Exception as error:  # what a compiler and a device may say to a tile that does not suit them is theirs
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        logging.getLogger("gossamer").warning(f"a fused kernel with {tile} does not run here: {reason}")
        return math.inf
