"""One training step and one loop for every method, in one process or, by Lightning Fabric, in several."""

from gossamer.train.batches import Batches
from gossamer.train.loop import Training, fit
from gossamer.train.steps import EagerSteps, take_step

__all__ = ["Batches", "EagerSteps", "Training", "fit", "take_step"]
