"""A kernel that finds no memory is an error of Python; before, the process ended."""

from pathlib import Path

import pytest
import torch

from gossamer.kernels import library

resource = pytest.importorskip("resource", reason="the limit is one of POSIX systems")
statm = Path("/proc/self/statm")


PLANES = 128  # of 300 × 300 pixels: their scratch memory, 46 MB, is more than malloc takes from what was freed before


def numbers(planes):
    """A convolution to one plane."""
    return (1, planes, 1, 1, 300, 300, 1, 300, 300, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1)


@pytest.fixture
def little_memory():
    """A limit of so many bytes more than what is mapped now."""
    before = resource.getrlimit(resource.RLIMIT_AS)

    def limit(n_bytes):
        mapped = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + n_bytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def threads(request):
    """Threads of a product."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.skipif(not statm.exists(), reason="asks Linux how much is mapped")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_a_product_without_memory_is_an_error_and_the_next_one_is_right(threads, little_memory):
    if not library.LIBRARY or library.LIBRARY["version"]() < library.VERSION:
        pytest.skip("native kernels are not built, or by an earlier version: python setup.py build_ext --inplace")
    torch.manual_seed(0)
    planes = PLANES * threads  # more than a thread has kept from the test before
    position, mean, x = torch.arange(0, 1152, 77), torch.randn(15), torch.ones(threads, planes, 300, 300)
    plan, shape = library.plan(position, numbers(planes), len(x)), (len(x), 1, 300, 300)
    little_memory(2**24)
    with pytest.raises(MemoryError, match=r"not enough memory for the product of .* examples: give fewer"):
        library.forward(plan, x, mean, None, None, None, 0.0, False, shape)
    with pytest.raises(MemoryError, match=r"not enough memory for the gradients of .* examples: give fewer"):
        library.backward(plan, x, x.new_ones(shape), None, False, mean, None, False)
    little_memory(2**30)
    found, _ = library.forward(plan, x, mean, None, None, None, 0.0, False, shape)
    inside = found[:, :, 1:-1, 1:-1]  # no padding reaches there
    torch.testing.assert_close(inside, mean.sum().expand_as(inside), rtol=1e-5, atol=1e-5)
