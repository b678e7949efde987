"""Optimizers whose steps are captured."""

import torch
from torch import nn

from gossamer.train.capture.graphs import OnDevice


def test_the_count_of_a_checkpoint_follows_its_parameter():
    """Torch loads it to the CPU, and a fused kernel would look for it at that address of the GPU's memory."""
    parameter = nn.Parameter(torch.ones(3))
    trained = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(3)
    trained.step()
    elsewhere = nn.Parameter(torch.ones(3, device="meta"))
    continued = torch.optim.Adam([elsewhere])
    continued.load_state_dict(trained.state_dict())
    assert continued.state[elsewhere]["step"].device.type == "cpu"
    OnDevice(continued)
    assert {value.device.type for value in continued.state[elsewhere].values()} == {"meta"}


def test_the_count_goes_on():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    OnDevice(optimizer)
    assert float(optimizer.state[parameter]["step"]) == 1
