"""How long a few kernels take on a GPU, without what it costs to launch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["milliseconds"]

N_WARMUPS = 2
N_LAUNCHES = 10  # in a graph, so that the clock sees the device and not Python
N_REPLAYS = 5


def milliseconds(run: Callable[[], object]) -> float:
    """Time of one ``run`` on the current GPU: the best replay of a graph that holds several of them."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(N_WARMUPS):  # whatever is compiled or looked up at first use
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(N_LAUNCHES):
            run()
    graph.replay()
    times = []
    for _ in range(N_REPLAYS):
        start, end = _event(), _event()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) / N_LAUNCHES)
    return min(times)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
