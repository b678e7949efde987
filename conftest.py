"""What pytest has to know before it looks for tests and doctests."""

import importlib.util

# A program that a test runs by itself, and kernels that cannot even be imported where Triton is not installed.
collect_ignore_glob = ["tests/kernels/fused_interpreted.py"]
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob.append("src/gossamer/kernels/fused/tiles.py")
