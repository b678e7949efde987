"""Training on one GPU without the overhead of Python: dense working weights, compiled passes, CUDA graphs."""

from gossamer.capture.steps import CapturedSteps, why_not
from gossamer.capture.working import WorkingCopy

__all__ = ["CapturedSteps", "WorkingCopy", "why_not"]
