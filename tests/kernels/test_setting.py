"""The kernel that is asked for: for good, in a block, and in blocks that overlap."""

import threading

import pytest

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
        use("autotune")
        assert in_use() == "autotune"
    assert in_use() == "dense"
    use("auto")
    assert in_use() == "auto"


def test_blocks_that_overlap_leave_what_was_before_them():
    """As those of two threads do: the first begins and ends before the second ends."""
    one = use("dense")
    one.__enter__()
    two = use("sparse")
    two.__enter__()
    one.__exit__(None, None, None)
    assert in_use() == "sparse"
    two.__exit__(None, None, None)
    assert in_use() == "auto"


def test_many_threads_leave_no_setting_behind():
    def work(kernel):
        for _ in range(200):
            with use(kernel):
                pass

    threads = [threading.Thread(target=work, args=(kernel,)) for kernel in ("dense", "sparse") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert in_use() == "auto"


def test_an_unknown_kernel_is_refused_and_nothing_changes():
    with pytest.raises(ValueError, match="kernel must be one of"):
        kernels.use("fast")
    assert in_use() == "auto"
