"""Where an optimizer's noise comes from, and how it goes on after a stop."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Noise"]


class Noise:
    """Standard normal numbers from a generator, or from torch's global ones without.

    A generator serves tensors on every device: one that is elsewhere gets a generator of its own, seeded from the given
    one. Ranks that give generators in the same state draw the same numbers.

    Example:
        >>> noise = Noise(torch.Generator().manual_seed(0))
        >>> state = noise.state_dict()
        >>> first = noise.like(torch.zeros(3))
        >>> noise.load_state_dict(state)
        >>> torch.equal(noise.like(torch.zeros(3)), first)
        True
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self._elsewhere: dict[str, torch.Generator] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """Independent N(0, 1) in the shape, precision and place of ``tensor``."""
        noise = torch.empty_like(tensor, memory_format=torch.preserve_format)
        return noise.normal_(generator=self._generator_on(tensor.device))

    def state_dict(self) -> dict[str, Tensor]:
        """States of the generators by device; empty without a generator."""
        if self.generator is None:
            return {}
        own = {device: generator.get_state() for device, generator in self._elsewhere.items()}
        return {"given": self.generator.get_state(), **own}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict``."""
        if not state:
            return
        if self.generator is None:
            raise ValueError(
                "this state was saved with a generator, and this optimizer has none: build it with generator="
            )
        self.generator.set_state(state["given"].cpu())
        self._elsewhere.clear()
        for name, saved in state.items():
            # A state of a GPU may be read on a machine without, where nothing will be drawn on it.
            if name != "given" and (name == "cpu" or torch.cuda.is_available()):
                self._elsewhere[name] = torch.Generator(name)
                self._elsewhere[name].set_state(saved.cpu())

    def _generator_on(self, device: torch.device) -> torch.Generator | None:
        if self.generator is None or self.generator.device == device:
            return self.generator
        name = str(device)
        if name not in self._elsewhere:
            seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
            self._elsewhere[name] = torch.Generator(device).manual_seed(int(seed))
        return self._elsewhere[name]
