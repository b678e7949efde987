"""The kernel that is asked for: for good, in a block, and in other threads."""

import threading

import pytest
import torch
from torch import nn

import gossamer
from gossamer import kernels
from gossamer.kernels import in_use, use


@pytest.fixture(autouse=True)
def auto_afterwards():
    yield
    use("auto")


def test_blocks_within_each_other():
    with use("dense"):
        with use("sparse"):
            assert in_use() == "sparse"
        assert in_use() == "dense"
    assert in_use() == "auto"


def test_a_call_holds_until_the_next_and_a_block_ends_what_was_asked_inside_of_it():
    use("dense")
    with use("sparse"):
        use("auto")
        assert in_use() == "auto"
    assert in_use() == "dense"
    use("auto")
    assert in_use() == "auto"


def test_a_thread_chooses_for_itself():
    seen = []

    def work():
        seen.append(in_use())
        with use("sparse"):
            seen.append(in_use())

    with use("dense"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert in_use() == "dense"
    assert seen == ["auto", "sparse"]


def test_an_unknown_kernel_is_refused_and_nothing_changes():
    with pytest.raises(ValueError, match="kernel must be one of"):
        kernels.use("fast")
    assert in_use() == "auto"


def test_compiled_layers_follow_it_without_a_break_in_their_graph():
    layer = gossamer.bayesianize(nn.Linear(300, 300), density=0.05).eval()
    compiled, x = torch.compile(layer.weight.multiply, backend="eager", fullgraph=True), torch.randn(32, 300)
    for kernel in ("auto", "dense"):
        with use(kernel), torch.no_grad():
            torch.manual_seed(0)
            expected = layer.weight.multiply(x, None, kernels.LinearMap())
            torch.manual_seed(0)
            torch.testing.assert_close(compiled(x, None, kernels.LinearMap()), expected)
