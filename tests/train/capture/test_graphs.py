"""A function as a graph: what warms it up leaves no trace, however busy the device is."""

import pytest
import torch

from gossamer.train.capture.graphs import Graph


@pytest.mark.gpu
def test_warming_up_is_undone_on_a_busy_device():
    state = torch.arange(1000.0, device="cuda")

    def function():
        torch.cuda._sleep(20_000_000)  # some ten milliseconds: the host is far ahead of the device
        state.mul_(2)
        torch.cuda._sleep(20_000_000)
        state.add_(torch.rand_like(state) < 2)

    before = torch.cuda.get_rng_state()
    torch.cuda._sleep(20_000_000)
    state.add_(1)  # not done yet when the capture begins
    graph = Graph(function, [state])
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(state.cpu(), torch.arange(1000.0) + 1)
    graph.replay()
    assert torch.equal(state.cpu(), 2 * (torch.arange(1000.0) + 1) + 1)
