"""Noise: from the given generator alone, in the shape and place of the tensor, and continued exactly."""

import pytest
import torch

from gossamer.optim.sampler import Noise


def test_it_is_standard_normal_in_the_precision_of_the_tensor():
    noise = Noise(torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        drawn = noise.like(torch.zeros(200, 300, dtype=dtype))
        assert drawn.dtype == dtype
        assert float(drawn.double().mean()) == pytest.approx(0, abs=4.5 / 60_000**0.5)
        # bfloat16 rounds by up to 2⁻⁹ of a number, which adds nothing that can be seen to its square.
        assert float(drawn.double().square().mean()) == pytest.approx(1, abs=4.5 * (2 / 60_000) ** 0.5)


def test_without_a_generator_it_is_the_global_one():
    torch.manual_seed(3)
    drawn = Noise().like(torch.zeros(5))
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.empty(5).normal_())
    assert Noise().state_dict() == {}
    Noise().load_state_dict({})


def test_memory_formats_are_kept():
    image = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert Noise(torch.Generator()).like(image).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_generator_of_the_cpu_serves_a_gpu():
    noise, other = (Noise(torch.Generator().manual_seed(0)) for _ in range(2))
    tensor = torch.zeros(1000, device="cuda")
    first = noise.like(tensor)
    assert torch.equal(other.like(tensor), first)  # as on another rank
    state = noise.state_dict()
    second = noise.like(tensor)
    assert not torch.equal(first, second)
    again = Noise(torch.Generator())
    again.load_state_dict(state)
    assert torch.equal(again.like(tensor), second)
