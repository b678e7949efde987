"""One training step and one loop for every method, in one process or, by Lightning Fabric, in several."""

from gossamer.train.batches import Batches
from gossamer.train.fitting import fit
from gossamer.train.loop import Training
from gossamer.train.steps import EagerSteps, Steps, take_step

__all__ = ["Batches", "EagerSteps", "Steps", "Training", "fit", "take_step"]
