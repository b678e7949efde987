"""Draws of networks, and what they predict together."""

from gossamer.posterior.draw import DrawnNetwork, draw
from gossamer.posterior.in_layers import InLayers, Last, LocalPasses, SingleNetwork
from gossamer.posterior.predict import predict
from gossamer.posterior.prediction import Prediction

__all__ = ["DrawnNetwork", "InLayers", "Last", "LocalPasses", "Prediction", "SingleNetwork", "draw", "predict"]
