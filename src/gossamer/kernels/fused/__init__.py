"""Local reparameterization in one kernel, for the training steps of a GPU: y = W_μ x + b + sqrt(W_σ² x²) · ε.

Two convolutions and what lies between them read and write every activation many times. Here a tile of the input is
loaded once, squared in registers, and multiplied with both weights; the noise is added before anything is written, and
may be drawn there. So is the input's gradient: dx = W_μᵀ dy + 2 x · W_σ²ᵀ (dy · ε / 2 std). Gradients of weights are
left to torch.

``tiles`` holds the kernels in Triton and is imported only when one is needed; ``choice`` finds out by measurement which
parts of which layers they make faster; :func:`noisy_product` is one node of a compiled graph.
"""

from gossamer.kernels.fused.choice import Fused, check_fused, choose, compile_all, why_not
from gossamer.kernels.fused.geometry import Geometry, Plan, Tile, as_images
from gossamer.kernels.fused.product import load, noisy_product

__all__ = ["Fused", "Geometry", "Plan", "Tile", "as_images", "check_fused", "choose", "compile_all", "load"]
__all__ += ["noisy_product", "why_not"]
