"""Training on one GPU without Python overhead: dense working weights, compiled passes, CUDA graphs."""

from gossamer.capture.flat_weights import FlatWeights
from gossamer.capture.passes import CapturedPasses
from gossamer.capture.steps import CapturedSteps, CaptureError, why_not

__all__ = ["CaptureError", "CapturedPasses", "CapturedSteps", "FlatWeights", "why_not"]
