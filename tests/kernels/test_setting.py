"""The kernel that is asked for: for good, in a block, and in other threads."""

import threading

import pytest
import torch
from torch import nn

import gossamer
from gossamer import kernels
from gossamer.kernels import in_use, library, native, reference, use


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


@pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")
@pytest.mark.parametrize(("density", "noisy", "plain"), [(0.3, 1, 1), (0.5, 1, 0), (0.6, 0, 0)])
def test_half_of_the_entries_are_multiplied_sparsely_where_there_is_noise(density, noisy, plain, monkeypatch):
    """A dense layer with noise has two products, so it loses at higher densities."""
    made = []
    for kernel in (native, reference):
        for name in ("product", "noisy_product"):
            own, way = getattr(kernel, name), "sparse" if kernel is native else "dense"
            monkeypatch.setattr(kernel, name, lambda *a, o=own, w=way, **k: (made.append(w), o(*a, **k))[1])
    layer = gossamer.bayesianize(nn.Linear(40, 50), density=density)
    layer(torch.randn(32, 40))
    gossamer.predict(layer, torch.randn(32, 40), kind="mean")
    assert ["sparse" in part for part in (made[:1], made[1:])] == [noisy, plain]


def test_compiled_layers_follow_it_without_a_break_in_their_graph():
    layer = gossamer.bayesianize(nn.Linear(300, 300), density=0.05).eval()
    compiled, x = torch.compile(layer.weight.multiply, backend="eager", fullgraph=True), torch.randn(32, 300)
    for kernel in ("auto", "dense"):
        with use(kernel), torch.no_grad():
            torch.manual_seed(0)
            expected = layer.weight.multiply(x, None, kernels.LinearMap())
            torch.manual_seed(0)
            torch.testing.assert_close(compiled(x, None, kernels.LinearMap()), expected)
