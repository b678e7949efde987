"""The kernels themselves, in Triton: imported only where it is installed and a fused product is asked for."""
