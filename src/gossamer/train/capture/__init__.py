"""Training on one GPU without Python overhead: dense working weights, compiled passes, CUDA graphs."""

from gossamer.train.capture.flat_weights import FlatWeights
from gossamer.train.capture.passes import CapturedPasses, captured_steps, why_not
from gossamer.train.capture.steps import CapturedSteps, CaptureError

__all__ = ["CaptureError", "CapturedPasses", "CapturedSteps", "FlatWeights", "captured_steps", "why_not"]
