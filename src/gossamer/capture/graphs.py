"""A function of static tensors as a CUDA graph: captured once, replayed without a single launch from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["Graph", "Undone"]

N_WARMUPS = 3  # what is compiled, chosen by measurement or allocated at first use must not be part of a capture


class Graph:
    """``function()`` as a graph on the current device; :meth:`replay` runs it again on the same memory.

    Random numbers are new in each replay. What the function returns is kept as ``result``, and overwritten by a replay.

    Args:
        function: Reads and writes tensors that stay where they are.
        state: Tensors that the function changes: they are put back after the runs that warm it up.
    """

    def __init__(self, function: Callable[[], object], state: Iterable[Tensor] = ()) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), Undone(state):  # in this order: what is put back waits for the runs before it
            for _ in range(N_WARMUPS):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.result = function()

    def replay(self) -> None:
        """Run the function once more."""
        self._graph.replay()


class Undone:
    """A block after which ``tensors`` and the random state of their device are what they were before it.

    Example:
        >>> x = torch.ones(2)
        >>> with Undone([x]):
        ...     _ = x.add_(1)
        >>> x
        tensor([1., 1.])
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)

    def __enter__(self) -> None:
        """Remember."""
        self.copies = [tensor.detach().clone() for tensor in self.tensors]
        self.cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        self.cpu = torch.get_rng_state()

    @torch.no_grad()
    def __exit__(self, *_: object) -> None:
        """Put back."""
        for tensor, copy in zip(self.tensors, self.copies, strict=True):
            tensor.detach().copy_(copy)
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
