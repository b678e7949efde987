"""A kernel that finds no memory is an error of Python; before, the process ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.kernels import library

STATM = Path("/proc/self/statm")
# A process of its own has freed nothing before, from which malloc could take. The convolution has one plane out.
SCRIPT = """
import resource, sys, torch
from gossamer.kernels import native

def limit(n_bytes):
    mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + n_bytes, resource.RLIM_INFINITY))

threads = int(sys.argv[1])
torch.set_num_threads(threads)
torch.manual_seed(0)
position, mean, x = torch.arange(0, 1152, 77), torch.randn(15), torch.ones(threads, 128, 300, 300)
numbers = (1, 128, 1, 1, 300, 300, 1, 300, 300, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1)
plan, shape = native.plan_of(position, numbers, len(x)), (len(x), 1, 300, 300)
limit(2**24)
for product in (
    lambda: native.forward(plan, x, mean, None, None, None, 0.0, False, shape),
    lambda: native.backward(plan, x, x.new_ones(shape), None, False, mean, None, False),
):
    try:
        product()
    except MemoryError as error:
        print(error)
limit(2**30)
found, _ = native.forward(plan, x, mean, None, None, None, 0.0, False, shape)
inside = found[:, :, 1:-1, 1:-1]  # no padding reaches there
torch.testing.assert_close(inside, mean.sum().expand_as(inside), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.skipif(not STATM.exists(), reason="asks Linux how much is mapped")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer maps memory without end")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_without_memory_is_an_error_and_the_next_one_is_right(threads):
    if not library.LIBRARY:
        pytest.skip("native kernels are not built: python setup.py build_ext --inplace")
    command = [sys.executable, "-c", SCRIPT, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("not enough memory for the product of")
    assert second.startswith("not enough memory for the gradients of")
