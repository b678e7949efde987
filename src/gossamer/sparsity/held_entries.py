"""Entries of a parameter that are held at zero, and perhaps remembered beside it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class HeldEntries:
    """Holds some entries of a parameter at zero between one optimizer step and the next backward pass.

    With ``keeps`` the values are remembered and trained on (feedback), otherwise they are gone.
    """

    def __init__(self, parameter: nn.Parameter, *, keeps: bool) -> None:
        self.parameter, self.keeps = parameter, keeps
        self.mask = torch.zeros_like(parameter, dtype=torch.bool)
        self.n_held = 0  # how many entries that is
        self.values = parameter.detach().new_zeros(0)  # of the entries in the mask, while they are hidden
        self.is_hidden = False

    @torch.no_grad()
    def choose(self, mask: Tensor) -> None:
        """Which entries to hold from now on; their values stay until they are hidden."""
        self.reveal()
        self.mask = mask.view_as(self.parameter)
        self.n_held = int(self.mask.sum())

    @torch.no_grad()
    def hide(self) -> None:
        """Make the held entries zero in the parameter."""
        if self.keeps:
            moved = self.parameter[self.mask]
            # Still hidden: the optimizer stepped from zero without a reveal, and that step belongs to them.
            self.values = self.values + moved if self.is_hidden else moved
        self.parameter.masked_fill_(self.mask, 0.0)
        self.is_hidden = True

    @torch.no_grad()
    def reveal(self) -> None:
        """Put the remembered values back."""
        if self.is_hidden and self.keeps:
            self.parameter[self.mask] = self.values
        self.is_hidden = False

    def drop(self) -> None:
        """Forget the values of the held entries, for good."""
        self.keeps, self.values = False, self.values.new_zeros(0)
        self.hide()

    def reset(self, optimizer: Optimizer) -> None:
        """Zero the held entries in the parameter, its gradient and the optimizer's state."""
        state = optimizer.state.get(self.parameter, {})
        known = [value for value in state.values() if isinstance(value, Tensor)]
        with torch.no_grad():
            for tensor in [self.parameter, self.parameter.grad, *known]:
                if tensor is not None and tensor.shape == self.parameter.shape:
                    tensor.masked_fill_(self.mask, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs."""
        return {"mask": self.mask, "values": self.values, "is_hidden": self.is_hidden, "keeps": self.keeps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.mask = state["mask"].to(self.parameter.device)
        self.n_held = int(self.mask.sum())
        self.values = state["values"].to(self.parameter)
        self.is_hidden, self.keeps = bool(state["is_hidden"]), bool(state["keeps"])
