"""Training on one GPU without Python overhead: dense working weights, compiled passes, CUDA graphs."""

from gossamer.train.capture.flat_weights import FlatWeights
from gossamer.train.capture.passes import CapturedPasses
from gossamer.train.capture.steps import CapturedSteps, CaptureError, why_not

__all__ = ["CaptureError", "CapturedPasses", "CapturedSteps", "FlatWeights", "why_not"]
