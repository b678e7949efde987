"""What pytest has to know before it looks for tests and doctests."""

import importlib.util

# Kernels in Triton cannot even be imported where it is not installed.
collect_ignore_glob = [] if importlib.util.find_spec("triton") else ["src/gossamer/kernels/fused/tiles/*"]
