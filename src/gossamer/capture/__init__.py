"""Training on one GPU without the overhead of Python: dense working weights, compiled passes, CUDA graphs."""

from gossamer.capture.flat_weights import FlatWeights
from gossamer.capture.steps import CapturedSteps, why_not

__all__ = ["CapturedSteps", "FlatWeights", "why_not"]
