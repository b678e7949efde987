"""Draws of networks, and what they predict together."""

from gossamer.posterior.average import Averaged, InAverage, Swag, SwagPosterior, averaged
from gossamer.posterior.calibration import LEAST_HELD_OUT, Calibration, at_temperature, calibrate, fit_temperature
from gossamer.posterior.draw import DrawnNetwork, Refresh, draw, refresh_batchnorm
from gossamer.posterior.frozen import FrozenDraws, frozen
from gossamer.posterior.in_layers import AroundMeans, GaussianPosterior, InLayers, Last, LocalPasses, SingleNetwork
from gossamer.posterior.mixture import Mixture, SnapshotPosterior, Snapshots, ends_of_cycles
from gossamer.posterior.passes import FixedDraws
from gossamer.posterior.predict import Prediction, predict

__all__ = [
    "LEAST_HELD_OUT",
    "AroundMeans",
    "Averaged",
    "Calibration",
    "DrawnNetwork",
    "FixedDraws",
    "FrozenDraws",
    "GaussianPosterior",
    "InAverage",
    "InLayers",
    "Last",
    "LocalPasses",
    "Mixture",
    "Prediction",
    "Refresh",
    "SingleNetwork",
    "SnapshotPosterior",
    "Snapshots",
    "Swag",
    "SwagPosterior",
    "at_temperature",
    "averaged",
    "calibrate",
    "draw",
    "ends_of_cycles",
    "fit_temperature",
    "frozen",
    "predict",
    "refresh_batchnorm",
]
